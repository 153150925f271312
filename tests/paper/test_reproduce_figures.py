"""Figures from runs: what is found, what is missing and what is trained."""

from pathlib import Path

import pytest

import tailshift as ts
from tailshift.config import RunConfig
from tailshift.paper.numbers import PAPER_FIGURES
from tailshift.paper.reproduce import PaperRequest, make_plan
from tailshift.recipes import recipe_names
from tailshift.report.plots import FIGURES

DIGITS = ("data.name=digits_lt", "model.name=digits_net", "train.epochs=1")
ALPHAS = ("0", "0.01", "0.1", "1")


def _alpha(config: RunConfig) -> str:
    """Return LADE's α; without LADER it is Balanced Softmax."""
    is_lade = config.method_name == "lade"
    return f"{config.method.alpha:g}" if is_lade else "0"


def test_paper_figures__can_be_drawn_and_have_recipes() -> None:
    recipes = set(recipe_names())
    for figure in PAPER_FIGURES.values():
        assert figure.name in FIGURES
        assert any(panel.recipe in recipes for panel in figure.panels)


def test_make_plan__trains_each_alpha_in_its_own_folder(tmp_path: Path) -> None:
    plan = make_plan(PaperRequest("figure3", tmp_path, seeds=(0, 2), quick=True))
    assert plan.runs() == []
    assert plan.draw(tmp_path / "figures") == []
    assert plan.lacking == [f"LADE (α = {alpha})" for alpha in ALPHAS]
    folders = [job.directory.relative_to(tmp_path).as_posix() for job in plan.missing]
    assert folders[::2] == [
        "cifar100_lt_ir100_balanced_softmax_quick/balanced_softmax-seed0",
        "cifar100_lt_ir100_lade_quick/lade-alpha0.01-seed0",
        "cifar100_lt_ir100_lade_quick/lade-seed0",
        "cifar100_lt_ir100_lade_quick/lade-alpha1-seed0",
    ]
    assert [_alpha(job.config) for job in plan.missing[::2]] == list(ALPHAS)
    assert [job.config.seed for job in plan.missing[:2]] == [0, 2]
    assert plan.title == (
        "Figure 3: Logits of each class as α grows, CIFAR-100-LT, imbalance ratio 100; "
        "ours: quick recipes, LADE in mode official"
    )


def test_reproduce__trains_what_is_missing_and_finds_it(tmp_path: Path) -> None:
    said: list[str] = []
    plan = ts.reproduce("figure3", runs=tmp_path, settings=DIGITS, announce=said.append)
    assert (plan.missing, plan.lacking, plan.faults) == ((), [], ())
    runs = plan.runs()
    assert [run.method for run in runs] == [f"LADE (α = {a})" for a in ALPHAS]
    assert [run.key for run in runs] == ["balanced_softmax", "lade", "lade", "lade"]
    assert len(said) == 4
    for run, alpha in zip(runs, ALPHAS, strict=True):
        assert _alpha(ts.load_run(run.name).config) == alpha
    svg, png = plan.draw(tmp_path / "figures")
    text = svg.read_text(encoding="utf-8")
    assert all(run.method in text for run in runs)
    assert png.stat().st_size > 1000
    with pytest.raises(FileExistsError, match=r"figure3\.svg exists"):
        plan.draw(tmp_path / "figures")
    request = PaperRequest("figure3", tmp_path, seeds=(0, 1), settings=DIGITS)
    more = make_plan(request)
    assert [job.config.seed for job in more.missing] == [1] * 4


def test_make_plan__takes_kept_logits_of_each_alpha(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    predictions = ts.Predictions(ts.priors.uniform(2)[None].float(), [0])
    for setting in ("", "alpha0.01-"):
        name = f"cifar100_lt_ir100_lade-official-{setting}seed5.safetensors"
        predictions.save(kept / name)
    plan = make_plan(PaperRequest("figure3", tmp_path, seeds=(5,), logits=kept))
    assert [(run.method, run.seed) for run in plan.runs()] == [
        ("LADE (α = 0.01)", 5),
        ("LADE (α = 0.1)", 5),
    ]
    assert [_alpha(job.config) for job in plan.missing] == ["0", "1"]


def test_make_plan__kept_logits_without_other_settings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="settings") as error:
        ts.reproduce("figure2", runs=tmp_path, settings=DIGITS, logits=tmp_path)
    assert str(error.value) == (
        "`logits` must come without `settings`: the names of kept logits do not say "
        "which settings they were trained with."
    )


def test_reproduce__dry_run_trains_nothing(tmp_path: Path) -> None:
    plan = ts.reproduce("figure6", runs=tmp_path / "runs", dry_run=True)
    assert plan.faults == ()
    assert {job.config.method_name for job in plan.missing} >= {"softmax", "lade"}
    assert list(tmp_path.iterdir()) == []
