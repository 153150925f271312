"""The page as a file: self-contained, escaped, whole or not there."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report import ReportRun, write_report

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<b>bold</b> &amp; &lt;i&gt;",
    '<a href="https://example.org">link</a>',
    "<!-- <script>",
    "{{ title }} {% raw %} $title",
    "same",
    "same",
    "two\nlines \u202e\ud800",
    "漢字",
)


class _Elements(HTMLParser):
    """Collects what a browser would see: start tags, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or f"script {len(self.scripts)}"
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        self._script = None if tag == "script" else self._script

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data


def _write(path: Path, runs: list[ReportRun], title: str = "A title", **options) -> str:
    write_report(path, runs, title=title, **options)
    return path.read_text(encoding="utf-8")


def _change(run: ReportRun, **fields: object) -> ReportRun:
    predictions = dataclasses.replace(run.predictions, **fields)
    return dataclasses.replace(run, predictions=predictions)


def test_write_report__tables_figures_and_provenance(make_runs, tmp_path: Path) -> None:
    runs = [dataclasses.replace(run, name=f"runs/{run.seed}") for run in make_runs()]
    page = _write(tmp_path / "report.html", runs, notes=["Seen on two cores."])
    assert "<h1>A title</h1>" in page
    assert "<caption>Accuracy by target</caption>" in page
    assert "<caption>All metrics, target uniform</caption>" in page
    for name in ("target-shift", "average-probability", "class-counts"):
        assert page.count(f'id="{name}"') == 1
    assert "<li>Seen on two cores.</li>" in page
    assert (
        "<li>LADE: seeds 0, 1, 2 (<code>runs/0</code>, <code>runs/1</code>, "
        "<code>runs/2</code>)</li>"
    ) in page
    number = r"<strong>\d\d\.\d&nbsp;%</strong>"
    both = f"{number} as trained and {number} re-targeted on"
    assert re.search(
        rf"Softmax, trained once, reaches {both} <em>uniform</em> \(500 images\), "
        rf"and {both} <em>backward 50</em> \(500 weighted images, effectively \d+\)\.",
        " ".join(page.split()),
    )


def test_write_report__loads_nothing(make_runs, tmp_path: Path) -> None:
    page = _write(tmp_path / "report.html", make_runs())
    assert "http:" not in page
    assert "https:" not in page
    for tag, attributes in _Elements(page).tags:
        assert tag not in ("link", "img", "iframe", "base", "object", "embed")
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes)
    assert "default-src 'none'; style-src 'sha256-" in page
    assert "unsafe" not in page
    data = _Elements(page).scripts["explorer-data"]
    assert len(page) - len(data) < 100_000  # all but the logits


def test_write_report__hostile_names_stay_text(make_runs, tmp_path: Path) -> None:
    benign = _write(tmp_path / "benign.html", make_runs(num_seeds=1))
    runs = [
        dataclasses.replace(run, method=f"<i>{run.method}</i>", name="</ul><script>")
        for run in make_runs(num_seeds=1, class_names=HOSTILE)
    ]
    page = _write(
        tmp_path / "page.html", runs, title="</title><script>", notes=["<script>"]
    )
    seen, expected = (_Elements(p) for p in (page, benign))
    # LADE under another name has a raw and a PC row: compare kinds, not numbers.
    assert {tag for tag, _ in seen.tags} == {tag for tag, _ in expected.tags} | {"code"}
    assert seen.scripts.keys() == expected.scripts.keys()
    for name in HOSTILE[:5]:
        assert name not in page
    assert f"<bdi>{HOSTILE[5]}</bdi>" in page
    embedded = json.loads(seen.scripts["explorer-data"])
    assert embedded["classNames"] == [*HOSTILE[:8], "two lines", "漢字"]
    assert embedded["methods"][0]["name"] == "<i>Softmax</i>"
    assert page.count("<bdi>two lines</bdi>") == 1


def test_write_report__same_runs_same_bytes(make_runs, tmp_path: Path) -> None:
    first = _write(tmp_path / "a.html", make_runs())
    assert first == _write(tmp_path / "b.html", make_runs())


def test_write_report__single_run(make_runs, tmp_path: Path) -> None:
    page = _write(tmp_path / "a.html", make_runs(("LADE",), 1))
    assert "In %, a single run; the best of a row in bold." in page
    assert 'class="sd"' not in page
    assert 'class="best"' not in page
    assert "<li>LADE: seed 0</li>" in page
    assert re.search(r"LADE, trained once, reaches\s+<strong>.* re-targeted on", page)


def test_write_report__without_priors_only_raw_results(
    make_runs, tmp_path: Path
) -> None:
    runs = [
        _change(run, source_counts=None, logit_prior=None)
        for run in make_runs(num_seeds=1)
    ]
    page = _write(tmp_path / "a.html", runs)
    assert ("The prior of the logits is unknown, so no result is re-targeted.") in page
    assert "PC Softmax" not in page
    assert 'id="class-counts"' not in page
    assert 'id="target-shift"' not in page
    assert "<caption>All metrics, target as is</caption>" in page


def test_write_report__without_counts_the_uniform_target(
    make_runs, tmp_path: Path
) -> None:
    runs = [_change(run, source_counts=None) for run in make_runs(num_seeds=1)]
    page = _write(tmp_path / "a.html", runs)
    assert "PC Softmax" in page
    assert 'id="target-shift"' not in page
    assert "<caption>Accuracy by target</caption>" in page
    assert "Training counts are unknown: forward favours the first class ids" in page


def test_write_report__makes_the_folder_and_leaves_nothing_else(
    make_runs, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "report.html"
    _write(path, make_runs(num_seeds=1))
    assert list(path.parent.iterdir()) == [path]


def test_write_report__existing_file(make_runs, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(FileExistsError) as error:
        write_report(path, make_runs(num_seeds=1), title="t")
    assert str(error.value) == (
        f"`path` must be new, but {path} exists. "
        "Name another file or pass overwrite=True."
    )
    assert path.read_text(encoding="utf-8") == "precious"
    write_report(path, make_runs(num_seeds=1), title="t", overwrite=True)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_write_report__path_is_a_folder(make_runs, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError) as error:
        write_report(tmp_path, make_runs(num_seeds=1), title="t", overwrite=True)
    assert str(error.value) == (
        f"`path` must be a file, but {tmp_path} is a folder. "
        "Add a name such as report.html."
    )


def _two_classes() -> ReportRun:
    return ReportRun("LADE", 0, Predictions(torch.eye(2), torch.arange(2)))


def _fails(runs: list[ReportRun], path: Path) -> str:
    with pytest.raises(ValueError, match="runs") as error:
        write_report(path, runs, title="t")
    assert not path.exists()
    return str(error.value)


def test_write_report__no_runs(tmp_path: Path) -> None:
    message = _fails([], tmp_path / "a.html")
    assert message == "`runs` must hold at least one run, but is empty."


def test_write_report__run_given_twice(make_runs, tmp_path: Path) -> None:
    [run] = make_runs(("LADE",), 1)
    assert _fails([run, run], tmp_path / "a.html") == (
        "`runs` must differ in method or seed, but LADE seed 0 is there twice. "
        "Give one of them another method name."
    )


def test_write_report__other_number_of_classes(make_runs, tmp_path: Path) -> None:
    [run] = make_runs(("Softmax",), 1)
    assert _fails([run, _two_classes()], tmp_path / "a.html") == (
        "`runs` must share their classes, but Softmax seed 0 has 10 "
        "and LADE seed 0 has 2."
    )


def test_write_report__other_class_names(make_runs, tmp_path: Path) -> None:
    a, b = make_runs(("LADE",), 2)
    b = _change(b, class_names=tuple("abcdefghij"))
    assert _fails([a, b], tmp_path / "a.html") == (
        "`runs` must share their class names, but those of LADE seed 0 "
        "and LADE seed 1 differ."
    )


def test_write_report__other_training_counts(make_runs, tmp_path: Path) -> None:
    a, b = make_runs(("LADE",), 2)
    b = _change(b, source_counts=torch.arange(10) + 1)
    assert _fails([a, b], tmp_path / "a.html") == (
        "`runs` must share their training counts, but those of LADE seed 0 "
        "and LADE seed 1 differ. Write a report for each data set."
    )
