"""The service behind the routes: one model, its sites and its batches."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

import numpy as np
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from tailshift.data.images import BrokenImageError
from tailshift.priors import class_ids
from tailshift.serving.inference import Batcher, OnnxModel, Pixels, num_pixels
from tailshift.serving.messages import (
    MOST_BODY,
    MOST_NAME,
    Answer,
    AnsweredMix,
    ExpectedAccuracy,
    Given,
    Limits,
    Point,
    PredictResponse,
    Ranked,
    RequestError,
    SiteResponse,
    SitesResponse,
    SiteSummary,
    check_site,
    from_form,
    from_json,
    quoted,
)
from tailshift.serving.metrics import ServerMetrics
from tailshift.serving.prediction_table import TOP
from tailshift.serving.site import Digests, LogitRows, Mix, Vector, row_digests
from tailshift.serving.sites import Sites
from tailshift.serving.work import Work, WorkInFlight
from tailshift.text import cut, printable

_T = TypeVar("_T")
FLUSH_SECONDS, REFRESH_SECONDS = 1.0, 2.0


class Service:
    """The model, its sites and its queue, behind the routes.

    Args:
        model: Answers images.
        sites: Keeps the mixes.
        limits: What requests may take.
        reason: Why nothing is estimated, if so.
        batch_size: See `Batcher`.
        wait: See `Batcher`.
    """

    def __init__(
        self,
        model: OnnxModel,
        sites: Sites,
        *,
        limits: Limits | None = None,
        reason: str = "",
        batch_size: int = 32,
        wait: float = 0.005,
    ) -> None:
        self.model, self.sites, self.reason = model, sites, reason
        self.limits = Limits() if limits is None else limits
        self.batcher = Batcher(model.logits, size=batch_size, wait=wait)
        self.work = WorkInFlight(self.limits)
        self.metrics = ServerMetrics(self.batcher, sites, self.work)
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, "tailshift-decode")
        self._class_ids = class_ids(model.class_names, len(model.class_names))
        commas = sum(name.count(",") + 1 for name in model.class_names)
        self._max_values = commas + self.limits.images + 2 * MOST_NAME
        self._faults: dict[str, str] = {}

    @property
    def fault(self) -> str:
        """What goes wrong next to the requests, in a sentence; else empty."""
        return self.sites.fault or next(filter(None, self._faults.values()), "")

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run batches; write and estimate in threads of their own."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._every, args=(seconds, task, stop))
            for seconds, task in (
                (FLUSH_SECONDS, self.sites.flush),
                (REFRESH_SECONDS, self.sites.refresh),
            )
        ]
        for thread in threads:
            thread.start()
        worker = asyncio.create_task(self.batcher.work())
        try:
            yield
        finally:
            worker.cancel()
            stop.set()
            for thread in threads:
                await run_in_threadpool(thread.join)
            self.sites.close()

    def _every(
        self, seconds: float, task: Callable[[], object], stop: threading.Event
    ) -> None:
        while not stop.wait(seconds):
            fault = ""
            try:
                task()
            except Exception as error:  # the next round may succeed
                name = type(error).__name__
                fault = f"Estimation failed ({name}: {printable(str(error))})."
            self._faults[task.__name__] = fault

    async def predict(self, request: Request) -> PredictResponse:
        """Classify the images of a request."""
        start = time.perf_counter()
        with self.work.request() as work, ExitStack() as stack:
            body = await self.receive(request, self.limits.upload_bytes, work)
            given = await self._parse(request, body)
            mix = self._mix(given)
            work.add_images(len(given.images))
            if given.site is not None:
                stack.enter_context(self.sites.reserving(given.site))
            f, digests = await _unless_gone(request, self._logits(given.images, work))
            if given.site is not None:
                self.sites.record(given.site, f, digests)
        self.metrics.images.labels(mix.origin).inc(len(f))
        self.metrics.seconds.observe(time.perf_counter() - start)
        return PredictResponse(
            answers=self._answers(f, mix.shares),
            mix=AnsweredMix(origin=mix.origin, shares=mix.shares.tolist()),
            site=None if given.site is None else self.summary(given.site),
        )

    async def receive(
        self, request: Request, most: int = MOST_BODY, work: Work | None = None
    ) -> bytes:
        """Return the body of a request, within the limits."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    if work is not None:
                        work.add_bytes(len(part))
                    size += len(part)
                    if size > most:
                        text = f"A request must have at most {most:,} bytes."
                        raise RequestError(413, text, "upload_bytes")
                    parts.append(part)
        except TimeoutError:
            raise RequestError(
                408,
                f"The request did not arrive within {self.limits.seconds:g} s.",
                "seconds",
            ) from None
        return b"".join(parts)

    def summary(self, name: str) -> SiteSummary:
        """Return a site in short."""
        site = self.sites.get(name)
        moved = None
        if site.estimate is not None:
            gaps = np.abs(site.estimate - self.model.source_prior)
            moved = float(0.5 * gaps.sum())
        return SiteSummary(
            site=name,
            adapt=site.adapt,
            mix_from=self.sites.mix(name).origin,
            images_seen=site.num_seen,
            distinct_images=site.num_distinct,
            evidence=site.evidence,
            p_value=site.p_value,
            reason=site.reason,
            moved=moved,
            alarms=self.sites.alarms(name),
        )

    def details(self, name: str) -> SiteResponse:
        """Return a site in full."""
        site, mix = self.sites.get(name), self.sites.mix(name)
        as_trained, retargeted = (
            (None, None)
            if site.expected is None
            else (
                ExpectedAccuracy(value=value, low=low, high=high)
                for value, low, high in site.expected.tolist()
            )
        )
        return SiteResponse(
            summary=self.summary(name),
            mix=AnsweredMix(origin=mix.origin, shares=mix.shares.tolist()),
            approved=_listed(site.approved),
            estimate=_listed(site.estimate),
            version=site.show(),
            low=_listed(site.low),
            high=_listed(site.high),
            expected_as_trained=as_trained,
            expected_retargeted=retargeted,
            doubt=site.doubt,
            history=[
                Point(
                    images_seen=found.num_seen,
                    at=found.at,
                    estimate=found.estimate.tolist(),
                    low=found.low.tolist(),
                    high=found.high.tolist(),
                )
                for found in self.sites.history(name)
            ],
        )

    def overview(self) -> SitesResponse:
        """Return all sites."""
        return SitesResponse(
            classes=list(self.model.class_names),
            training=self.model.source_prior.tolist(),
            adaptation=self.reason,
            sites=[self.summary(name) for name in self.sites.names()],
        )

    async def _parse(self, request: Request, body: bytes) -> Given:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            # In a thread: the event loop also answers health checks.
            given = await run_in_threadpool(from_json, body, self._max_values)
        elif kind == "multipart/form-data":
            given = await from_form(request, body, self.limits)
        else:
            raise RequestError(
                415,
                "`Content-Type` must be application/json or multipart/form-data, but "
                f"is {printable(cut(kind, 80)) or 'missing'!r}.",
            )
        if len(given.images) > self.limits.images:
            raise RequestError(
                413,
                f"A request must have at most {self.limits.images} images, got "
                f"{len(given.images)}.",
                "images",
            )
        return given

    def _mix(self, given: Given) -> Mix:
        """Return the prior that predictions use."""
        if given.site is not None and given.mix is not None:
            raise RequestError(422, "Give `site` or `mix`, not both.")
        if given.mix is not None:
            return Mix(self._shares(given.mix), "request")
        if given.site is None:
            return Mix(self.model.source_prior, "training")
        return self.sites.mix(check_site(given.site))

    def _shares(self, mix: list[float] | dict[str, float]) -> Vector:
        """Return shares (C,) from shares or counts, in order or by class."""
        num_classes = len(self.model.class_names)
        if isinstance(mix, dict):
            mix = self._in_order(mix)
        if len(mix) != num_classes:
            raise RequestError(
                422, f"`mix` must have {num_classes} shares, but has {len(mix)}."
            )
        shares = np.array(mix, dtype=np.float64)
        if not shares.max() > 0:
            raise RequestError(422, "`mix` must not be 0 for every class.")
        shares /= shares.max()  # the sum of large ones may overflow
        shares /= shares.sum()
        return shares

    def _in_order(self, mix: dict[str, float]) -> list[float]:
        unknown = next((name for name in mix if name not in self._class_ids), None)
        if unknown is not None:
            raise RequestError(422, f"`mix` has an unknown class {quoted(unknown)}.")
        by_id = {self._class_ids[name]: share for name, share in mix.items()}
        for c, name in enumerate(self.model.class_names):
            if c not in by_id:
                raise RequestError(
                    422,
                    f"`mix` must hold every class, but lacks {quoted(name)}. Write 0 "
                    "for a class that does not occur.",
                )
        return [by_id[c] for c in sorted(by_id)]

    async def _logits(
        self, images: Sequence[bytes], work: Work
    ) -> tuple[LogitRows, Digests]:
        """Return logits (N, C) and digests (N,) of encoded images."""
        pixels = await self._prepare(images, work)
        f = await self.batcher(pixels)
        is_finite = np.isfinite(f).all(axis=1)
        if not is_finite.all():
            i = int(is_finite.argmin())
            raise RequestError(422, f"The model's output for image {i} is not finite.")
        return f, row_digests(pixels)

    async def _prepare(self, images: Sequence[bytes], work: Work) -> Pixels:
        """Return all images as the network sees them."""
        most = self.limits.pixels
        counts = await self._decode(lambda encoded: num_pixels(encoded, most), images)
        work.add_pixels(sum(counts))
        try:
            return np.stack(await self._decode(self.model.prepare, images))
        finally:
            work.forget_pixels()

    async def _decode(
        self, function: Callable[[bytes], _T], images: Sequence[bytes]
    ) -> list[_T]:
        """Return a function's results for all images, from threads of their own.

        If the call is cancelled, images that no thread has taken are left out.
        """
        loop = asyncio.get_running_loop()
        tasks = [
            loop.run_in_executor(self._decoders, function, encoded)
            for encoded in images
        ]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        results: list[_T] = []
        for i, result in enumerate(found):
            if isinstance(result, BrokenImageError):
                reason = printable(cut(str(result)))
                raise RequestError(422, f"image {i} of `images` {reason}.")
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def _answers(self, logits: LogitRows, mix: Vector) -> list[Answer]:
        probs = self.model.probs(logits, mix)
        order = np.argsort(-probs, axis=1, kind="stable")[:, :TOP]
        answers = []
        for row, classes in zip(probs, order, strict=True):
            top = [
                Ranked(name=self.model.class_names[c], probability=float(row[c]))
                for c in classes
            ]
            answers.append(
                Answer(name=top[0].name, probability=top[0].probability, top=top)
            )
        return answers


async def _unless_gone(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of work, which is cancelled if the client leaves first.

    Raises:
        ClientDisconnect: If the client has left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())  # nothing else can come any more
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _listed(vector: Vector | None) -> list[float] | None:
    return None if vector is None else vector.tolist()
