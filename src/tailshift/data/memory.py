"""A split held in memory, and its loader: vectorised, augmented, without workers."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.batches import Batch, BatchPlan, Loader, Request
from tailshift.data.dataset import Split
from tailshift.data.images import Views, expanded, five_crops
from tailshift.data.randomness import Stream, hashed_below
from tailshift.data.strong_augmentation import (
    POLICY_TITLES,
    Cutout,
    Policy,
    apply_policy,
    check_cutout,
    check_policy,
)


@dataclass(frozen=True)
class Augmentation:
    """Crop from a zero-padded image, flip, rotate, apply a policy and cut out a square.

    The default leaves images as they are. What happens to a sample depends only on
    (seed, epoch, sample id, which of its draws in the epoch it is), so a batch may be
    split, reordered or resumed and every image stays the same.

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

    rotation: float = 0.0
    """Degrees; images are turned by up to so much either way, zeros around them."""

    policy: Policy = "none"
    """``"auto"``: AutoAugment with the policy learnt on CIFAR-10; ``"rand"``:
    RandAugment. Both have torchvision's operations and settings."""

    cutout: int = 0
    """Height and width of the square that :class:`MemoryLoader` sets to the mean pixel
    after normalisation; 0 for none."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"`padding` must be >= 0, but is {self.padding}.")
        if not 0 <= self.rotation <= 180:
            raise ValueError(
                f"`rotation` must be in [0, 180] degrees, but is {self.rotation:g}."
            )
        check_policy(self.policy)
        check_cutout(self.cutout)

    def __str__(self) -> str:
        """Return what is done, for people.

        Example:
            >>> print(Augmentation(padding=4, flip=True))
            in training shifted by up to 4 pixels, mirrored
        """
        shifted = f"shifted by up to {self.padding} pixels" if self.padding else ""
        turned = f"turned by up to {self.rotation:g}°" if self.rotation else ""
        policy = POLICY_TITLES.get(self.policy, "")
        cutout = f"cutout of {self.cutout} pixels" if self.cutout else ""
        parts = [shifted, "mirrored" if self.flip else "", turned, policy, cutout]
        return f"in training {', '.join(filter(None, parts)) or 'as they are'}"

    def __call__(
        self,
        images: Tensor,
        *,
        seed: int,
        epoch: int,
        sample_ids: Tensor,
        occurrences: Tensor | None = None,
    ) -> Tensor:
        """Return the augmented batch, before normalisation and cutout.

        Args:
            images: The batch, uint8, shape (B, c, H, W); it is not changed.
            seed: The run's seed.
            epoch: The epoch, so that each one sees other crops.
            sample_ids: Which sample each image is, shape (B,).
            occurrences: Which of its draws in the epoch it is, from 0, shape (B,);
                None is 0 for all.
        """
        if sample_ids.shape != images.shape[:1]:
            raise ValueError(
                f"`sample_ids` must be one for each of the {len(images)} images, but "
                f"has shape {tuple(sample_ids.shape)}."
            )
        of_sample: dict[str, Any] = {
            "sample_ids": sample_ids.numpy(),
            "seed": seed,
            "epoch": epoch,
            "occurrences": None if occurrences is None else occurrences.numpy(),
        }

        def below(bound: int, stream: Stream) -> NDArray[np.int64]:
            return hashed_below(bound, stream=stream, **of_sample)

        if self.padding:
            shifts = 2 * self.padding + 1
            rows = below(shifts, stream=Stream.CROP_ROW)
            columns = below(shifts, stream=Stream.CROP_COLUMN)
            images = self._crop(images, rows, columns)
        if self.flip:
            images = _flip(images, below(2, stream=Stream.FLIP))
        if self.rotation:
            turns = below(2**32, stream=Stream.ROTATION) / 2**31 - 1  # in [−1, 1)
            images = _rotate(images, torch.from_numpy(self.rotation * turns))
        return apply_policy(images, self.policy, **of_sample)

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


def _rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn each image about its middle; a pixel takes the nearest one's value."""
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    ratio, zero = images.shape[2] / images.shape[3], torch.zeros_like(cos)
    rows = [cos, -sin * ratio, zero, sin / ratio, cos, zero]  # coordinates in [−1, 1]
    turns = torch.stack(rows, dim=1).view(-1, 2, 3)
    grid = F.affine_grid(turns.float(), list(images.shape), align_corners=False)
    turned = F.grid_sample(images.float(), grid, mode="nearest", align_corners=False)
    return turned.to(images.dtype)


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


@dataclass(frozen=True, eq=False)
class MemorySplit(Split):
    """Images and labels of one split, all of one size.

    Example:
        >>> images = torch.zeros(5, 1, 8, 8, dtype=torch.uint8)
        >>> split = MemorySplit(images, torch.arange(5), mean=(0.5,), std=(0.5,))
        >>> loader = split.loader(batch_size=2, training=False)
        >>> [batch.labels.tolist() for batch in loader.epoch(0)]
        [[0, 1], [2, 3], [4]]
    """

    images: Tensor
    """uint8, shape (N, channels, H, W)."""

    labels: Tensor
    """Class indices, int64, shape (N,)."""

    mean: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    std: tuple[float, ...]
    """Per channel, of pixels in [0, 1]."""

    augmentation: Augmentation = field(default_factory=Augmentation)
    """Applied in training."""

    views: Views = "one"
    """How the images are seen in evaluation."""

    def __post_init__(self) -> None:
        images = self.images
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(
                "`images` must be uint8 of shape (N, channels, H, W), but is "
                f"{images.dtype} of shape {tuple(images.shape)}."
            )
        self._check_labels(len(images))
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.in_channels:
                raise ValueError(
                    f"`{name}` has {len(values)} entries but the images have "
                    f"{self.in_channels} channels."
                )

    @property
    def in_channels(self) -> int:
        """Channels of an image: 3 for colour, 1 for grey."""
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        """Height of the images, which are square."""
        return self.images.shape[2]

    def subset(self, rows: Tensor) -> "MemorySplit":
        """Return the split of some rows: their indices, or a mask, shape (N,)."""
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def seen_in(self, views: Views) -> "MemorySplit":
        """Return the split whose images are seen so in evaluation."""
        return replace(self, views=views)

    def keys(self) -> tuple[str, ...]:
        """Return the SHA-256 of each image's pixels, in hex digits."""
        return tuple(digest.hex() for digest in image_hashes(self.images.numpy()))

    def fingerprint(self) -> str:
        """Return 16 hex digits that tell which images these are, in whatever order.

        Example:
            >>> images = torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2)
            >>> split = MemorySplit(images, torch.tensor([0, 1]), (0.5,), (0.5,))
            >>> split.fingerprint() == split.subset(torch.tensor([1, 0])).fingerprint()
            True
        """
        hashes = sorted(image_hashes(self.images.numpy()))
        return hashlib.sha256(b"".join(hashes)).hexdigest()[:16]

    def _loader(
        self, plan: BatchPlan, *, training: bool, num_workers: int | None
    ) -> Loader:
        return MemoryLoader(self, plan, training=training)


def _five_views(images: Tensor) -> Tensor:
    """Return the corners and the middle of enlarged images, (B, 5, c, H, W)."""
    from torchvision.transforms.v2.functional import resize  # slow to import

    size = images.shape[-1]
    return five_crops(resize(images, [expanded(size)] * 2), size)


def image_hashes(images: NDArray[np.uint8], *, salt: bytes = b"") -> list[bytes]:
    """Return the SHA-256 of each image's pixels followed by `salt`."""
    rows = np.ascontiguousarray(images).reshape(len(images), -1)
    return [hashlib.sha256(row.tobytes() + salt).digest() for row in rows]


class MemoryLoader(Loader):
    """Serve the batches of a plan from a split in memory.

    Args:
        split: Images and labels.
        plan: Which samples each batch has.
        training: Whether to augment them.
    """

    def __init__(self, split: MemorySplit, plan: BatchPlan, *, training: bool) -> None:
        super().__init__(plan)
        self.split = split
        self.augmentation = split.augmentation if training else None
        self._cutout = Cutout(split.augmentation.cutout if training else 0)
        self._normalise = Normalisation(split.mean, split.std)

    def _serve(self, requests: list[Request]) -> Iterator[Batch]:
        return map(self._batch, requests)

    def _batch(self, request: Request) -> Batch:
        ids = torch.from_numpy(request.sample_ids)
        images = self.split.images.index_select(0, ids)  # faster than images[ids]
        if self.augmentation is not None:
            images = self.augmentation(
                images,
                seed=self.plan.seed,
                epoch=request.epoch,
                sample_ids=ids,
                occurrences=torch.from_numpy(request.occurrences),
            )
        elif self.split.views == "five_crop":
            images = _five_views(images)
        images = self._cutout(
            self._normalise(images),
            seed=self.plan.seed,
            epoch=request.epoch,
            sample_ids=request.sample_ids,
            occurrences=request.occurrences,
        )
        return Batch(images, self.split.labels[ids], ids)
