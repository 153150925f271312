"""A run has one name in every table and figure, and is scored once for all of them."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tailshift as ts
from tailshift.evaluation import records
from tailshift.methods import METHODS
from tailshift.report import ReportRun, rows_by_method
from tailshift.report.plots import shift_curves
from tailshift.report.runs import (
    carried_sentence,
    gather_runs,
    row_names,
    run_from_logits,
    summarise_runs,
    untested_classes,
)
from tailshift.report.series import series_of
from tailshift.report.style import method_colours

Command = Callable[..., Any]
ALPHAS = (0.01, 0.1)
NAMES = [f"LADE (α = {alpha})" for alpha in ALPHAS]
SHIFTED = ("--target", "backward:10")


@pytest.fixture
def two_alphas(
    tailshift: Command, tiny_config: Callable[..., ts.RunConfig]
) -> list[str]:
    """Return the folders of two LADE runs that differ in α."""
    folders = [f"alpha{alpha}" for alpha in ALPHAS]
    for alpha, folder in zip(ALPHAS, folders, strict=True):
        config = tiny_config("method.name=lade", f"method.alpha={alpha}")
        ts.train(config, output=folder)
    return folders


def test_names__two_alphas_are_one_row_each_everywhere(
    tailshift: Command, two_alphas: list[str]
) -> None:
    forms = ("--csv", "t.csv", "--markdown", "t.md", "--latex", "t.tex")
    shown = tailshift("evaluate", *two_alphas, *SHIFTED, *forms)
    lines = Path("t.md").read_text(encoding="utf-8").splitlines()[2:]
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    assert names == [*NAMES, "n"]
    with Path("t.csv").open(encoding="utf-8", newline="") as file:
        assert [row["method"] for row in csv.DictReader(file)] == NAMES
    assert tailshift("report", *two_alphas, "-o", "out").code == 0
    options = ("--figure", "reliability", "--figure", "target_shift", "-o", "out")
    assert tailshift("figures", *two_alphas, *SHIFTED, *options).code == 0
    texts = {"terminal": shown.out}
    for path in ("t.tex", "out/report.html", "out/target_shift.svg"):
        texts[path] = Path(path).read_text(encoding="utf-8")
    assert [where for where, text in texts.items() if "PC LADE" in text] == []


def test_names__are_the_same_from_rows_to_lines(two_alphas: list[str]) -> None:
    runs = gather_runs(two_alphas)
    summaries = summarise_runs(runs, ["uniform", "backward:10"])
    assert [row.name for row in rows_by_method(summaries)] == NAMES
    assert [curve.name for curve in shift_curves(summaries)[1]] == NAMES
    for target in ("uniform", "backward:10"):
        series = series_of(runs, target)
        assert [(s.name, s.is_compensated) for s in series] == [
            (name, True) for name in NAMES
        ]


def test_row_names__of_every_method() -> None:
    for name in METHODS:
        method = METHODS.get(name)
        title, compensates = method.title, method.compensates
        rows = row_names(title, compensates=compensates)
        if name == "lade":
            assert rows == {True: "LADE"}
        else:
            assert rows == {False: title, True: f"PC {title}"}
        unknown = row_names(title, compensates=compensates, has_compensated=False)
        assert unknown == {False: title}


def test_run_from_logits__stands_for_a_method_only_by_its_title(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    ts.Predictions(torch.eye(2), torch.arange(2)).save(path)
    runs = [
        run_from_logits(f"{name}={path}") for name in ("LADE", "LADE v2", "Softmax")
    ]
    assert [(run.key, run.compensates) for run in runs] == [
        ("lade", True),
        ("", False),
        ("softmax", False),
    ]


def test_untested_classes__names_the_first_five() -> None:
    one = ts.Predictions(torch.eye(9)[:1], torch.tensor([0]))
    assert untested_classes(ReportRun("A", 0, one, unit="images")) == (
        "8 classes without test images are left out of every target: class 1, class 2, "
        "class 3, class 4, class 5 and 3 more."
    )
    whole = ts.Predictions(torch.eye(2), torch.arange(2))
    assert untested_classes(ReportRun("A", 0, whole)) == ""


def test_method_colours__of_two_variants_differ() -> None:
    colours = method_colours(dict.fromkeys(NAMES, "lade") | {"Softmax": "softmax"})
    assert len(set(colours.values())) == 3
    assert colours[NAMES[0]] == method_colours({"LADE": "lade"})["LADE"]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with every pass over some logits."""
    counted: list[int] = []
    score = records.score

    def counting(predictions: ts.Predictions, *args: Any) -> Any:
        counted.append(len(predictions.labels))
        return score(predictions, *args)

    monkeypatch.setattr(records, "score", counting)
    return counted


@pytest.mark.parametrize(
    "command",
    [
        ("report", "-o", "out"),
        ("evaluate", "--metric", "ece", "--csv", "t.csv", "--results", "r.csv"),
    ],
)
def test_commands__score_each_run_once(
    tailshift: Command, digits_run: ts.Run, passes: list[int], command: tuple[str, ...]
) -> None:
    ts.evaluate(digits_run.predictions())
    once = list(passes)
    name, *options = command
    assert tailshift(name, digits_run.directory, *options).code == 0
    assert passes == 2 * once


def test_report__is_the_command_from_python(
    tailshift: Command, digits_run: ts.Run, tmp_path: Path
) -> None:
    assert tailshift("report", digits_run.directory, "-o", "out").code == 0
    page = ts.report(digits_run, tmp_path / "mine")
    assert page == tmp_path / "mine" / "report.html"
    for name in ("report.html", "table.csv"):
        assert (page.parent / name).read_bytes() == (Path("out") / name).read_bytes()
    with pytest.raises(FileExistsError) as error:
        ts.report([digits_run.directory], tmp_path / "mine")
    assert str(error.value) == (f"{page} exists. Replace it (--force) or name another.")
    assert ts.report([digits_run.directory], tmp_path / "mine", force=True) == page


def test_report__warns_of_logits_whose_prior_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    ts.Predictions(torch.eye(2), torch.arange(2)).save(path)
    with pytest.warns(UserWarning, match="prior") as warned:
        ts.report(path, tmp_path / "out")
    assert str(warned[0].message) == (
        f"{path} does not say which prior its logits carry, so only raw results are "
        "shown. Name it with --logit-prior."
    )


def test_report_run__compensates_from_the_measured_prior(digits_run: ts.Run) -> None:
    val = digits_run.predictions("val")
    found = ts.measure_logit_prior(val.logits, val.labels, digits_run.source_prior)
    [run] = gather_runs(digits_run, prior="measured")
    assert run.carried is not None
    assert run.predictions.logit_prior is not None
    assert torch.equal(run.predictions.logit_prior, found.prior)
    assert run.carried.kappa == found.kappa
    [run] = gather_runs(digits_run)
    assert run.carried is not None
    assert run.predictions.logit_prior is not None
    assert torch.equal(run.predictions.logit_prior, ts.priors.uniform(10))
    assert run.carried.kappa == found.kappa


@pytest.mark.parametrize(
    ("interval", "ending"), [((-0.1, 0.3), "."), ((0.05, 0.3), ": they disagree.")]
)
def test_carried_sentence__tells_both(
    digits_run: ts.Run, interval: tuple[float, float], ending: str
) -> None:
    [run] = gather_runs(digits_run)
    assert run.carried is not None
    carried = replace(run.carried, kappa=0.123, interval=interval)
    low, high = interval
    assert carried_sentence(replace(run, carried=carried)) == (
        "LADE seed 0: logits carry p_s^κ with κ = 0.00 declared, 0.12 measured on "
        f"validation images (95 %: {low:.2f} to {high:.2f}){ending}"
    )
    assert carried_sentence(replace(run, carried=None)) == ""


def test_carried_sentence__has_no_negative_zero(digits_run: ts.Run) -> None:
    """The uniform prior of 1,000 classes was declared with κ = -0.00."""
    [run] = gather_runs(digits_run)
    assert run.carried is not None
    carried = replace(run.carried, kappa=-1e-3, interval=(-2e-3, -1e-9))
    p_s = ts.priors.from_counts(run.predictions.source_counts)
    declared = p_s**-1e-3 / (p_s**-1e-3).sum()
    assert carried_sentence(replace(run, carried=carried, declared=declared)) == (
        "LADE seed 0: logits carry p_s^κ with κ = 0.00 declared, 0.00 measured on "
        "validation images (95 %: 0.00 to 0.00)."
    )


def test_gather_runs__cannot_measure_without_validation_images(run_copy: Path) -> None:
    (run_copy / "predictions" / "val.safetensors").unlink()
    with pytest.raises(ValueError, match="measured") as error:
        gather_runs(run_copy, prior="measured")
    assert str(error.value) == (
        f"`prior` 'measured' needs validation images, but {run_copy} has none. Hold "
        "some out in training, or take the declared prior."
    )
    file = run_copy / "predictions" / "test.safetensors"
    with pytest.raises(ValueError, match="measured") as error:
        gather_runs(file, prior="measured")
    assert str(error.value) == (
        f"`prior` 'measured' needs validation images, but {file} is a file of logits. "
        "Measure it by ts.measure_logit_prior; save it as `logit_prior`."
    )
