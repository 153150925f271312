"""Logits of image files: found, prepared as in evaluation, put through the model."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tailshift.data.benchmarks import ListBenchmark
from tailshift.data.decoding import BrokenImageError, ImageFiles, load_image
from tailshift.data.file_loader import default_num_workers
from tailshift.data.image_folder import EXTENSIONS, image_files
from tailshift.data.normalisation import Normalisation
from tailshift.data.own_images import OwnImages
from tailshift.data.preparation import Preparation
from tailshift.training import Run

LUMA = (0.299, 0.587, 0.114)  # red, green and blue in grey, as in Pillow
Track = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True, eq=False)
class ImageLogits:
    """What a model answered for image files.

    Attributes:
        paths: The images that could be read, in the order asked for.
        logits: Theirs, float32, shape (N, C).
        broken: Why each of the others could not be read, by its path.
    """

    paths: tuple[str, ...]
    logits: Tensor
    broken: dict[str, str]


def image_paths(names: Iterable[str | Path]) -> tuple[str, ...]:
    """Return the images that files and folders name, each once.

    Args:
        names: Files, taken as they are; and folders, searched with all below them.
    """
    paths: list[str] = []
    for name in map(Path, names):
        if not name.exists():
            raise FileNotFoundError(f"there is no file or folder `{name}`.")
        found = image_files(name) if name.is_dir() else [name]
        if not found:
            raise ValueError(
                f"`{name}` must hold images ({', '.join(EXTENSIONS[:3])} …), "
                "but holds none."
            )
        paths += map(str, found)
    return tuple(dict.fromkeys(paths))


@torch.no_grad()
def image_logits(run: Run, paths: Sequence[str], *, track: Track = iter) -> ImageLogits:
    """Return a run's own logits of image files, which carry its trained prior.

    Args:
        run: Gives the model, the size of its images, their mean and their deviation.
        paths: The files.
        track: Told the number of each batch's first image as the batches go by.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = run.model.to(device)
    load, size = _Load(run, paths), run.config.eval.batch_size
    kept: list[int] = []
    parts: list[Tensor] = []
    with ThreadPoolExecutor(default_num_workers()) as pool:
        for start in track(range(0, len(paths), size)):
            rows = range(start, min(start + size, len(paths)))
            loaded = dict(zip(rows, pool.map(load, rows), strict=True))
            images = {i: image for i, image in loaded.items() if image is not None}
            if images:
                batch = torch.stack(list(images.values())).to(device)
                parts.append(model(batch).float().cpu())
                kept += images
    broken = {paths[i]: reason for i, reason in sorted(load.broken.items())}
    if not parts:
        first, reason = next(iter(broken.items()))
        raise ValueError(
            f"none of the {len(paths)} images can be read; the first, `{first}`, "
            f"{reason}."
        )
    return ImageLogits(tuple(paths[i] for i in kept), torch.cat(parts), broken)


class WholeImage(Preparation):
    """No margin around the crop: for data whose images are used as they are."""

    @property
    def resized(self) -> int:
        """The size before cropping."""
        return self.image_size


def preparation_of(run: Run) -> Preparation:
    """Return how a run's images were resized and cropped in evaluation."""
    is_file_data = isinstance(run.config.data, OwnImages | ListBenchmark)
    make = Preparation if is_file_data else WholeImage
    return make(run.facts["image_size"])


class _Load:
    """Reads image i, normalised, with as many channels as the model takes."""

    def __init__(self, run: Run, paths: Sequence[str]) -> None:
        facts = run.facts
        self.broken: dict[int, str] = {}
        self._files = ImageFiles(Path(), tuple(paths))
        self._prepare = preparation_of(run).evaluation()
        self._normalise = Normalisation(facts["mean"], facts["std"])
        self._is_grey = facts["in_channels"] == 1

    def __call__(self, i: int) -> Tensor | None:
        """Return the image (c, H, W), or None where it is broken."""
        try:
            pixels = self._prepare(load_image(self._files, i))
        except BrokenImageError as error:
            self.broken[i] = str(error)
            return None
        images = self._normalise(pixels)
        if self._is_grey:
            luma = torch.tensor(LUMA)[:, None, None]
            images = (images * luma).sum(dim=0, keepdim=True)
        return images
