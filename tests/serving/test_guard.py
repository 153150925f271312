"""The guard: token, `Host` and `Origin`."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("python_multipart")


pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)
Connect = Callable[..., Any]


def test_guard__token(connect: Connect, body: Any) -> None:
    client = connect(token="sésame", held_out=None)
    assert client.get("/healthz").json() == {"status": "ok", "reason": ""}
    assert client.get("/").status_code == 200
    for headers in ({}, {"Authorization": "Bearer x"}, {"Authorization": "sésame"}):
        sent = {key: value.encode() for key, value in headers.items()}
        for ask in (
            lambda sent=sent: client.get("/sites", headers=sent),
            lambda sent=sent: client.get("/metrics", headers=sent),
            lambda sent=sent: client.post("/predict", json=body([0]), headers=sent),
        ):
            assert ask().status_code == 401
            assert ask().headers["WWW-Authenticate"] == "Bearer"
            assert ask().json()["error"] == (
                "`Authorization` must be Bearer and the token."
            )
    for scheme in ("Bearer", "bearer", "BEARER "):
        given = f"{scheme} sésame".encode()
        sent = {"Authorization": given, "Host": "mill.example"}
        assert client.get("/sites", headers=sent).status_code == 200


def test_guard__pages_of_others_are_kept_out(
    connect: Connect, send_images: Any
) -> None:
    client = connect(held_out=None)
    send_images(client, [0], "a")
    change = {"site": "a", "mix": "training"}
    other = client.post(
        "/approve", json=change, headers={"Origin": "https://evil.example"}
    )
    assert (other.status_code, other.json()["error"]) == (
        403,
        "a page of another origin may not ask this server.",
    )
    rebound = client.get("/sites", headers={"Host": "evil.example"})
    assert (rebound.status_code, rebound.json()["error"]) == (
        403,
        "without a token a request must name this machine in `Host`: 127.0.0.1, [::1] "
        "or localhost.",
    )
    form = client.post("/approve", data=change)
    assert (form.status_code, form.json()["error"]) == (
        415,
        "`Content-Type` must be application/json, but is "
        "'application/x-www-form-urlencoded'.",
    )
    own = client.post("/approve", json=change, headers={"Origin": "http://127.0.0.1"})
    assert own.status_code == 200


def test_guard__above_the_limit_only_health_is_answered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(held_out=None)
    monkeypatch.setattr("tailshift.serving.guard.MAX_REQUESTS", 0)
    answer = client.get("/sites")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert client.get("/healthz").status_code == 200
