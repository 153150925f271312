"""The routes of the server: what each path takes and returns."""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tailshift.report.page.render import Page, render_page
from tailshift.serving.guard import Guard, problem
from tailshift.serving.messages import (
    MOST_NAME,
    AdaptRequest,
    ApproveRequest,
    Body,
    Health,
    PredictRequest,
    PredictResponse,
    Problem,
    RequestError,
    SiteName,
    SiteResponse,
    SitesResponse,
    SiteSummary,
    check_site,
    parse_body,
    quoted,
)
from tailshift.serving.metrics import CONTENT_TYPE
from tailshift.serving.service import Service
from tailshift.serving.site import (
    NoEstimateError,
    OutdatedEstimateError,
    StateError,
    TooManySitesError,
    UnknownSiteError,
)
from tailshift.text import printable


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
        approve = self._service.sites.approve
        await run_in_threadpool(approve, given.site, given.mix, given.version)
        return _json(self._service.summary(given.site))

    async def adapt(self, request: Request) -> Response:
        """Set a site's adaptation policy."""
        given = await self._read(request, AdaptRequest)
        set_adapt = self._service.sites.set_adapt
        await run_in_threadpool(set_adapt, given.site, given.adapt)
        return _json(self._service.summary(given.site))

    async def delete(self, site: SiteName) -> Response:
        """Delete a site: its images, estimates and decisions."""
        await run_in_threadpool(self._service.sites.delete, check_site(site))
        return Response(status_code=204)

    async def health(self) -> Response:
        """Report whether the server works."""
        reason = self._service.fault
        return _json(Health(status="degraded" if reason else "ok", reason=reason))

    async def metrics(self) -> Response:
        """Count requests, images, batches and alarms, for Prometheus."""
        text = await run_in_threadpool(self._service.metrics.text)
        return PlainTextResponse(text, media_type=CONTENT_TYPE)

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


_FORM = {
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
        summary="One model, a class distribution for each site.",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        lifespan=service.lifespan,
    )
    routes = Routes(service)
    plain: dict[str, Any] = {"response_class": HTMLResponse, "include_in_schema": False}
    app.add_api_route("/", routes.page, **plain)
    app.add_api_route("/docs", lambda: _html(_docs(app.openapi())), **plain)
    _add(app, "/predict", routes.predict, PredictResponse, PredictRequest, _PREDICT)
    _add(app, "/sites", routes.sites, SitesResponse, codes=(401, 403))
    _add(app, "/site", routes.site, SiteResponse, codes=(401, 403, 404, 422, 503))
    app.add_api_route(
        "/site",
        routes.delete,
        methods=["DELETE"],
        status_code=204,
        response_class=Response,
        responses={code: {"model": Problem} for code in (401, 403, 404, 422, 503)},
    )
    _add(app, "/approve", routes.approve, SiteSummary, ApproveRequest, _CHANGE)
    _add(app, "/adapt", routes.adapt, SiteSummary, AdaptRequest, _CHANGE)
    _add(app, "/healthz", routes.health, Health, codes=(403,))
    _add(app, "/metrics", routes.metrics, None, codes=(401, 403))
    kinds: list[type[Exception]] = [RequestError, ClientDisconnect, Exception]
    kinds += [*_STATUSES, HTTPException, RequestValidationError]
    for kind in kinds:
        app.add_exception_handler(kind, _reject)
    app.add_middleware(Guard, token=token, metrics=service.metrics)
    return app


_PREDICT = (401, 403, 408, 413, 415, 422, 429, 503)
_CHANGE = (401, 403, 404, 408, 409, 413, 415, 422, 503)


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
            content["multipart/form-data"] = {"schema": _FORM}
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


_STATUSES: dict[type[Exception], int] = {
    UnknownSiteError: 404,
    TooManySitesError: 403,
    NoEstimateError: 409,
    OutdatedEstimateError: 409,
    StateError: 503,
}


async def _reject(request: Request, error: Exception) -> Response:
    """Return an error as a status and a sentence, without the request's content."""
    if isinstance(error, RequestError):
        return problem(error)
    status = _STATUSES.get(type(error))
    if status is not None:
        limit = "sites" if isinstance(error, TooManySitesError) else None
        return problem(RequestError(status, printable(str(error)), limit))
    if isinstance(error, HTTPException):
        return problem(RequestError(error.status_code, f"{error.detail}."))
    if isinstance(error, RequestValidationError):
        text = f"`site` must be 1 to {MOST_NAME} characters, but is not."
        return problem(RequestError(422, text))
    if isinstance(error, ClientDisconnect):
        return problem(RequestError(400, "The client left before the response."))
    text = "The server failed on this request; its log has the traceback."
    return problem(RequestError(500, text))
