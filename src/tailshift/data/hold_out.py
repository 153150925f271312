"""Hold out a share of each class, chosen by the hash of an image's name."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def hold_out(
    keys: Sequence[str],
    labels: Tensor,
    fractions: Mapping[str, float],
    *,
    seed: int = 0,
) -> dict[str, NDArray[np.int64]]:
    """Return the positions of each held-out split and of ``train``, ascending.

    Of n images of a class a split gets its fraction, rounded, but at least one; the
    last image stays in training, and where that leaves too few the earlier split goes
    first. What is chosen does not depend on the images' order.

    Args:
        keys: What tells each image apart.
        labels: Class indices, shape (N,).
        fractions: Share of each split, in (0, 1), in the order they are filled.
        seed: Another seed chooses other images.

    Example:
        >>> import torch
        >>> keys = [f"{i}.jpg" for i in range(12)]
        >>> labels = torch.tensor([0] * 9 + [1] * 2 + [2])
        >>> chosen = hold_out(keys, labels, {"test": 0.3, "val": 0.1})
        >>> {split: labels[ids].tolist() for split, ids in chosen.items()}
        {'test': [0, 0, 0, 1], 'val': [0], 'train': [0, 0, 0, 0, 0, 1, 2]}
    """
    hashes = [hashlib.sha256(_bytes(f"{key}\0{seed}")).digest() for key in keys]
    chosen: dict[str, list[int]] = {split: [] for split in (*fractions, "train")}
    classes: dict[int, list[int]] = {}
    for i in sorted(range(len(keys)), key=hashes.__getitem__):
        classes.setdefault(int(labels[i]), []).append(i)
    for members in classes.values():
        left = len(members)
        for split, fraction in fractions.items():
            count = min(max(1, int(fraction * len(members) + 0.5)), left - 1)
            chosen[split] += members[left - count : left]
            left -= count
        chosen["train"] += members[:left]
    return {split: np.sort(np.array(ids, np.int64)) for split, ids in chosen.items()}


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")  # a file's name may be no UTF-8
