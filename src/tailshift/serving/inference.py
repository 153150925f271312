"""Inference: images prepared, and batches of many requests run by ONNX Runtime."""

import asyncio
import io
import json
import math
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import AliasChoices, BaseModel, Field

from tailshift.data.images import (
    FORMATS,
    BrokenImageError,
    Fit,
    Preparation,
    decode_image,
)
from tailshift.serving.images import LUMA, PathLike
from tailshift.serving.messages import RequestError
from tailshift.serving.site import LogitRows, Vector
from tailshift.text import cut

Pixels: TypeAlias = NDArray[np.uint8]


def needed(module: str) -> Any:
    """Return an optional package, and say how to install it if it is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise ModuleNotFoundError(
            f"Serving needs the package {module}, which is not installed. Install it "
            "with `pip install tailshift[serve]`."
        ) from None


class _Facts(BaseModel):
    """What the metadata of an exported file must say."""

    class_names: list[str] = Field(min_length=1)
    source_prior: list[float]
    logit_prior: list[float] = Field(
        validation_alias=AliasChoices("logit_prior", "trained_prior")
    )
    target_prior: list[float] | None = None
    image_size: int
    in_channels: Literal[1, 3]
    resized: int
    fit: Fit | None = None


class OnnxModel:
    """An ONNX file of ``tailshift export``: pixels in, logits out.

    Attributes:
        class_names: One for each class.
        source_prior: :math:`p_s` of the training data, shape (C,).
        logit_prior: The prior that the logits carry, shape (C,).

    Args:
        path: The file.
        threads: Threads of ONNX Runtime; 0 is one for each core.
    """

    def __init__(self, path: PathLike, *, threads: int = 0) -> None:
        self._session = _session(Path(path), threads)
        facts = _facts(path, self._session.get_modelmeta().custom_metadata_map)
        self._facts = facts
        self.class_names = tuple(facts.class_names)
        self.source_prior = np.array(facts.source_prior)
        self.logit_prior = np.array(facts.logit_prior)
        has_margin = facts.resized > facts.image_size
        fit = facts.fit or ("margin" if has_margin else "crop")
        # Now, not with the first image: it imports torchvision, which takes seconds.
        self._transform = Preparation(facts.image_size, fit=fit).evaluation()
        self._inputs, built_in = self._target(path)
        # What the graph adds to the network's logits is taken off again.
        self._ratio = np.log(self.logit_prior) - np.log(built_in)

    def logits(self, pixels: Pixels) -> LogitRows:
        """Return the network's own logits (N, C) of pixels (N, channels, H, W)."""
        [f] = self._session.run(["logits"], {"images": pixels} | self._inputs)
        found: LogitRows = (f + self._ratio).astype(np.float32)
        return found

    def probs(self, logits: LogitRows, mix: Vector) -> Vector:
        """Return probabilities (N, C) under a mix (C,)."""
        with np.errstate(divide="ignore"):
            g = logits - np.log(self.logit_prior) + np.log(mix)
        g = np.exp(g - g.max(axis=1, keepdims=True))
        shares: Vector = g / g.sum(axis=1, keepdims=True)
        return shares

    def prepare(self, encoded: bytes, most_pixels: int) -> Pixels:
        """Return an encoded image as the network sees it, (channels, H, W).

        Raises:
            BrokenImageError: If it cannot be read.
            RequestError: If it is too large.
        """
        try:
            _check_pixels(encoded, most_pixels)
            pixels = self._transform(decode_image(encoded))
        except (RequestError, BrokenImageError):
            raise
        except UnidentifiedImageError:
            raise BrokenImageError("is not an image of a known format") from None
        except Exception as error:  # a broken file may raise almost anything
            raise BrokenImageError(f"cannot be read ({error})") from None
        if self._facts.in_channels == 1:
            luma = torch.tensor(LUMA)[:, None, None]
            pixels = (pixels * luma).sum(dim=0, keepdim=True).round().to(torch.uint8)
        return pixels.numpy()

    def probe(self) -> LogitRows:
        """Return the logits (C,) of a fixed picture, which tell two models apart."""
        size, channels = self._facts.image_size, self._facts.in_channels
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 256, (1, channels, size, size), dtype=np.uint8)
        found: LogitRows = self.logits(noise)[0]
        return found

    def _target(self, path: PathLike) -> tuple[dict[str, Any], Vector]:
        """Return the input that a mix is, if it is one, and the built-in mix."""
        names = {given.name for given in self._session.get_inputs()}
        num_classes = len(self.class_names)
        if "target_prior" in names:
            even = np.ones(num_classes, np.float32)
            return {"target_prior": even}, np.full(num_classes, 1 / num_classes)
        built_in = np.array(self._facts.target_prior or self._facts.source_prior)
        if built_in.min() <= 0:
            raise ValueError(
                f"`model` must give every class a share, but {path} has a mix with a 0 "
                "built in. Export it with --target-input."
            )
        return {}, built_in


def _session(path: Path, threads: int) -> Any:
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    if not path.is_file():
        raise FileNotFoundError(f"There is no run or ONNX file {path}.")
    try:
        # From memory, so that the file cannot name others to be read.
        return runtime.InferenceSession(
            path.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    except OSError:
        raise
    except Exception as error:  # ONNX Runtime's have no common base
        reason = cut(str(error).partition("\n")[0])
        raise ValueError(
            f"{path} is no ONNX file that can be run ({reason})."
        ) from None


def _facts(path: PathLike, entries: dict[str, str]) -> _Facts:
    try:
        read = {key: json.loads(text) for key, text in entries.items()}
        facts = _Facts.model_validate(read)
        lengths = {len(facts.source_prior), len(facts.logit_prior)}
        is_sound = lengths == {len(facts.class_names)}
        is_sound &= min(*facts.source_prior, *facts.logit_prior) > 0
        is_sound &= facts.target_prior is None or {len(facts.target_prior)} == lengths
    except (ValueError, RecursionError):
        is_sound = False
    if not is_sound:
        raise ValueError(
            f"`model` must be a run or a file of `tailshift export`, but {path} does "
            "not say its classes, its priors and the size of its images."
        )
    return facts


def _check_pixels(encoded: bytes, most_pixels: int) -> None:
    """Refuse an image that is too large, by its header alone."""
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            num_pixels = math.prod(image.size)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        num_pixels = most_pixels + 1
    if num_pixels > most_pixels:
        raise RequestError(
            413,
            f"an image must have at most {most_pixels:,} pixels, but one has more.",
            "pixels",
        )


class _Waiting(NamedTuple):
    pixels: Pixels
    logits: asyncio.Future[LogitRows]
    since: float


class Batcher:
    """Gathers images of many requests into batches for one thread that runs a model.

    A batch is run when it is full or when its first image has waited long enough,
    whichever comes first; while the model is busy the next one gathers.

    Args:
        run: Takes pixels (N, channels, H, W) and returns logits (N, C).
        size: Largest number of images in a batch.
        wait: Longest time that an image waits for others, in seconds.
        most: Largest number of images that wait.
    """

    def __init__(
        self,
        run: Callable[[Pixels], LogitRows],
        *,
        size: int = 32,
        wait: float = 0.005,
        most: int = 512,
    ) -> None:
        self.size, self.num_waiting = size, 0
        self.sizes: Counter[int] = Counter()
        self._run, self._wait, self._most = run, wait, most
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "tailshift-model")

    async def __call__(self, pixels: Pixels) -> LogitRows:
        """Return the logits (N, C) of pixels (N, channels, H, W).

        Raises:
            RequestError: If too many images wait.
        """
        self.check_room(len(pixels))
        loop = asyncio.get_running_loop()
        starts = range(0, len(pixels), self.size)
        waiting = [
            _Waiting(pixels[i : i + self.size], loop.create_future(), loop.time())
            for i in starts
        ]
        self._queue += waiting
        self.num_waiting += len(pixels)
        self._arrived.set()
        return np.concatenate([await entry.logits for entry in waiting])

    def check_room(self, num_images: int) -> None:
        """Refuse images if too many wait already."""
        if self.num_waiting + num_images > self._most:
            raise RequestError(
                429,
                f"at most {self._most:,} images may wait for the model, but "
                f"{self.num_waiting:,} do and {num_images:,} came. Try again later.",
                "queued_images",
            )

    async def work(self) -> None:
        """Run batches for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._gather(loop)
            batch = self._take()
            try:
                pixels = np.concatenate([entry.pixels for entry in batch])
                self.sizes[len(pixels)] += 1
                f = await loop.run_in_executor(self._thread, self._run, pixels)
            except Exception as error:
                self._fail(batch, error)
            else:
                self._answer(batch, f)

    async def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for a first image, and then until a batch is full or has waited."""
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        latest = self._queue[0].since + self._wait
        while self.num_waiting < self.size and loop.time() < latest:
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), latest - loop.time())

    def _take(self) -> list[_Waiting]:
        batch, count = [self._queue.popleft()], 0
        count = len(batch[0].pixels)
        while self._queue and count + len(self._queue[0].pixels) <= self.size:
            batch.append(self._queue.popleft())
            count += len(batch[-1].pixels)
        self.num_waiting -= count
        return batch

    def _answer(self, batch: list[_Waiting], f: LogitRows) -> None:
        start = 0
        for pixels, future, _ in batch:
            if not future.done():  # its client may be gone
                future.set_result(f[start : start + len(pixels)])
            start += len(pixels)

    def _fail(self, batch: list[_Waiting], error: Exception) -> None:
        for entry in batch:
            if not entry.logits.done():
                entry.logits.set_exception(error)
