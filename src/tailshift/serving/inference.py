"""Inference: images prepared, and batches of many requests run by ONNX Runtime."""

import asyncio
import io
import json
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
from tailshift.serving.onnx_check import check_model_runs, check_self_contained
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
        is_own: Whether this process has written the file; others are first run in a
            child process with limited time and memory.
    """

    def __init__(
        self, path: PathLike, *, threads: int = 0, is_own: bool = False
    ) -> None:
        self._session = _session(Path(path), threads, is_own)
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

    def prepare(self, encoded: bytes) -> Pixels:
        """Return an encoded image as the network sees it, (channels, H, W).

        Raises:
            BrokenImageError: If it cannot be read.
        """
        with _naming_broken():
            pixels = self._transform(decode_image(encoded))
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
                f"{path} has a built-in prior with a class of probability 0. Export it "
                "with --target-input."
            )
        return {}, built_in


def _session(path: Path, threads: int, is_own: bool) -> Any:
    runtime = needed("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    if not path.is_file():
        raise FileNotFoundError(f"There is no run or ONNX file {path}.")
    content = path.read_bytes()
    if not is_own:
        check_self_contained(path, content)
        check_model_runs(path, content)
    try:
        return runtime.InferenceSession(
            content, options, providers=["CPUExecutionProvider"]
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
        priors = (facts.source_prior, facts.logit_prior, facts.target_prior)
        num_classes = len(facts.class_names)
        is_sound = all(p is None or _is_prior(p, num_classes) for p in priors)
        is_sound &= min(*facts.source_prior, *facts.logit_prior) > 0
        is_sound &= len(set(facts.class_names)) == num_classes
    except (ValueError, RecursionError):
        is_sound = False
    if not is_sound:
        raise ValueError(
            f"{path} is no ONNX file of `tailshift export`: its metadata do not have "
            "distinct classes, their priors and the input resolution. Export it again."
        )
    return facts


def _is_prior(prior: Sequence[float], num_classes: int) -> bool:
    is_finite = all(map(math.isfinite, prior))
    return len(prior) == num_classes and is_finite and abs(sum(prior) - 1) < 1e-3


def num_pixels(encoded: bytes, max_pixels: int) -> int:
    """Return the number of pixels of an encoded image, from its header only.

    Raises:
        BrokenImageError: If the header cannot be read.
        RequestError: If the image has more than ``max_pixels``.
    """
    try:
        with (
            _naming_broken(),
            Image.open(io.BytesIO(encoded), formats=FORMATS) as image,
        ):
            found = math.prod(image.size)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        found = max_pixels + 1
    if found > max_pixels:
        raise RequestError(
            413,
            f"An image must have at most {max_pixels:,} pixels, but one has more.",
            "pixels",
        )
    return found


@contextmanager
def _naming_broken() -> Iterator[None]:
    bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        yield
    except (BrokenImageError, *bombs):
        raise
    except UnidentifiedImageError:
        raise BrokenImageError("is not an image of a known format") from None
    except Exception as error:  # a broken file may raise almost anything
        raise BrokenImageError(f"cannot be read ({error})") from None


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
    """

    def __init__(
        self,
        run: Callable[[Pixels], LogitRows],
        *,
        size: int = 32,
        wait: float = 0.005,
    ) -> None:
        self.size, self.num_waiting = size, 0
        self.sizes: Counter[int] = Counter()
        self._run, self._wait = run, wait
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "tailshift-model")

    async def __call__(self, pixels: Pixels) -> LogitRows:
        """Return the logits (N, C) of pixels (N, channels, H, W).

        If the call is cancelled, the model does not run its images.
        """
        loop = asyncio.get_running_loop()
        starts = range(0, len(pixels), self.size)
        waiting = [
            _Waiting(pixels[i : i + self.size], loop.create_future(), loop.time())
            for i in starts
        ]
        self._queue += waiting
        self.num_waiting += len(pixels)
        self._arrived.set()
        try:
            return np.concatenate([await entry.logits for entry in waiting])
        finally:
            for entry in waiting:
                entry.logits.cancel()  # nothing if it is done

    async def work(self) -> None:
        """Run batches for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._gather(loop)
            batch = self._take()
            if not batch:
                continue
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
        """Return the next batch without the images of clients that left."""
        batch: list[_Waiting] = []
        count = 0
        while self._queue and count + len(self._queue[0].pixels) <= self.size:
            entry = self._queue.popleft()
            self.num_waiting -= len(entry.pixels)
            if not entry.logits.done():
                batch.append(entry)
                count += len(entry.pixels)
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
