"""Finished runs and kept logits are found by what was trained."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tailshift import Run
from tailshift.recipes import load_recipe
from tailshift.runs.index import (
    changed_settings,
    find_kept,
    find_runs,
    is_run_of,
    kept_name,
)
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


RECIPE = "cifar100_lt_ir100_lade_short"


@pytest.mark.parametrize(
    ("seed", "subset_seed", "changed"),
    [
        (0, None, {}),
        (0, 0, {}),
        (3, None, {"seed": 3}),
        (3, 3, {"seed": 3}),
        (3, 0, {"seed": 3, "data.subset_seed": 0}),
    ],
)
def test_changed_settings__subset_seed_follows_the_seed(
    seed: int, subset_seed: int | None, changed: dict[str, int]
) -> None:
    config = load_recipe(RECIPE, [f"seed={seed}"])
    data = dataclasses.replace(config.data, subset_seed=subset_seed)
    config = config.model_copy(update={"data": data})
    assert changed_settings(config) == changed
    subset = "" if len(changed) < 2 else "-data.subset_seed0"
    assert kept_name(config).endswith(f"official{subset}-seed{seed}.safetensors")


def test_find_kept__by_recipe_mode_and_seed(tmp_path):
    names = [
        "digits_lt-lade-paper-seed0.safetensors",
        "digits_lt-lade-paper-seed10.safetensors",
        "digits_lt-lade-paper-seed2.safetensors",
        "digits_lt-lade-official-seed3.safetensors",
        "digits_lt_more-paper-seed4.safetensors",
        "digits_lt-lade-paper-seed5.weights.safetensors",
        "digits_lt-seed6.safetensors",
    ]
    for name in names:
        (tmp_path / name).touch()
    lade = load_recipe("digits_lt", ["method.name=lade", "seed=7"])
    found = find_kept(tmp_path, lade)
    assert list(found) == [0, 2, 10]
    assert found[10] == tmp_path / names[1]
    assert list(find_kept(tmp_path, load_recipe("digits_lt"))) == [6]


def test_kept_name__tells_methods_and_settings_apart() -> None:
    names = {
        kept_name(load_recipe("cifar100_lt_ir100_softmax_quick", changes))
        for changes in (
            [],
            ["method.name=ncm"],
            ["method.name=tau_norm", "method.tau=1.0"],
            ["method.name=tau_norm"],
            ["method.name=lade"],
            ["method.name=lade", "method.class_weights=uniform"],
            ["optim.weight_decay=0.002"],
            ["model.name=timm:resnet18"],
            ["train.precision=bf16-mixed"],  # as the machine likes: no other run
        )
    }
    assert len(names) == 8
    assert "cifar100_lt_ir100_softmax_quick-tau_norm-tau1.0-seed0.safetensors" in names


def test_kept_name__is_found_again(tmp_path):
    config = load_recipe("cifar100_lt_ir100_softmax_quick", ["seed=3"])
    (tmp_path / kept_name(config)).touch()
    assert list(find_kept(tmp_path, config)) == [3]


def test_kept_name__of_a_recipe_of_ones_own_has_the_method(tmp_path: Path) -> None:
    """Whatever the file said, two methods of it are two files."""
    file = tmp_path / "mine.toml"
    file.write_text('extends = "digits_lt"\n[method]\nname = "lade"\nalpha = 0.5\n')
    changes = [[], ["method.name=softmax"], ["method.name=ncm"], ["method.alpha=0.1"]]
    assert [kept_name(load_recipe(file, change)) for change in changes] == [
        "mine-lade-paper-alpha0.5-seed0.safetensors",
        "mine-softmax-seed0.safetensors",
        "mine-ncm-seed0.safetensors",
        "mine-lade-paper-seed0.safetensors",
    ]


def test_find_kept__whatever_the_recipe_is_called(tmp_path: Path) -> None:
    config = load_recipe("digits_lt", ["recipe=seed0", "seed=4"])
    (tmp_path / kept_name(config)).touch()
    assert list(find_kept(tmp_path, config)) == [4]


def test_kept_name__leads_to_no_other_folder() -> None:
    config = load_recipe("digits_lt", ["recipe=../../x"])
    with pytest.raises(ValueError, match="file name") as error:
        kept_name(config)
    assert str(error.value) == (
        "`recipe` must be a file name, without slashes, colons, control characters or "
        "a dot in front, but is '../../x'. Rename it."
    )


def test_kept_name__settings_lead_to_no_other_folder() -> None:
    """A plugin's method may take any text, which a stranger's config.json gives."""
    config = load_recipe("digits_lt", ["method.name=lade"])
    changes: dict[str, Any] = {"class_weights": "/../../../x"}
    method = dataclasses.replace(config.method, **changes)
    with pytest.raises(ValueError, match="file name") as error:
        kept_name(config.model_copy(update={"method": method}))
    assert str(error.value) == (
        "`kept_name` must be a file name, without slashes, colons, control characters "
        "or a dot in front, but is "
        "'digits_lt-lade-paper-class_weights/../../../x-seed'. Rename it."
    )
