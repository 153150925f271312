"""The server: one model over HTTP, batched, with a class mix for each site."""

import asyncio
import hmac
import logging
import math
import os
import re
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tailshift.data.images import BrokenImageError
from tailshift.estimators import SitePriors
from tailshift.predictions import Predictions
from tailshift.priors import class_ids
from tailshift.registry import did_you_mean
from tailshift.report.page.render import Page, render_page
from tailshift.runs.run import Run, load_run
from tailshift.serving.export import export_onnx
from tailshift.serving.images import TOP, PathLike, held_out_logits
from tailshift.serving.inference import Batcher, OnnxModel, Pixels
from tailshift.serving.messages import (
    MOST_BODY,
    MOST_NAME,
    AdaptRequest,
    Answer,
    AnsweredMix,
    ApproveRequest,
    Body,
    ExpectedAccuracy,
    Given,
    Health,
    Limits,
    Point,
    PredictRequest,
    PredictResponse,
    Problem,
    Ranked,
    RequestError,
    SiteName,
    SiteResponse,
    SitesResponse,
    SiteSummary,
    check_site,
    from_form,
    from_json,
    parse_body,
    quoted,
)
from tailshift.serving.streams import (
    Adapt,
    LogitRows,
    Mix,
    NoEstimateError,
    Sites,
    TooManySitesError,
    UnknownSiteError,
    Vector,
)
from tailshift.text import cut, printable

ASGI: TypeAlias = Callable[..., Any]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
OPEN_PATHS = (
    "/",
    "/healthz",
    "/docs",
    "/openapi.json",
)  # without a token: they tell nothing of any site
MOST_CONNECTIONS = 512
FLUSH_SECONDS, REFRESH_SECONDS = 1.0, 2.0
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServerMetrics:
    """Counts for Prometheus."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.images: Counter[str] = Counter()
        self._latencies: Counter[float] = Counter()
        self._seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count a prediction by how long it took."""
        self._seconds += seconds
        self._latencies[next((b for b in BUCKETS if seconds <= b), math.inf)] += 1

    def text(self, batcher: Batcher, sites: Sites) -> str:
        """Return all in the text format of Prometheus."""
        lines = ["# TYPE tailshift_requests_total counter"]
        for (path, status), count in sorted(self.requests.items()):
            labels = f'path="{path}",status="{status}"'
            lines.append(f"tailshift_requests_total{{{labels}}} {count}")
        lines.append("# TYPE tailshift_images_total counter")
        for origin, count in sorted(self.images.items()):
            lines.append(f'tailshift_images_total{{mix="{origin}"}} {count}')
        lines += self._histogram()
        batches, images = batcher.sizes.total(), _total(batcher.sizes)
        alarms = sum(bool(sites.alarms(name)) for name in sites.names())
        values = {
            "batches_total": ("counter", batches),
            "batched_images_total": ("counter", images),
            "queued_images": ("gauge", batcher.num_waiting),
            "sites": ("gauge", len(sites.names())),
            "sites_with_alarms": ("gauge", alarms),
        }
        for name, (kind, value) in values.items():
            lines.append(f"# TYPE tailshift_{name} {kind}\ntailshift_{name} {value}")
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name, total = "tailshift_predict_seconds", 0
        lines = [f"# TYPE {name} histogram"]
        for bound in (*BUCKETS, math.inf):
            total += self._latencies[bound]
            label = "+Inf" if bound == math.inf else f"{bound:g}"
            lines.append(f'{name}_bucket{{le="{label}"}} {total}')
        return [*lines, f"{name}_sum {self._seconds:.6f}", f"{name}_count {total}"]


def _total(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())


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
        self.metrics = ServerMetrics()
        self.batcher = Batcher(
            model.logits, size=batch_size, wait=wait, most=self.limits.queued_images
        )
        self._decoders = ThreadPoolExecutor(os.cpu_count() or 1, "tailshift-decode")
        self._class_ids = class_ids(model.class_names, len(model.class_names))
        self._num_held = 0
        self._fault = ""

    @property
    def fault(self) -> str:
        """What went wrong beside the requests, in a sentence; else empty."""
        return self.sites.fault or self._fault

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run batches, and write and estimate in threads of their own."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._every, args=(seconds, work, stop))
            for seconds, work in (
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
        self, seconds: float, work: Callable[[], None], stop: threading.Event
    ) -> None:
        while not stop.wait(seconds):
            try:
                work()
            except Exception as error:  # it must go on with the next stream
                name = type(error).__name__
                self._fault = f"No mix was estimated ({name}: {printable(str(error))})."

    async def predict(self, request: Request) -> PredictResponse:
        """Answer the images of a request."""
        start = time.perf_counter()
        with self._holding() as hold:
            body = await self.receive(request, self.limits.upload_bytes, hold)
            given = await self._parse(request, body)
            mix = self._mix(given)
            pixels = await self._prepare(given.images)
        f = await self.batcher(pixels)
        if given.site is not None:
            self.sites.record(given.site, f)
        self.metrics.images[mix.origin] += len(f)
        self.metrics.observe(time.perf_counter() - start)
        return PredictResponse(
            answers=self._answers(f, mix.shares),
            mix=AnsweredMix(origin=mix.origin, shares=mix.shares.tolist()),
            site=None if given.site is None else self.summary(given.site),
        )

    async def receive(
        self,
        request: Request,
        most: int = MOST_BODY,
        hold: Callable[[int], None] = lambda count: None,
    ) -> bytes:
        """Return the body of a request, within the limits."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for part in request.stream():
                    hold(len(part))
                    size += len(part)
                    if size > most:
                        text = f"a request must have at most {most:,} bytes."
                        raise RequestError(413, text, "upload_bytes")
                    parts.append(part)
        except TimeoutError:
            seconds = self.limits.seconds
            raise RequestError(
                408,
                f"a request must arrive within {seconds:g} s, but did not.",
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

    @contextmanager
    def _holding(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a request until it is prepared."""
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            if self._num_held + count > self.limits.held_bytes:
                raise RequestError(
                    429,
                    f"all requests must have at most {self.limits.held_bytes:,} "
                    "bytes together, but have more. Try again later.",
                    "held_bytes",
                )
            held += count
            self._num_held += count

        try:
            yield hold
        finally:
            self._num_held -= held

    async def _parse(self, request: Request, body: bytes) -> Given:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            given = from_json(body)
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
                f"a request must have at most {self.limits.images} images, but has "
                f"{len(given.images)}.",
                "images",
            )
        return given

    def _mix(self, given: Given) -> Mix:
        """Return the mix to answer for: that of the request, of its site or neither."""
        if given.site is not None and given.mix is not None:
            raise RequestError(
                422, "`site` names a mix and `mix` is one: give one of them."
            )
        if given.mix is not None:
            return Mix(self._shares(given.mix), "request")
        if given.site is None:
            return Mix(self.model.source_prior, "training")
        check_site(given.site)
        try:
            self.sites.check_room(given.site)
        except TooManySitesError as error:
            raise RequestError(403, str(error), "sites") from None
        return self.sites.mix(given.site)

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
            hint = did_you_mean(cut(unknown), list(self.model.class_names)) or "."
            raise RequestError(
                422, f"`mix` names an unknown class {quoted(unknown)}{hint}"
            )
        by_id = {self._class_ids[name]: share for name, share in mix.items()}
        for c, name in enumerate(self.model.class_names):
            if c not in by_id:
                raise RequestError(
                    422,
                    f"`mix` must hold every class, but lacks {quoted(name)}. Write 0 "
                    "for a class that does not occur.",
                )
        return [by_id[c] for c in sorted(by_id)]

    async def _prepare(self, images: Sequence[bytes]) -> Pixels:
        """Return all images as the network sees them."""
        self.batcher.check_room(len(images))  # before the work of decoding
        loop = asyncio.get_running_loop()
        tasks = [
            loop.run_in_executor(
                self._decoders, self.model.prepare, encoded, self.limits.pixels
            )
            for encoded in images
        ]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        for i, result in enumerate(found):
            if isinstance(result, BrokenImageError):
                reason = printable(cut(str(result)))
                raise RequestError(422, f"image {i} of `images` {reason}.")
            if isinstance(result, BaseException):
                raise result
        return np.stack(found)  # type: ignore[arg-type] # no exception is left

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


def _listed(vector: Vector | None) -> list[float] | None:
    return None if vector is None else vector.tolist()


class Guard:
    """Lets in what has the token, and nothing that another site's page has sent.

    Without a token a request must also name this machine, so that no other name can
    lead a browser here (DNS rebinding).

    Args:
        app: Answers what is let in.
        token: The token; empty asks for none.
        metrics: Counts the requests.
    """

    def __init__(self, app: ASGI, *, token: str = "", metrics: ServerMetrics) -> None:
        self._app, self._token, self._metrics = app, token, metrics

    async def __call__(self, scope: Any, receive: ASGI, send: ASGI) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._metrics.requests[route, message["status"]] += 1
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        headers = dict(reversed(scope["headers"]))
        refusal = self._refusal(scope["path"], headers)
        answer = self._app if refusal is None else _problem(refusal)
        await answer(scope, receive, counted)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> RequestError | None:
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and _netloc(origin) != host:
            return RequestError(
                403, "a page of another origin may not ask this server."
            )
        if not self._token:
            return (
                None
                if _is_loopback(host)
                else RequestError(
                    403,
                    "without a token a request must name this machine in `Host`: "
                    "127.0.0.1, [::1] or localhost.",
                )
            )
        given = headers.get(b"authorization", b"")
        expected = f"Bearer {self._token}".encode()
        if path in OPEN_PATHS or hmac.compare_digest(given, expected):
            return None
        return RequestError(401, "`Authorization` must be Bearer and the token.")


SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    return re.sub(r":\d*$", "", host).strip("[]") in LOOPBACK


def _problem(error: RequestError) -> Response:
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}
    return JSONResponse(
        {"error": str(error), "limit": error.limit},
        error.status,
        headers.get(error.status),
    )


def _html(page: Page) -> Response:
    policy = f"{page.policy}; frame-ancestors 'none'"  # which only a header can say
    return HTMLResponse(page.text, headers={"Content-Security-Policy": policy})


def _docs(description: dict[str, Any]) -> Page:
    """Return the description of all routes as a page without scripts."""
    return render_page("routes.html", title="Routes", paths=description["paths"])


def _json(content: BaseModel) -> Response:
    # A Response as it is: FastAPI would check what was just made once more.
    text = content.model_dump_json(by_alias=True)
    return Response(text, media_type="application/json")


class Routes:
    """What each path answers.

    Args:
        service: Does the work.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._page = render_page(
            "watch.html", scripts=["watch.js"], connects=True, title="tailshift: sites"
        )

    async def page(self) -> Response:
        """Show the watch page."""
        return _html(self._page)

    async def predict(self, request: Request) -> Response:
        """Classify images under a site's prior, a given prior or the training prior."""
        return _json(await self._service.predict(request))

    async def sites(self) -> Response:
        """List the sites, the classes and the training prior."""
        return _json(await run_in_threadpool(self._service.overview))

    async def site(self, site: SiteName) -> Response:
        """Show a site: its priors, and its estimates over time."""
        return _json(await run_in_threadpool(self._service.details, check_site(site)))

    async def approve(self, request: Request) -> Response:
        """Approve a site's current estimate, or the training prior."""
        given = await self._read(request, ApproveRequest)
        try:
            await run_in_threadpool(self._service.sites.approve, given.site, given.mix)
        except TooManySitesError as error:
            raise RequestError(403, str(error), "sites") from None
        except NoEstimateError as error:
            raise RequestError(409, str(error)) from None
        return _json(self._service.summary(given.site))

    async def adapt(self, request: Request) -> Response:
        """Set a site's adaptation policy."""
        given = await self._read(request, AdaptRequest)
        try:
            set_adapt = self._service.sites.set_adapt
            await run_in_threadpool(set_adapt, given.site, given.adapt)
        except TooManySitesError as error:
            raise RequestError(403, str(error), "sites") from None
        return _json(self._service.summary(given.site))

    async def health(self) -> Response:
        """Report whether the server works."""
        reason = self._service.fault
        return _json(Health(status="degraded" if reason else "ok", reason=reason))

    async def metrics(self) -> Response:
        """Count requests, images, batches and alarms, for Prometheus."""
        service = self._service
        text = service.metrics.text(service.batcher, service.sites)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        given = request.headers.get("content-type", "").partition(";")[0].strip()
        if given.lower() != "application/json":  # which no form of a page can send
            raise RequestError(
                415,
                "`Content-Type` must be application/json, but is "
                f"{quoted(given) if given else 'missing'}.",
            )
        found = parse_body(kind, await self._service.receive(request))
        check_site(getattr(found, "site"))  # noqa: B009 (of both kinds)
        return found


FORM = {
    "type": "object",
    "required": ["images"],
    "additionalProperties": False,
    "properties": {
        "images": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "string", "format": "binary"},
        },
        "site": {"type": "string", "minLength": 1, "maxLength": MOST_NAME},
        "mix": {"type": "string", "description": "JSON: shares, or {class: share}."},
    },
}


def build_app(service: Service, *, token: str = "") -> FastAPI:
    """Return the application, which works while its lifespan lasts.

    Args:
        service: Does the work.
        token: Token that requests must bear; empty asks for none.
    """
    app = FastAPI(
        title="tailshift",
        version=version("tailshift"),
        summary="One model, a class mix for each site.",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        lifespan=service.lifespan,
    )
    routes = Routes(service)
    plain: dict[str, Any] = {"response_class": HTMLResponse, "include_in_schema": False}
    app.add_api_route("/", routes.page, **plain)
    app.add_api_route("/docs", lambda: _html(_docs(app.openapi())), **plain)
    _add(app, "/predict", routes.predict, PredictResponse, PredictRequest, PREDICT)
    _add(app, "/sites", routes.sites, SitesResponse, codes=(401, 403))
    _add(app, "/site", routes.site, SiteResponse, codes=(401, 403, 404, 422))
    _add(app, "/approve", routes.approve, SiteSummary, ApproveRequest, CHANGE)
    _add(app, "/adapt", routes.adapt, SiteSummary, AdaptRequest, CHANGE)
    _add(app, "/healthz", routes.health, Health, codes=(403,))
    _add(app, "/metrics", routes.metrics, None, codes=(401, 403))
    for kind in (RequestError, UnknownSiteError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _refuse)
    app.add_exception_handler(ClientDisconnect, _refuse)
    app.add_middleware(Guard, token=token, metrics=service.metrics)
    return app


PREDICT = (401, 403, 408, 413, 415, 422, 429)
CHANGE = (401, 403, 404, 408, 409, 413, 415, 422)


def _add(
    app: FastAPI,
    path: str,
    endpoint: Callable[..., Any],
    answer: type[BaseModel] | None,
    body: type[BaseModel] | None = None,
    codes: Sequence[int] = (),
) -> None:
    """Add a route, with what it takes, answers and refuses in the description."""
    extra = None
    if body is not None:
        content = {"application/json": {"schema": body.model_json_schema()}}
        if body is PredictRequest:
            content["multipart/form-data"] = {"schema": FORM}
        extra = {"requestBody": {"required": True, "content": content}}
    app.add_api_route(
        path,
        endpoint,
        methods=["GET" if body is None else "POST"],
        response_model=answer,
        response_class=PlainTextResponse if answer is None else JSONResponse,
        responses={code: {"model": Problem} for code in codes},
        openapi_extra=extra,
    )


async def _refuse(request: Request, error: Exception) -> Response:
    """Answer an error with a status and a sentence, and nothing of what came."""
    if isinstance(error, RequestError):
        return _problem(error)
    if isinstance(error, UnknownSiteError):
        return _problem(RequestError(404, printable(str(error))))
    if isinstance(error, HTTPException):
        return _problem(RequestError(error.status_code, f"{error.detail}."))
    if isinstance(error, RequestValidationError):
        text = f"`site` must be 1 to {MOST_NAME} characters, but is not."
        return _problem(RequestError(422, text))
    return _problem(RequestError(400, "the request was cut short."))


def open_service(
    source: Run | PathLike,
    *,
    held_out: Predictions | PathLike | None = None,
    book: SitePriors | PathLike | None = None,
    state: Path | None = None,
    adapt: Adapt = "approve",
    half_life: float = 1000.0,
    limits: Limits | None = None,
    threads: int = 0,
) -> Service:
    """Return a model that is ready to serve.

    Args:
        source: A finished run or its directory, or a file of ``tailshift export``.
        held_out: Labelled logits to calibrate on, or their file; by default the run's
            validation logits. Without any, no mix is estimated.
        book: Mixes of sites that are known beforehand, or their file.
        state: SQLite file that keeps the sites; None keeps them in memory.
        adapt: Whose word changes the mix of a new site.
        half_life: Number of images after which one counts half in an estimate.
        limits: What requests may take.
        threads: Threads of ONNX Runtime; 0 is one for each core.
    """
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        source = load_run(source)
    model = _as_model(source, threads)
    known, reason = _held_out(source, held_out, len(model.class_names))
    limits = Limits() if limits is None else limits
    sites = Sites(
        state,
        class_names=model.class_names,
        source_prior=model.source_prior,
        probe=model.probe(),
        held_out=known,
        book=_mixes(book, model.class_names),
        adapt=adapt,
        half_life=half_life,
        most_sites=limits.sites,
    )
    return Service(model, sites, limits=limits, reason=reason)


def _mixes(
    book: SitePriors | PathLike | None, class_names: tuple[str, ...]
) -> dict[str, Vector]:
    """Return the mix of each site of a book."""
    if book is None:
        return {}
    book = book if isinstance(book, SitePriors) else SitePriors.load(book)
    if tuple(book.class_names) != class_names:
        raise ValueError(
            f"`book` must have the {len(class_names)} classes of the model in their "
            f"order, but has {len(book.class_names)} that differ from them."
        )
    return {site: book.prior(site).numpy() for site in book.sites}


def _as_model(source: Run | PathLike, threads: int) -> OnnxModel:
    """Return the model of a file, or of a run as a file that is gone again."""
    if not isinstance(source, Run):
        return OnnxModel(source, threads=threads)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(source, path)
        return OnnxModel(path, threads=threads)


def _held_out(
    source: Run | PathLike, given: Predictions | PathLike | None, num_classes: int
) -> tuple[Predictions | None, str]:
    """Return labelled logits to calibrate on, or None and why there are none."""
    if given is not None:
        known = held_out_logits(given)
        if known.num_classes != num_classes:
            raise ValueError(
                f"`held_out` must have the {num_classes} classes of the model, but has "
                f"{known.num_classes}. Both must come from one model."
            )
        return known, ""
    if not isinstance(source, Run):
        why = "an ONNX file has no held-out logits to calibrate on"
    elif not source.has_val_logits:
        why = "the run has no validation logits to calibrate on"
    elif source.config.eval.views != "one":
        why = "the run's validation logits are of several views of an image"
    else:
        return source.predictions("val"), ""
    return None, f"no mix is estimated: {why}. Give labelled logits (--held-out)."


def serve(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
    announce: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        service: Does the work.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        token: Token that requests must bear; empty asks for none.
        announce: Told the address as soon as connections are taken.
    """
    if not token and host not in LOOPBACK:
        raise ValueError(
            f"`token` must be set to listen beyond this machine, but `host` is {host}. "
            "Set TAILSHIFT_TOKEN."
        )
    listening = _listen(host, port)
    torch.set_num_threads(1)  # estimating leaves the other cores to the model
    # What they say of broken images and forms would let a stranger fill the log.
    warnings.filterwarnings("ignore", module=r"PIL\b")
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        build_app(service, token=token),
        log_level="warning",
        access_log=False,  # it would hold what strangers wrote
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
    )
    name = f"[{host}]" if ":" in host else host
    announce(f"http://{name}:{listening.getsockname()[1]}/")
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise OSError(
            f"`port` must be free to listen on, but {host}:{port} is not ({error})."
        ) from None
