"""Strong augmentation of training images: AutoAugment, RandAugment and cutout."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tailshift.data.randomness import Stream, hashed_below, hashed_integers

Policy: TypeAlias = Literal["none", "auto", "rand"]
"""Random operations after cropping and flipping: none, AutoAugment or RandAugment."""

Augment: TypeAlias = Literal["crop_flip", "auto", "rand"]
"""What a benchmark's setting ``data.augment`` takes."""

POLICY_TITLES = {"auto": "AutoAugment", "rand": "RandAugment"}


def augment_policy(augment: str) -> Policy:
    """Return the policy that a value of ``data.augment`` adds.

    Example:
        >>> augment_policy("crop_flip"), augment_policy("rand")
        ('none', 'rand')
    """
    if augment not in get_args(Augment):
        raise ValueError(
            f"`augment` must be crop_flip, auto or rand, but is {augment!r}."
        )
    return "auto" if augment == "auto" else "rand" if augment == "rand" else "none"


def check_policy(policy: str) -> None:
    """Reject the name of a policy that is not known."""
    if policy not in get_args(Policy):
        raise ValueError(f"`policy` must be none, auto or rand, but is {policy!r}.")


def check_cutout(cutout: int, image_size: int | None = None) -> None:
    """Reject a cutout square that is negative or larger than the image.

    Args:
        cutout: Height and width of the square.
        image_size: Height and width of the image; None if it is not known.
    """
    if image_size is None:
        if cutout < 0:
            raise ValueError(f"`cutout` must be >= 0 pixels, but is {cutout}.")
    elif not 0 <= cutout <= image_size:
        raise ValueError(
            f"`cutout` must be in 0..{image_size} pixels (the image's size), but is "
            f"{cutout}."
        )


@cache
def policy_transform(
    policy: Literal["auto", "rand"], *, kind: Literal["cifar", "photos"]
) -> Callable[[Any], Any]:
    """Return torchvision's transform, which draws from PyTorch's default generator.

    Args:
        policy: AutoAugment [cubuk2019] or RandAugment [cubuk2020] (two operations of
            magnitude 9 of 31).
        kind: Which images AutoAugment's policy was learnt on: CIFAR-10 or ImageNet.
    """
    from torchvision.transforms import v2  # slow to import: only when needed

    if policy == "rand":
        return v2.RandAugment()  # type: ignore[no-any-return]
    learnt = v2.AutoAugmentPolicy
    return v2.AutoAugment(learnt.CIFAR10 if kind == "cifar" else learnt.IMAGENET)  # type: ignore[no-any-return]


@contextmanager
def default_generator_restored() -> Iterator[torch.Generator]:
    """Yield PyTorch's default generator, and restore its state afterwards."""
    generator = torch.default_generator
    state = generator.get_state()
    try:
        yield generator
    finally:
        generator.set_state(state)


def apply_policy(
    images: Tensor,
    policy: Policy,
    *,
    seed: int,
    epoch: int,
    sample_ids: NDArray[np.int64],
    occurrences: NDArray[np.int64] | None = None,
) -> Tensor:
    """Return small images after a policy, each with a generator of its own.

    An image's generator is seeded by a hash of (seed, epoch, sample id, occurrence), so
    the result does not depend on the batch that the image is in.

    Args:
        images: uint8, shape (B, c, H, W) with 1 or 3 channels; they are not changed.
        policy: ``"none"`` returns the images.
        seed: The run's seed.
        epoch: The epoch.
        sample_ids: Which sample each image is, shape (B,).
        occurrences: Which of its draws in the epoch it is, from 0, shape (B,).
    """
    if policy == "none":
        return images
    transform = policy_transform(policy, kind="cifar")
    seeds = hashed_integers(
        sample_ids,
        seed=seed,
        epoch=epoch,
        stream=Stream.POLICY,
        occurrences=occurrences,
    )
    augmented = torch.empty_like(images)
    with default_generator_restored() as generator:
        for row, own in enumerate(seeds.tolist()):
            generator.manual_seed(own)
            augmented[row] = transform(images[row])
    return augmented


@dataclass(frozen=True)
class Cutout:
    """Replace a random square of each normalised image with zeros [devries2017].

    Zero is the mean of the pixels after normalisation. The square's centre is uniform
    over the image's pixels; what lies outside the image is cut off. Where it lies is a
    function of (seed, epoch, sample id, occurrence).

    Example:
        >>> images = torch.ones(2, 3, 8, 8)
        >>> cut = Cutout(4)(images, seed=0, epoch=0, sample_ids=np.arange(2))
        >>> [int((image[0] == 0).sum()) for image in cut]
        [16, 8]
    """

    size: int = 0
    """Height and width of the square in pixels; 0 leaves the images as they are."""

    def __post_init__(self) -> None:
        check_cutout(self.size)

    def __call__(
        self,
        images: Tensor,
        *,
        seed: int,
        epoch: int,
        sample_ids: NDArray[np.int64],
        occurrences: NDArray[np.int64] | None = None,
    ) -> Tensor:
        """Return the images, which are changed in place.

        Args:
            images: Normalised, shape (B, c, H, W).
            seed: The run's seed.
            epoch: The epoch.
            sample_ids: Which sample each image is, shape (B,).
            occurrences: Which of its draws in the epoch it is, from 0, shape (B,).
        """
        if not self.size:
            return images
        inside = []
        for side, stream in zip(
            images.shape[2:], (Stream.CUTOUT_ROW, Stream.CUTOUT_COLUMN), strict=True
        ):
            centres = hashed_below(
                side,
                sample_ids,
                seed=seed,
                epoch=epoch,
                stream=stream,
                occurrences=occurrences,
            )
            offsets = torch.arange(side) - torch.from_numpy(centres)[:, None]
            first = -(self.size // 2)  # pixels from first to first + size − 1
            inside.append((first <= offsets) & (offsets < first + self.size))
        square = inside[0][:, None, :, None] & inside[1][:, None, None, :]
        return images.masked_fill_(square, 0)
