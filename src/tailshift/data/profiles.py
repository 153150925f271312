"""Long-tailed profiles: how many training images each class keeps."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from tailshift.priors import check_imbalance_ratio, long_tailed_counts
from tailshift.registry import Registry

Profile: TypeAlias = Literal["exponential", "step"]

PROFILES: Registry[Callable[[int, float, int], Tensor]] = Registry("profile")


def step_counts(max_count: int, imbalance_ratio: float, num_classes: int) -> Tensor:
    """Return the largest count for the first half of the classes, the smallest after.

    With an odd number of classes the larger half is the rare one.

    Args:
        max_count: Images of a frequent class.
        imbalance_ratio: Largest / smallest count, >= 1.
        num_classes: C.

    Returns:
        Counts, int64, shape (C,).

    Example:
        >>> step_counts(500, 100, 5)
        tensor([500, 500,   5,   5,   5])
    """
    check_imbalance_ratio(imbalance_ratio)
    counts = torch.full((num_classes,), int(max_count / imbalance_ratio + 1e-9))
    counts[: num_classes // 2] = max_count
    return counts


def profile_counts(
    profile: str, max_count: int, imbalance_ratio: float, num_classes: int
) -> Tensor:
    """Return the counts of a profile by name, int64, shape (C,), each at least 1.

    Example:
        >>> profile_counts("exponential", 500, 100, 5)
        tensor([500, 158,  50,  15,   5])
    """
    counts = PROFILES.get(profile)(max_count, imbalance_ratio, num_classes)
    if counts.min() < 1:
        raise ValueError(
            f"`imbalance_ratio` must be <= {max_count} (the images of the largest "
            f"class), but is {imbalance_ratio:g}: class {int(counts.argmin())} would "
            "have no image."
        )
    return counts


PROFILES.add("exponential", long_tailed_counts)
PROFILES.add("step", step_counts)
