"""Logits of image files by a run's model."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from tailshift.data.image_loader import default_num_workers
from tailshift.data.images import (
    BrokenImageError,
    ImageFiles,
    Preparation,
    Views,
    load_image,
)
from tailshift.data.memory import Normalisation
from tailshift.data.own_forms import EXTENSIONS, image_files
from tailshift.models.classifier import over_views
from tailshift.runs.run import Run

PathLike: TypeAlias = str | os.PathLike[str]
LUMA = (0.299, 0.587, 0.114)  # red, green and blue in grey, as in Pillow
Track = Callable[[Sequence[int]], Iterable[int]]


@dataclass(frozen=True, eq=False)
class ImageLogits:
    """What a model answered for image files.

    Attributes:
        paths: The images that could be read, in the order requested.
        logits: Theirs, float32, shape (N, C).
        broken: Why each of the others could not be read, by its path.
    """

    paths: tuple[str, ...]
    logits: Tensor
    broken: dict[str, str]


def image_paths(names: PathLike | Iterable[PathLike]) -> tuple[str, ...]:
    """Return the images that files and folders name, each once.

    Args:
        names: Files, taken as they are; and folders, searched with all below them. One
            of them need not stand in a list.
    """
    paths: list[str] = []
    for name in map(Path, [names] if isinstance(names, str | os.PathLike) else names):
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
def image_logits(
    run: Run, paths: Sequence[str], *, views: Views | None = None, track: Track = iter
) -> ImageLogits:
    """Return a run's own logits of image files, which carry its trained prior.

    Args:
        run: Gives the model, the size of its images, their mean and their deviation.
        paths: The files.
        views: How each is seen; by default as the run's test images were.
        track: Wraps the numbers of the batches' first images, e.g. in a progress bar.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = run.model.to(device)
    views = run.config.eval.views if views is None else views
    load, size = _Load(run, paths, views), run.config.eval.batch_size
    kept: list[int] = []
    parts: list[Tensor] = []
    with ThreadPoolExecutor(default_num_workers()) as pool:
        for start in track(range(0, len(paths), size)):
            rows = range(start, min(start + size, len(paths)))
            loaded = dict(zip(rows, pool.map(load, rows), strict=True))
            images = {i: image for i, image in loaded.items() if image is not None}
            if images:
                batch = torch.stack(list(images.values())).to(device)
                parts.append(over_views(model, batch).float().cpu())
                kept += images
    broken = {paths[i]: reason for i, reason in sorted(load.broken.items())}
    if not parts:
        first, reason = next(iter(broken.items()))
        raise ValueError(
            f"none of the {len(paths)} images can be read; the first, `{first}`, "
            f"{reason}."
        )
    return ImageLogits(tuple(paths[i] for i in kept), torch.cat(parts), broken)


def preparation_of(run: Run) -> Preparation:
    """Return how a run's images were resized and cropped in evaluation."""
    if run.config.model.name == "features":
        raise ValueError(
            f"{run.directory} must have a network to read images, but was trained on "
            "features that were made elsewhere. `tailshift features` makes them here."
        )
    if run.facts.preparation is not None:
        return run.facts.preparation
    return run.config.data.preparation(run.facts.image_size)


class _Load:
    """Reads image i, normalised, with as many channels as the model takes."""

    def __init__(self, run: Run, paths: Sequence[str], views: Views) -> None:
        facts = run.facts
        self.broken: dict[int, str] = {}
        self._files = ImageFiles(Path(), tuple(paths))
        self._prepare = preparation_of(run).evaluation(views)
        self._normalise = Normalisation(facts.mean, facts.std)
        self._is_grey = facts.in_channels == 1

    def __call__(self, i: int) -> Tensor | None:
        """Return the image (c, H, W), or views of it; None if it is broken."""
        try:
            pixels = self._prepare(load_image(self._files, i))
        except BrokenImageError as error:
            self.broken[i] = str(error)
            return None
        images = self._normalise(pixels)
        if self._is_grey:
            luma = torch.tensor(LUMA)[:, None, None]
            images = (images * luma).sum(dim=-3, keepdim=True)
        return images
