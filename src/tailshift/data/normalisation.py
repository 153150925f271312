"""Normalise pixels by mean and standard deviation."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Normalisation:
    """Map uint8 pixels to (pixel/255 − mean)/std, as one scale and one shift a channel.

    Args:
        mean: Per channel, of pixels in [0, 1].
        std: Per channel, of pixels in [0, 1].

    Example:
        >>> pixels = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)  # (1, 1, 1, 2)
        >>> Normalisation(mean=[0.5], std=[0.25])(pixels)
        tensor([[[[-2.,  2.]]]])
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std):
            raise ValueError(
                f"`mean` has {len(mean)} entries but `std` has {len(std)}."
            )
        if min(std) <= 0:
            raise ValueError(f"`std` must be > 0, but is {tuple(std)}.")
        m, s = (
            torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std)
        )
        self._scale, self._shift = (
            (1 / (255 * s)).float(),
            (-m / s).float(),
        )  # (c, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Return float32 of the same shape.

        Args:
            images: uint8, shape (B, c, H, W) or (c, H, W).
        """
        return images.to(torch.float32).mul_(self._scale).add_(self._shift)
