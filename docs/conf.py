"""Settings of the site; ``make docs`` builds it into ``build/docs``."""

import json
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.typing import stringify_annotation

from tailshift import checks

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the examples are small

project = "tailshift"
release = metadata.version("tailshift")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*.ipynb"]
default_role = "code"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {
    "exclude-members": ", ".join(
        f"set_{verb}_request" for verb in ("fit", "predict", "predict_proba", "score")
    )
}
napoleon_use_ivar = True
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "ignore_pattern": r"(^|/)(?!plot_)\w+\.py$",
    "within_subsection_order": "ExampleTitleSortKey",
    "reference_url": {"tailshift": None},
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = f"tailshift {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_math_renderer = "mathml"
html_theme_options: dict[str, Any] = {
    "logo": {"text": "tailshift"},
    "navbar_align": "left",
    "show_toc_level": 1,
    "header_links_before_dropdown": 7,
    "show_prev_next": False,
    "navigation_with_keys": False,
    "footer_start": [],
    "footer_end": [],
}
html_sidebars: dict[str, list[str]] = {"index": []}


def _inline_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block_math(translator: Any, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def _whole_attribute(docstring: GoogleDocstring) -> tuple[str, list[str]]:
    """Keep Napoleon from reading "The column of labels: …" as a type and a text."""
    return "", docstring._consume_to_end()


def _name_aliases(
    app: Any,
    what: str,
    name: str,
    value: Any,
    options: Any,
    signature: str,
    result: str,
) -> tuple[str, str]:
    """Show an alias of a type by its name; Python knows only what it stands for."""
    for alias in ("VectorLike", "ArrayLike"):
        shown = stringify_annotation(getattr(checks, alias), "smart")
        signature = signature and signature.replace(shown, alias)
    return signature, result


COPIES = {
    "results/README.md": "generated/runs.md",
    "CHANGELOG.md": "generated/changelog.md",
    "CONTRIBUTING.md": "generated/contributing.md",
}
"""Files outside of ``docs`` that the site has as pages."""


def _follow_link(app: Sphinx, name: str, source: list[str]) -> None:
    """Lead links to files that the site has a copy of to the copy."""
    up = "../" * name.count("/")
    for file, page in COPIES.items():
        source[0] = source[0].replace(f"]({up}../{file}", f"]({up}{page}")


def _load_excerpts(
    app: Sphinx, page: str, template: str, context: Any, doctree: Any
) -> None:
    """Load the pages' text on the search page."""
    if page == "search":
        app.add_js_file("excerpts.js")


EXCERPTS = """\
// A page that is opened from disk cannot fetch others: take their text from here.
const EXCERPTS = %s;
if (location.protocol === "file:") {
  const root = new URL("..", document.currentScript.src).href;
  window.fetch = (url) => {
    const page = new URL(url, location.href).href.slice(root.length).split(/[?#]/)[0];
    const main = document.createElement("div");
    main.setAttribute("role", "main");
    main.textContent = EXCERPTS[decodeURI(page)] || "";
    return Promise.resolve(new Response(main.outerHTML));
  };
}
"""


def _write_excerpts(app: Sphinx, error: Exception | None) -> None:
    """Write the text of all pages, for the results of a search from disk."""
    if error or app.builder.format != "html":
        return
    texts = {
        f"{name}.html": " ".join(app.env.get_doctree(name).astext().split())
        for name in sorted(app.env.found_docs)
    }
    path = Path(app.outdir) / "_static" / "excerpts.js"
    path.write_text(EXCERPTS % json.dumps(texts), encoding="utf-8")


def _write_reference(app: Sphinx) -> None:
    import reference

    reference.write(HERE / "generated")


def setup(app: Sphinx) -> None:
    """Render equations as MathML, which needs no network, and write the reference."""
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(_inline_math, None),
        block_renderers=(_block_math, None),
    )
    app.connect("builder-inited", _write_reference, priority=100)
    GoogleDocstring._consume_inline_attribute = _whole_attribute  # type: ignore[method-assign] # no setting for it
    app.connect("autodoc-process-signature", _name_aliases)
    app.connect("source-read", _follow_link)
    app.connect("html-page-context", _load_excerpts)
    app.connect("build-finished", _write_excerpts)
