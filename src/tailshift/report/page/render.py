"""Jinja2 templates: one base, one stylesheet, one content policy."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from importlib import resources
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tailshift.report.style import one_line


class Page(NamedTuple):
    """An HTML page and its content security policy."""

    text: str
    policy: str


def render_page(
    template: str, *, scripts: Sequence[str] = (), connects: bool = False, **values: Any
) -> Page:
    """Fill a template of this folder; all strings are escaped.

    Args:
        template: File name of the template, which extends ``base.html``.
        scripts: File names of its scripts, in the order in which they run.
        connects: Allow requests to the server that sent the page.
        values: Values by their names in the template.
    """
    script = "\n".join(map(_read, scripts))
    sources = {"style": _read("style.css"), "script": script}
    policy = "; ".join(
        [
            "default-src 'none'",
            *(f"{kind}-src '{_digest(text)}'" for kind, text in sources.items()),
            *(["connect-src 'self'"] if connects else []),
            "img-src data:; base-uri 'none'; form-action 'none'",
        ]
    )
    inline = {name: Markup(text) for name, text in sources.items()}
    page = _ENVIRONMENT.get_template(template)
    return Page(page.render(policy=Markup(policy), **inline, **values), policy)


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def _on_one_line(value: Any) -> Any:
    return one_line(value) if type(value) is str else value  # Markup is left as it is


_ENVIRONMENT = Environment(
    autoescape=True,
    finalize=_on_one_line,
    loader=PackageLoader("tailshift.report.page", ""),
    lstrip_blocks=True,
    trim_blocks=True,
    undefined=StrictUndefined,
)
_ENVIRONMENT.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
