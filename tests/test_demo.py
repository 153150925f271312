"""The demonstration, made short."""

import csv
import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

import tailshift as ts
from tailshift import demo, priors, recipes
from tailshift.demo import next_folder, run_demo, why_not_helped
from tailshift.priors import VectorLike
from tailshift.report.runs import summarise_runs
from tailshift.targets import PAPER_TARGETS


@pytest.fixture
def _one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_recipe(recipe: str, overrides: list[str]) -> ts.RunConfig:
        return recipes.load_recipe(recipe, [*overrides, "train.epochs=1"])

    monkeypatch.setattr(demo, "load_recipe", load_recipe)


@pytest.mark.usefixtures("_one_epoch")
def test_run_demo__writes_table_and_report(tmp_path: Path) -> None:
    output, announced = tmp_path / "demo", []
    methods = ("softmax", "lade")
    summaries, report = run_demo(
        output, methods=methods, seeds=(4,), announce=announced.append
    )
    assert announced == [f"training {name} with seeds 4" for name in methods]
    assert sorted(path.name for path in (output / "runs").iterdir()) == [
        "lade-seed4",
        "softmax-seed4",
    ]
    with (output / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "method",
        "target",
        "raw_mean",
        "raw_sd",
        "compensated_mean",
        "compensated_sd",
        "raw_error",
        "compensated_error",
        "raw_subset_sd",
        "compensated_subset_sd",
        "num_samples",
        "num_effective",
        "sampling",
    ]
    assert [(row["method"], row["target"]) for row in rows] == [
        (method, target) for method in ("Softmax", "LADE") for target in PAPER_TARGETS
    ]
    assert [float(row["raw_mean"]) for row in rows] == [
        pytest.approx(100 * summary.raw_mean, abs=0.005) for summary in summaries
    ]
    assert report == output / "report.html"
    page = report.read_text(encoding="utf-8")
    assert page.startswith("<!")
    assert "Handwritten digits, imbalance ratio 50" in page


@pytest.mark.usefixtures("_one_epoch")
def test_run_demo__stops_at_an_interrupted_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits_run: ts.Run
) -> None:
    facts = digits_run.facts.model_copy(update={"state": "interrupted"})
    unfinished = ts.Run(digits_run.directory, digits_run.config, facts)
    monkeypatch.setattr(demo, "train", lambda config, output: unfinished)
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "demo")
    assert not (tmp_path / "demo" / "report.html").exists()


def test_run_demo__refuses_a_folder_that_exists(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError) as error:
        run_demo(tmp_path)
    assert str(error.value) == (
        f"`output` {tmp_path} exists. Name a new folder (--output)."
    )
    assert list(tmp_path.iterdir()) == []


def test_demo__is_softmax_balanced_softmax_and_lade_over_three_seeds() -> None:
    assert demo.DEMO_METHODS == ("softmax", "balanced_softmax", "lade")
    assert demo.SEEDS == (0, 1, 2)


def test_next_folder__is_the_first_free_number(tmp_path: Path) -> None:
    assert next_folder(tmp_path / "runs") == tmp_path / "runs" / "demo-1"
    for number in (1, 2, 4):
        (tmp_path / f"demo-{number}").mkdir()
    assert next_folder(tmp_path) == tmp_path / "demo-3"


def test_summarise_runs__averages_over_seeds(digits_run: ts.Run) -> None:
    run = demo.report_run(digits_run)
    assert (run.method, run.seed, run.name) == ("LADE", 0, str(digits_run.directory))
    [summary] = summarise_runs([run, run], ["uniform"])
    assert (summary.method, summary.num_runs, summary.raw_sd) == ("LADE", 2, 0)


def _copied(run: ts.Run, output: Path, logit_prior: VectorLike | None) -> None:
    """Put a copy of a run into a demonstration, its logits said to carry a prior."""
    copy = output / "runs" / "copy"
    shutil.copytree(run.directory, copy)
    if logit_prior is not None:
        path = copy / "predictions" / "test.safetensors"
        prior = priors.from_counts(logit_prior)
        changed = dataclasses.replace(run.predictions(), logit_prior=prior)
        changed.save(path, overwrite=True)


def test_why_not_helped__says_nothing_where_compensation_helps(
    tmp_path: Path, digits_run: ts.Run
) -> None:
    raw, compensated = ts.evaluate(digits_run.predictions(), ["backward:50"])
    assert compensated.accuracy > raw.accuracy
    _copied(digits_run, tmp_path, None)
    assert why_not_helped(tmp_path) == []


def test_why_not_helped__names_what_was_taken_for_granted(
    tmp_path: Path, digits_run: ts.Run
) -> None:
    """Logits said to carry a backward prior are pushed towards frequent classes."""
    _copied(digits_run, tmp_path, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
    run = ts.load_run(tmp_path / "runs" / "copy")
    raw, compensated = ts.evaluate(run.predictions(), ["backward:50"])
    assert compensated.accuracy < raw.accuracy
    [sentence] = why_not_helped(tmp_path)
    beginning, _, number = sentence.rpartition(" ")
    assert beginning == (
        f"LADE with seed 0: on backward 50 compensation gives "
        f"{100 * compensated.accuracy:.1f} % instead of {100 * raw.accuracy:.1f} % "
        f"({raw.num_samples} images). It takes the logits to carry a prior (uniform) "
        "and to be log-probabilities, but on validation images they are so only when "
        "divided by"
    )
    val = run.predictions("val")
    p_val = priors.from_labels(val.labels, 10).float()
    likelihood = {
        t: torch.nn.functional.cross_entropy((val.logits + p_val.log()) / t, val.labels)
        for t in (torch.arange(1, 400) / 100).tolist()
    }
    best = min(likelihood, key=lambda t: float(likelihood[t]))
    assert float(number.removesuffix(".")) == pytest.approx(best, rel=0.06)
