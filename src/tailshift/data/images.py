"""Encoded images, one by one: where they are, how they are read and prepared."""

import io
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from tailshift.data.strong_augmentation import (
    POLICY_TITLES,
    Policy,
    check_cutout,
    check_policy,
    policy_transform,
)

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM")
"""What is decoded, whatever a file is called; others of Pillow start programs (EPS)."""

MOST_BYTES = 2**29
"""Largest size of a file that is read as an image."""

MOST_PIXELS = 120_000_000
"""Largest size of an image, before it is resized and after it."""

MOST_SIZE = 2048
"""Height and width that images are resized to, at most."""


class EncodedImages(Protocol):
    """JPEG, PNG and other files, wherever they are kept."""

    def __len__(self) -> int:
        """Return the number of images."""

    @property
    def keys(self) -> tuple[str, ...]:
        """What tells each image apart from the others, wherever the data lies."""

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """Length of each file, −1 if it is missing, shape (N,)."""

    def name(self, i: int) -> str:
        """Return where image i is, for messages."""

    def read(self, i: int) -> bytes:
        """Return the encoded image i."""

    def subset(self, rows: NDArray[np.int64]) -> "EncodedImages":
        """Return the images of some rows."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images in files below one folder."""

    root: Path
    """The folder."""

    paths: tuple[str, ...]
    """Each file's path from there, with forward slashes."""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def keys(self) -> tuple[str, ...]:
        """The paths."""
        return self.paths

    @cached_property
    def num_bytes(self) -> NDArray[np.int64]:
        """Length of each file, −1 if it is missing, shape (N,)."""
        return np.array([_num_bytes(self.root / path) for path in self.paths], np.int64)

    def name(self, i: int) -> str:
        """Return the path of image i."""
        return str(self.root / self.paths[i])

    def read(self, i: int) -> bytes:
        """Return what the file of image i holds."""
        return read_regular(self.root / self.paths[i])

    def subset(self, rows: NDArray[np.int64]) -> "ImageFiles":
        """Return the files of some rows."""
        return replace(self, paths=tuple(self.paths[row] for row in rows))


def _num_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def is_inside(path: str) -> bool:
    """Return whether a path stays below the folder it is relative to.

    Example:
        >>> is_inside("a/b.jpg"), is_inside("../b.jpg"), is_inside("/b.jpg")
        (True, False, False)
    """
    pure = PurePath(path)
    return not pure.anchor and ".." not in pure.parts and "\0" not in path


class BrokenImageError(ValueError):
    """An image cannot be read; the text says why, to follow its name."""


def read_regular(path: Path) -> bytes:
    """Return what a file holds, but nothing of a pipe, a device or a huge file.

    Raises:
        BrokenImageError: If it is one of them.
    """
    facts = path.stat()  # of what a link leads to
    if not stat.S_ISREG(facts.st_mode):
        raise BrokenImageError("is not a regular file")
    check_num_bytes(facts.st_size)
    with path.open("rb") as file:
        return file.read(facts.st_size + 1)  # no more, if it grows meanwhile


def check_num_bytes(num_bytes: int) -> None:
    """Refuse a file that is too long to be read for an image."""
    if num_bytes > MOST_BYTES:
        raise BrokenImageError(
            f"has {num_bytes:,} bytes, more than the {MOST_BYTES:,} that are read"
        )


def decode_image(encoded: bytes) -> Image.Image:
    """Return an encoded image in RGB, upright."""
    return to_rgb(open_image(encoded))


def load_image(
    images: EncodedImages,
    i: int,
    decode: Callable[[bytes], Image.Image] = decode_image,
) -> Image.Image:
    """Return image i, decoded.

    Raises:
        BrokenImageError: If it is missing or cannot be decoded.
    """
    try:
        return decode(images.read(i))
    except BrokenImageError:
        raise
    except FileNotFoundError:
        raise BrokenImageError("is missing") from None
    except UnidentifiedImageError:
        raise BrokenImageError("is not an image of a known format") from None
    except Exception as error:  # a broken file may raise almost anything
        raise BrokenImageError(f"cannot be read ({error})") from error


def open_image(encoded: bytes) -> Image.Image:
    """Return an image in the mode it is kept in, turned as its EXIF data says.

    Raises:
        BrokenImageError: If it is too large.
    """
    check_num_bytes(len(encoded))
    try:
        image: Image.Image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    except Image.DecompressionBombError:  # by Pillow's own limit, which is higher
        raise BrokenImageError(
            f"has more than the {MOST_PIXELS:,} pixels that are decoded"
        ) from None
    _check_pixels("", *image.size)
    _check_pixels("tiles of ", *_tile(image))
    image.load()
    with suppress(Exception):  # EXIF data may be damaged in a sound image
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _check_pixels(what: str, width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise BrokenImageError(
            f"has {what}{width} × {height} pixels, more than the {MOST_PIXELS:,} that "
            "are decoded"
        )


def _tile(image: Image.Image) -> tuple[int, int]:
    """Return the size of a TIFF file's tiles, which may be larger than its image."""
    tags = getattr(image, "tag_v2", {})
    width, height = (tags.get(tag, 0) for tag in (322, 323))
    is_known = isinstance(width, int) and isinstance(height, int)
    return (width, height) if is_known else (0, 0)  # Pillow refuses others


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB; 16-bit grey keeps its upper 8 bits, alpha is dropped.

    Raises:
        BrokenImageError: If its pixels are in floating point.
    """
    if image.mode == "F":
        raise BrokenImageError(
            "has pixels in floating point, whose range is not known; save it with 8 or "
            "16 bits"
        )
    if image.mode == "I" or image.mode.startswith("I;16"):
        grey = np.asarray(image).clip(0, 65535) // 256
        image = Image.fromarray(grey.astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


Transform: TypeAlias = Callable[[Image.Image], Tensor]
"""A decoded image in, uint8 of shape (3, image_size, image_size) out."""

Fit: TypeAlias = Literal["margin", "crop", "whole"]
"""What of an image is shown: see `Preparation.fit`."""

Views: TypeAlias = Literal["one", "five_crop"]
"""How an image is seen in evaluation: once, or its middle and its four corners."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preparation:
    """The transforms of a split of photographs.

    Example:
        >>> picture = Image.new("RGB", (500, 375))
        >>> Preparation(image_size=224).evaluation()(picture).shape
        torch.Size([3, 224, 224])
    """

    image_size: int = 224
    """Height and width of what comes out."""

    crop: Literal["resized", "random", "padded", "none"] = "resized"
    """In training: a random area and aspect ratio, resized (``RandomResizedCrop``); the
    whole image resized to a square 256/224 times as large, and a random crop; a shift
    by up to an eighth, zeros around it; or what evaluation sees."""

    area: float = 0.08
    """The smallest share of an image that a resized crop shows."""

    fit: Fit = "margin"
    """In evaluation: the middle of the image resized to 256/224 of it; the largest
    square in its middle; or all of it, resized to a square."""

    flip: bool = True
    """Mirror left and right with probability one half, in training."""

    jitter: float = 0.0
    """Brightness, contrast and saturation vary by this share, in training."""

    policy: Policy = "none"
    """In training, after all of these: ``"auto"`` is AutoAugment with the policy learnt
    on ImageNet, ``"rand"`` RandAugment, as torchvision has them."""

    cutout: int = 0
    """Height and width of the square that :class:`FileLoader` sets to the mean pixel
    after normalisation, in training; 0 for none."""

    def __post_init__(self) -> None:
        if not 1 <= self.image_size <= MOST_SIZE:
            raise ValueError(
                f"`image_size` must be in 1..{MOST_SIZE}, but is {self.image_size}."
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"`jitter` must be in [0, 1], but is {self.jitter:g}.")
        check_policy(self.policy)
        check_cutout(self.cutout, self.image_size)

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings for JSON; strong augmentation only if there is any.

        Feature caches of 0.2, which knew no strong augmentation, stay valid.

        Example:
            >>> "policy" in Preparation(32).to_mapping()
            False
        """
        later = {"policy": "none", "cutout": 0}
        settings = asdict(self)
        return {k: v for k, v in settings.items() if k not in later or v != later[k]}

    @property
    def resized(self) -> int:
        """The size of the shorter side before cropping: 256 for 224, with a margin."""
        ratio = 256 / 224 if self.fit == "margin" else 1
        return round(self.image_size * ratio)

    def __str__(self) -> str:
        """Return what is done, for people.

        Example:
            >>> print(Preparation(32, crop="padded", fit="whole", flip=False))
            resized to 32 × 32 pixels; in training shifted by up to 4, not mirrored
        """
        size = self.image_size
        steps = {
            "resized": f"cropped at random to {self.area:.0%} to 100% of the area",
            "random": "cropped at random",
            "padded": f"shifted by up to {size // 8}",
            "none": "not cropped",
        }
        parts = [steps[self.crop], "mirrored" if self.flip else "not mirrored"]
        if self.jitter:
            parts.append(f"colours changed by up to {self.jitter:.0%}")
        if self.policy != "none":
            parts.append(POLICY_TITLES[self.policy])
        if self.cutout:
            parts.append(f"cutout of {self.cutout} pixels")
        cut = "" if self.fit == "whole" else ", the middle of the image"
        return f"resized to {size} × {size} pixels{cut}; in training {', '.join(parts)}"

    def training(self) -> Transform:
        """Return the transform that draws from PyTorch's default generator.

        Cutout is not part of it: it follows normalisation.
        """
        from torchvision.transforms import v2  # slow to import: only when needed

        size = self.image_size
        if self.crop == "resized":
            steps: list[Any] = [v2.RandomResizedCrop(size, scale=(self.area, 1.0))]
        elif self.crop == "random":
            steps = [v2.Resize((self.resized, self.resized)), v2.RandomCrop(size)]
        else:
            steps = self._fitted()
        if self.crop == "padded":
            steps.append(v2.RandomCrop(size, padding=size // 8))
        if self.flip:
            steps.append(v2.RandomHorizontalFlip())
        if self.jitter:
            steps.append(v2.ColorJitter(self.jitter, self.jitter, self.jitter))
        if self.policy != "none":
            steps.append(policy_transform(self.policy, kind="photos"))
        return v2.Compose([*steps, v2.PILToTensor()])  # type: ignore[no-any-return]

    def evaluation(self, views: Views = "one") -> Transform:
        """Return the transform that draws nothing.

        Args:
            views: ``"five_crop"`` gives the corners and the middle of the image resized
                to 248/224, shape (5, 3, image_size, image_size).
        """
        from torchvision.transforms import v2

        if views == "five_crop":
            steps = [*self._resize(expanded(self.image_size)), v2.PILToTensor()]
            return v2.Compose([*steps, partial(five_crops, size=self.image_size)])  # type: ignore[no-any-return]
        return v2.Compose([*self._fitted(), v2.PILToTensor()])  # type: ignore[no-any-return]

    def _fitted(self) -> list[Any]:
        from torchvision.transforms import v2

        steps = self._resize(self.resized)
        return (
            steps if self.fit == "whole" else [*steps, v2.CenterCrop(self.image_size)]
        )

    def _resize(self, size: int) -> list[Any]:
        """Return what resizes the whole image to a square, or its shorter side."""
        from torchvision.transforms import v2

        if self.fit == "whole":
            return [v2.Resize((size, size))]
        return [partial(check_narrow, size=size), v2.Resize(size)]


def check_narrow(image: Image.Image, size: int) -> Image.Image:
    """Return an image, but refuse one that is too long when its short side is resized.

    One pixel by 100,000 are a small file, but 6.5 billion pixels at a height of 256.

    Args:
        image: Any.
        size: What its shorter side is resized to.
    """
    short, long = sorted(image.size)
    if size * size * long > MOST_PIXELS * short:
        width, height = image.size
        raise BrokenImageError(
            f"has {width} × {height} pixels, too long and narrow to be resized to "
            f"{size} at its shorter side"
        )
    return image


def expanded(size: int) -> int:
    """Return the size that five crops are taken of.

    Example:
        >>> expanded(224), expanded(32)
        (248, 35)
    """
    return size + round(size * 24 / 224)


def five_crops(images: Tensor, size: int) -> Tensor:
    """Return the corners and the middle of images, shape (…, 5, c, size, size).

    Args:
        images: Shape (…, c, H, W).
        size: Height and width of a crop.

    Example:
        >>> five_crops(torch.arange(9).view(1, 3, 3), 1).flatten().tolist()
        [0, 2, 6, 8, 4]
    """
    from torchvision.transforms.v2.functional import five_crop

    return torch.stack(five_crop(images, [size, size]), dim=-4)
