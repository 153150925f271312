"""Kept logits: the test logits of finished runs, found by the names of their files."""

import re
from pathlib import Path

from tailshift.config import RunConfig


def kept_name(config: RunConfig) -> str:
    """Return the name that a run's logits are kept under.

    Example:
        >>> from tailshift.recipes import load_recipe
        >>> kept_name(load_recipe("digits_lt", ["method.name=lade", "seed=2"]))
        'digits_lt-paper-seed2.safetensors'
    """
    mode = config.to_mapping()["method"].get("mode", "")
    parts = [config.recipe, *([mode] if mode else []), f"seed{config.seed}"]
    return f"{'-'.join(parts)}.safetensors"


def find_kept(folder: Path, config: RunConfig) -> dict[int, Path]:
    """Return the kept logits of a recipe's runs, by seed.

    Args:
        folder: Where `tailshift evaluate --logits` kept them.
        config: The recipe as it is, without other settings: a file's name has no more
            than recipe, mode and seed.
    """
    name = kept_name(config.model_copy(update={"seed": 0}))
    pattern = re.escape(name).replace("seed0", r"seed(\d+)")
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        match = re.fullmatch(pattern, path.name)
        if match:
            found[int(match[1])] = path
    return dict(sorted(found.items()))
