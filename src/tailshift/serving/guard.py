"""The guard before the routes: token, `Host` and `Origin` of every request."""

import hmac
import re
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from fastapi import Response
from fastapi.responses import JSONResponse

from tailshift.serving.messages import RequestError
from tailshift.serving.metrics import ServerMetrics

ASGI: TypeAlias = Callable[..., Any]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_REQUESTS = 384  # fewer than connections, so health checks find one
OPEN_PATHS = (
    "/",
    "/healthz",
    "/docs",
    "/openapi.json",
)  # without a token: they tell nothing of any site


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
        self._num_active = 0

    async def __call__(self, scope: Any, receive: ASGI, send: ASGI) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._metrics.requests.labels(route, message["status"]).inc()
                message["headers"] = [*message["headers"], *SECURITY_HEADERS]
            await send(message)

        headers = dict(reversed(scope["headers"]))
        refusal = self._refusal(scope["path"], headers)
        is_full = self._num_active >= MAX_REQUESTS and scope["path"] != "/healthz"
        if refusal is None and is_full:
            refusal = RequestError(503, "Too many requests at once. Try again later.")
        answer = self._app if refusal is None else problem(refusal)
        self._num_active += 1
        try:
            await answer(scope, receive, counted)
        finally:
            self._num_active -= 1

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
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        is_known = hmac.compare_digest(given.strip(), self._token.encode())
        if path in OPEN_PATHS or (scheme.lower() == b"bearer" and is_known):
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


def problem(error: RequestError) -> Response:
    """Return the JSON response of a rejected request."""
    headers = {
        401: {"WWW-Authenticate": "Bearer"},
        429: {"Retry-After": "1"},
        503: {"Retry-After": "1"},
    }
    return JSONResponse(
        {"error": str(error), "limit": error.limit},
        error.status,
        headers.get(error.status),
    )
