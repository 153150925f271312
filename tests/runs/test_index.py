import dataclasses

import pytest

from tailshift import load_recipe
from tailshift.runs.index import changed_settings, kept_name

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
