"""What is done to a decoded image: crop, flip and colour in training, else a crop."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from PIL import Image
from torch import Tensor

Transform: TypeAlias = Callable[[Image.Image], Tensor]
"""A decoded image in, uint8 of shape (3, image_size, image_size) out."""

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

    crop: Literal["resized", "random"] = "resized"
    """In training: a random area and aspect ratio, resized (``RandomResizedCrop``); or
    the whole image resized to a square 256/224 times as large, and a random crop."""

    flip: bool = True
    """Mirror left and right with probability one half, in training."""

    jitter: float = 0.0
    """Brightness, contrast and saturation vary by this share, in training."""

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ValueError(f"`image_size` must be >= 1, but is {self.image_size}.")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"`jitter` must be in [0, 1], but is {self.jitter:g}.")

    @property
    def resized(self) -> int:
        """The size before cropping: 256 for 224."""
        return round(self.image_size * 256 / 224)

    def training(self) -> Transform:
        """Return the transform that draws from PyTorch's default generator."""
        from torchvision.transforms import v2  # slow to import: only when needed

        steps: list[Any] = [v2.RandomResizedCrop(self.image_size)]
        if self.crop == "random":
            square = (self.resized, self.resized)
            steps = [v2.Resize(square), v2.RandomCrop(self.image_size)]
        if self.flip:
            steps.append(v2.RandomHorizontalFlip())
        if self.jitter:
            steps.append(v2.ColorJitter(self.jitter, self.jitter, self.jitter))
        return v2.Compose([*steps, v2.PILToTensor()])  # type: ignore[no-any-return]

    def evaluation(self) -> Transform:
        """Return the centre crop of the image resized to 256/224 of it."""
        from torchvision.transforms import v2

        steps = [v2.Resize(self.resized), v2.CenterCrop(self.image_size)]
        return v2.Compose([*steps, v2.PILToTensor()])  # type: ignore[no-any-return]
