import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tailshift.recipes import load_recipe
from tailshift.runs.index import find_kept, kept_name


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
