"""Finished runs are found at any depth, and told apart by what was trained."""

import os
import shutil
from pathlib import Path

import pytest

from tailshift import Run, load_recipe
from tailshift.runs.index import find_runs, is_run_of
from tailshift.storage import read_json, write_json


def test_find_runs__at_any_depth(digits_run: Run, tmp_path: Path) -> None:
    for place in ("run", "deep/er/run"):
        shutil.copytree(digits_run.directory, tmp_path / place)
    found = {run.directory.relative_to(tmp_path) for run in find_runs(tmp_path)}
    assert found == {Path("run"), Path("deep/er/run")}


def test_find_runs__latest_last(digits_run: Run, tmp_path: Path) -> None:
    for place, when in (("a", 2_000), ("b", 1_000)):
        shutil.copytree(digits_run.directory, tmp_path / place)
        os.utime(tmp_path / place / "run.json", (when, when))
    assert [run.directory.name for run in find_runs(tmp_path)] == ["b", "a"]


def test_find_runs__leaves_out_what_is_not_finished(run_copy: Path) -> None:
    facts = read_json(run_copy / "run.json")
    facts["state"] = "interrupted"
    write_json(run_copy / "run.json", facts)
    assert find_runs(run_copy.parent) == []


def test_find_runs__tells_of_what_cannot_be_read(run_copy: Path) -> None:
    (run_copy / "config.json").unlink()
    said: list[str] = []
    assert find_runs(run_copy.parent, said.append) == []
    assert said == [
        f"skipped: {run_copy} is not a run directory: it has no config.json. "
        "`tailshift train` makes one."
    ]


def test_find_runs__of_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert find_runs(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("setting", "is_same"),
    [
        ("seed=7", True),
        ("train.checkpoint_every=5", True),
        ("train.precision=bf16-mixed", True),
        ("eval.half_logits=true", True),
        ("train.epochs=31", False),
        ("train.batch_size=32", False),
        ("optim.lr=0.1", False),
        ("method.name=lade", False),
        ("data.imbalance_ratio=10", False),
    ],
)
def test_is_run_of__by_all_that_decides_the_outcome(
    setting: str, is_same: bool
) -> None:
    recipe = load_recipe("digits_lt")
    assert is_run_of(load_recipe("digits_lt", [setting]), recipe) is is_same


def test_is_run_of__another_recipes_name_is_another_recipe() -> None:
    recipe = load_recipe("digits_lt")
    renamed = recipe.model_copy(update={"recipe": "digits_lt_held_out"})
    assert not is_run_of(renamed, recipe)
