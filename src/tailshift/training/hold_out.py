"""A validation split taken out of the training images, class by class."""

import dataclasses

import torch

from tailshift.data import LongTailedData
from tailshift.data.hold_out import hold_out


def with_validation(
    data: LongTailedData, fraction: float = 0.1, *, seed: int = 0
) -> LongTailedData:
    """Return the data with a share of its training images as the validation split.

    Each class gives the share, rounded, but at least one image and never its last:
    both splits have all classes, but for those with a single image, which stays in
    training. The choice depends on the images, not on their order. The test split is
    left as it is.

    Args:
        data: Data without a validation split.
        fraction: Share of each class, in (0, 1).
        seed: Another seed holds out other images.

    Example:
        >>> from tailshift.data import DigitsLT
        >>> data = dataclasses.replace(DigitsLT().load(root=None, seed=0), val=None)
        >>> with_validation(data).class_counts
        tensor([90, 58, 37, 24, 15, 10,  6,  3,  2,  1])
    """
    if data.val is not None:
        raise ValueError(
            f"`data` must have no validation split, but {data.name} has one of "
            f"{len(data.val)} images."
        )
    if not 0 < fraction < 1:
        raise ValueError(f"`fraction` must be in (0, 1), but is {fraction:g}.")
    split = data.train
    chosen = hold_out(split.keys(), split.labels, {"val": fraction}, seed=seed)
    train, val = (split.subset(torch.from_numpy(chosen[k])) for k in ("train", "val"))
    return dataclasses.replace(
        data, train=train, val=val, fingerprint=train.fingerprint()
    )
