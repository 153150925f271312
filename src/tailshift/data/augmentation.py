"""Random crop and horizontal flip of a whole batch, decided sample by sample."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.randomness import Stream, hashed_below


@dataclass(frozen=True)
class Augmentation:
    """Crop from a zero-padded image, then mirror; the default leaves images alone.

    What happens to a sample depends only on (seed, epoch, its sample id, which of its
    servings in the epoch it is), so a batch may be split, reordered or resumed and
    every image stays the same.

    Example:
        >>> augment = Augmentation(padding=4, flip=True)
        >>> images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
        >>> augment(images, seed=0, epoch=0, sample_ids=torch.tensor([7, 9])).shape
        torch.Size([2, 3, 32, 32])
    """

    padding: int = 0
    """Pixels of zeros on each side; shifts are uniform in −padding..padding."""

    flip: bool = False
    """Mirror left and right with probability one half."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"`padding` must be >= 0, but is {self.padding}.")

    def __call__(
        self,
        images: Tensor,
        *,
        seed: int,
        epoch: int,
        sample_ids: Tensor,
        occurrences: Tensor | None = None,
    ) -> Tensor:
        """Return the augmented batch.

        Args:
            images: The batch, uint8, shape (B, c, H, W); it is not changed.
            seed: The run's seed.
            epoch: The epoch, so that each one sees other crops.
            sample_ids: Which sample each image is, shape (B,).
            occurrences: Which of its servings in the epoch it is, from 0, shape (B,);
                None is 0 for all.
        """
        if sample_ids.shape != images.shape[:1]:
            raise ValueError(
                f"`sample_ids` must be one for each of the {len(images)} images, but "
                f"has shape {tuple(sample_ids.shape)}."
            )
        below = partial(
            hashed_below,
            sample_ids=sample_ids.numpy(),
            seed=seed,
            epoch=epoch,
            occurrences=None if occurrences is None else occurrences.numpy(),
        )
        if self.padding:
            shifts = 2 * self.padding + 1
            rows = below(shifts, stream=Stream.CROP_ROW)
            columns = below(shifts, stream=Stream.CROP_COLUMN)
            images = self._crop(images, rows, columns)
        if self.flip:
            images = _flip(images, below(2, stream=Stream.FLIP))
        return images

    def _crop(
        self, images: Tensor, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Tensor:
        height, width = images.shape[2:]
        pad = self.padding
        padded = np.zeros(
            (*images.shape[:2], height + 2 * pad, width + 2 * pad), dtype=np.uint8
        )
        padded[:, :, pad : pad + height, pad : pad + width] = images.numpy()
        windows = np.lib.stride_tricks.sliding_window_view(
            padded, (height, width), axis=(2, 3)
        )  # (B, c, shifts, shifts, H, W), a view
        return torch.from_numpy(windows[np.arange(len(rows)), :, rows, columns])


def _flip(images: Tensor, coins: NDArray[np.int64]) -> Tensor:
    """Mirror the images whose coin is 1."""
    mirrored = torch.from_numpy(np.flatnonzero(coins))
    return images.index_copy(0, mirrored, images.index_select(0, mirrored).flip(-1))
