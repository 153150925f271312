"""The site: what its references name, and every program of the gallery."""

import inspect
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import matplotlib.pyplot as plt
import numpy as np
import pytest
import typer

import tailshift
from tailshift.cli import app
from tailshift.cli.app import COMMANDS
from tailshift.config import SECTIONS
from tailshift.methods import METHODS
from tailshift.models import PUBLISHED
from tailshift.registry import Registry

ROOT = Path(__file__).parents[1]
PROGRAMS = sorted(path.stem for path in (ROOT / "examples").glob("plot_*.py"))


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "reference.py"))


@pytest.fixture(scope="module")
def pages(reference: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = reference["pages"]()
    return found


def _public_modules() -> list[ModuleType]:
    """Return tailshift, what it offers, and every module that states its names."""
    sources = (ROOT / "src" / "tailshift").rglob("__init__.py")
    rooms = {
        ".".join(source.parent.relative_to(ROOT / "src").parts)
        for source in sources
        if "\n__all__" in source.read_text(encoding="utf-8")
    }
    offered = [getattr(tailshift, name) for name in tailshift.__all__]
    rooms |= {value.__name__ for value in offered if inspect.ismodule(value)}
    return [import_module(room) for room in sorted(rooms - {"tailshift.cli"})]


def _documented(page: str) -> list[str]:
    """Return the full names of a page's entries."""
    entries = re.findall(r"^\.\. auto(?:class|function):: (\S+)$", page, flags=re.M)
    module = re.findall(r"^\.\. py:module:: (\S+)$", page, flags=re.M)[0]
    data = re.findall(r"^\.\. py:data:: (\S+)$", page, flags=re.M)
    return entries + [f"{module}.{name}" for name in data]


def test_api__has_every_public_name_once(
    reference: dict[str, Any], pages: dict[str, str]
) -> None:
    api = [text for path, text in pages.items() if path.startswith("api/")]
    names = [name for page in api for name in _documented(page)]
    assert len(names) == len(set(names)) > 250
    found = {id(_named(name)) for name in names}
    modules = _public_modules()
    assert tailshift in modules
    assert len(modules) > 12
    for module in modules:
        for name in reference["public_names"](module):
            value = getattr(module, name)
            if value is tailshift.report:  # a room that is called as its function is
                value = tailshift.report.report
            is_room = inspect.ismodule(value) and value in modules
            assert is_room or id(value) in found, f"{module.__name__}.{name}"


def _named(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def test_api__registries_list_their_entries(pages: dict[str, str]) -> None:
    for room, name in {"losses": "LOSSES", "calibration": "CALIBRATORS"}.items():
        registry = getattr(import_module(f"tailshift.{room}"), name)
        assert isinstance(registry, Registry)
        for entry in registry.names():
            line = f"   ``{entry}``\n       {registry.sentence(entry)}\n"
            assert line in pages[f"api/{room}.rst"]


def test_commands__have_every_command_and_option(pages: dict[str, str]) -> None:
    page = pages["commands.rst"]
    titles = re.findall(r"^tailshift ([\w ]+)\n-+$", page, flags=re.M)
    assert [title.split()[0] for title in titles] == list(COMMANDS)
    group = typer.main.get_command(app)
    for part in re.split(r"^tailshift (?=[\w ]+\n-+$)", page, flags=re.M)[1:]:
        command: Any = group
        for name in part.partition("\n")[0].split():
            command = command.commands[name]
        for param in command.params:
            if getattr(param, "hidden", False):
                continue
            assert param.opts[-1] in part or param.metavar in part, param.name
            assert not param.help or (
                " ".join(param.help.split())[:40]
                in " ".join(part.replace("\\", "").split())
            )


def test_settings__have_every_field(
    reference: dict[str, Any], pages: dict[str, str]
) -> None:
    page = pages["settings.rst"]
    for name, section in SECTIONS.items():
        for field in section.model_fields:
            assert f"   * - ``{name}.{field}``\n" in page
    for method in METHODS.names():
        assert (
            f"method: {method}\n~" in page
            or not reference["settings"]()["method"][method]
        )


def test_references__have_every_citation(pages: dict[str, str]) -> None:
    keys = re.findall(
        r"@\w+\{(\w+),", (ROOT / "docs/references.bib").read_text(encoding="utf-8")
    )
    assert (
        re.findall(r"^\*\*\[(\w+)\]\*\*$", pages["references.rst"], flags=re.M) == keys
    )


CLAIMS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "plot_certificate": lambda names: (
        [c.is_refused for c in names["found"].values()] == [False, False, True]
    ),
    "plot_estimate": lambda names: (
        np.abs(names["found"].estimated_prior.numpy() - names["truth"]).sum() < 0.15
    ),
    "plot_features": lambda names: names["record"].accuracy > 0.6,
    "plot_imbalanced_learn": lambda names: (
        abs(names["probs"]["undone"][:, 1].mean() - names["y_test"].mean()) < 0.01
        and names["probs"]["sampled"][:, 1].mean() > 0.3
    ),
    "plot_lade_loop": lambda names: sum(names["by_class"]) > 7.8,
    "plot_onnx": lambda names: names["probs"].sum() > 0.999,
    "plot_sets": lambda names: (
        min(names["lines"]["for the target prior"]) > 0.87
        and min(names["lines"]["ignoring the shift"]) < 0.6
    ),
    "plot_sklearn": lambda names: (
        names["accuracy"]["uniform"] > names["accuracy"]["source"] + 0.01
        and names["model"].adaptation_.is_adapted
    ),
    "plot_stream": lambda names: (
        names["right"]["followed"] > names["right"]["as trained"] + 500
    ),
    "plot_timm_folder": lambda names: names["record"].accuracy > 0.6,
}
"""What each program shows, of the names that it leaves."""


NEEDED = {"plot_imbalanced_learn": "imblearn", "plot_onnx": "onnxscript"}


def test_gallery__claims_are_of_all_programs() -> None:
    assert sorted(CLAIMS) == PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_gallery__runs_and_shows_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "plot_features" and PUBLISHED["lite0"].path is None:
        pytest.skip("needs the extra pretrained")
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plt.switch_backend("Agg")
    try:
        names = runpy.run_path(str(path))
        assert plt.get_fignums()
        assert CLAIMS[name](names)
    finally:
        plt.close("all")


class _Page(HTMLParser):
    """The ids and links of a page, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.ids |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "source") and "src" in values:
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") != "canonical":
            self.loaded.append(values.get("href", ""))


@pytest.mark.slow
def test_site__builds_without_warnings_dead_links_or_a_network(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery", reason="needs the extra docs")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
    command += ["-d", str(tmp_path / "doctrees"), str(ROOT / "docs")]
    result = subprocess.run(
        [*command, str(tmp_path / "site")], capture_output=True, text=True
    )
    assert (result.returncode, result.stderr) == (0, "")
    files = sorted((tmp_path / "site").rglob("*.html"))
    pages = {file: _Page(file.read_text(encoding="utf-8")) for file in files}
    assert len(pages) > 50
    for file, page in pages.items():
        assert not [url for url in page.loaded if urlsplit(url).netloc], file
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            other = (
                (file.parent / unquote(parts.path)).resolve() if parts.path else file
            )
            assert other.exists(), f"{file} links to {link}"
            if parts.fragment and other in pages:
                assert unquote(parts.fragment) in pages[other].ids, f"{file}: {link}"
    for name in ("tailshift.losses.LADELoss", "tailshift.extract_features"):
        assert any(name in page.ids for page in pages.values()), name
