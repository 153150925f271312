"""Random crop and horizontal flip of a whole batch, decided sample by sample."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.randomness import Stream, hashed_below


@dataclass(frozen=True)
class Augmentation:
    """Crop from a zero-padded image, then mirror; the default leaves images alone.

    What happens to a sample depends only on (seed, epoch, its sample id), so a batch
    may be split, reordered or resumed and every image stays the same.

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
        self, images: Tensor, *, seed: int, epoch: int, sample_ids: Tensor
    ) -> Tensor:
        """Return the augmented batch.

        Args:
            images: The batch, uint8, shape (B, c, H, W); it is not changed.
            seed: The run's seed.
            epoch: The epoch, so that each one sees other crops.
            sample_ids: Which sample each image is, shape (B,).
        """
        if sample_ids.shape != images.shape[:1]:
            raise ValueError(
                f"`sample_ids` must be one for each of the {len(images)} images, but "
                f"has shape {tuple(sample_ids.shape)}."
            )
        ids = sample_ids.numpy()
        if self.padding:
            images = self._crop(images, seed, epoch, ids)
        if self.flip:
            images = self._flip(images, seed, epoch, ids)
        return images

    def _crop(
        self, images: Tensor, seed: int, epoch: int, ids: NDArray[np.int64]
    ) -> Tensor:
        height, width = images.shape[2:]
        pad, shifts = self.padding, 2 * self.padding + 1
        rows = hashed_below(shifts, ids, seed=seed, epoch=epoch, stream=Stream.CROP_ROW)
        columns = hashed_below(
            shifts, ids, seed=seed, epoch=epoch, stream=Stream.CROP_COLUMN
        )
        padded = np.zeros(
            (*images.shape[:2], height + 2 * pad, width + 2 * pad), dtype=np.uint8
        )
        padded[:, :, pad : pad + height, pad : pad + width] = images.numpy()
        windows = np.lib.stride_tricks.sliding_window_view(
            padded, (height, width), axis=(2, 3)
        )  # (B, c, shifts, shifts, H, W), a view
        return torch.from_numpy(windows[np.arange(len(ids)), :, rows, columns])

    def _flip(
        self, images: Tensor, seed: int, epoch: int, ids: NDArray[np.int64]
    ) -> Tensor:
        coins = hashed_below(2, ids, seed=seed, epoch=epoch, stream=Stream.FLIP)
        mirrored = torch.from_numpy(np.flatnonzero(coins))
        return images.index_copy(0, mirrored, images.index_select(0, mirrored).flip(-1))
