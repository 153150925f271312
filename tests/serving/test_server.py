"""The server: its answers, its limits, its sites, and what becomes of bad requests."""

import base64
import io
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tailshift import Run
from tailshift.estimators import SitePriors

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("python_multipart")

from starlette.testclient import TestClient

from tailshift.serving import server
from tailshift.serving.inference import OnnxModel, needed
from tailshift.serving.messages import Limits

pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)
REVERSED = np.arange(1.0, 11.0)
Connect = Callable[..., Any]


@pytest.fixture
def connect(
    trained: Run, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connect]:
    """Open a client of a new server; estimates are made only when a test asks."""
    monkeypatch.setattr("tailshift.serving.service.REFRESH_SECONDS", 3600)
    clients = []

    def make(token: str = "", **settings: Any) -> TestClient:
        settings = {"held_out": trained.predictions("val"), "threads": 1} | settings
        service = server.open_service(model_file, **settings)
        app = server.build_app(service, token=token)
        client = TestClient(app, base_url="http://127.0.0.1")
        client.__enter__()
        clients.append(client)
        client.service = service  # type: ignore[attr-defined] # for the tests
        return client

    yield make
    for client in clients:
        client.__exit__(None, None, None)


def _expected(run: Run, rows: Any, prior: Any) -> Any:
    """Return probabilities of test digits under a prior, by the kept logits."""
    f = run.predictions("test").logits.double().numpy()[rows]
    q = np.asarray(prior) / np.sum(prior)
    shifted = np.exp(f) / run.logit_prior.numpy() * q
    return shifted / shifted.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("fields", [{}, {"mix": REVERSED.tolist()}])
def test_predict__answers_as_the_run_does(
    connect: Connect, trained: Run, body: Any, fields: dict[str, Any]
) -> None:
    rows = [0, 120, 499]
    answer = connect().post("/predict", json=body(rows, **fields)).json()
    prior = fields.get("mix", trained.source_prior.numpy())
    probs = _expected(trained, rows, prior)
    for found, row in zip(answer["answers"], probs, strict=True):
        assert found["class"] == str(row.argmax())
        assert found["probability"] == pytest.approx(row.max(), abs=2e-3)
        assert [top["class"] for top in found["top"]] == [
            str(c) for c in np.argsort(-row)[:5]
        ]
    np.testing.assert_allclose(answer["mix"]["shares"], prior / np.sum(prior))
    assert answer["mix"]["from"] == ("request" if fields else "training")
    assert answer["site"] is None


def test_predict__a_form_and_json_are_answered_alike(
    connect: Connect, body: Any, encode: Any
) -> None:
    client, named = connect(), {str(c): float(c + 1) for c in range(10)}
    files = [("images", (f"{i}.png", encode(i), "image/png")) for i in (3, 300)]
    mixes = ("[1,2,3,4,5,6,7,8,9,10]", str(named).replace("'", '"'))
    answers = [
        client.post("/predict", files=files, data={"mix": mix}).json() for mix in mixes
    ]
    answers.append(client.post("/predict", json=body([3, 300], mix=named)).json())
    assert answers[0] == answers[1] == answers[2]
    assert len(answers[0]["answers"]) == 2


def test_predict__a_file_with_a_built_in_mix_answers_alike(
    connect: Connect, trained: Run, body: Any, tmp_path: Path
) -> None:
    from tailshift.serving.export import export_onnx

    export_onnx(trained, tmp_path / "built_in.onnx", target_prior="uniform")
    model = OnnxModel(tmp_path / "built_in.onnx", threads=1)
    service = connect().service
    np.testing.assert_allclose(model.probe(), service.model.probe(), atol=1e-4)


def test_predict__requests_of_many_clients_share_batches(
    connect: Connect, body: Any
) -> None:
    client = connect()
    client.service.batcher._wait = 0.2
    with ThreadPoolExecutor(8) as pool:
        sent = pool.map(lambda i: client.post("/predict", json=body([i])), range(8))
        assert {answer.status_code for answer in sent} == {200}
    sizes = client.service.batcher.sizes
    assert sum(size * count for size, count in sizes.items()) == 8
    assert max(sizes) > 1
    assert client.post("/predict", json=body(range(50))).status_code == 200
    assert max(sizes) == 32  # the largest batch, and a request may have more


def _image(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


MISSING = {str(c): 1.0 for c in range(9)}
REFUSALS = {
    "no image": (
        {"images": []},
        "`images` is wrong: List should have at least 1 item after validation, not 0.",
    ),
    "unknown field": (
        {"images": ["QQ=="], "x": 1},
        "`x` is wrong: Extra inputs are not permitted.",
    ),
    "not base64": ({"images": ["?"]}, "image 0 of `images` is not base64."),
    "not an image": (
        {"images": ["QUJD"]},
        "image 0 of `images` is not an image of a known format.",
    ),
    "short mix": (
        {"images": [_image(8, 8)], "mix": [1, 2]},
        "`mix` must have 10 shares, but has 2.",
    ),
    "zero mix": (
        {"images": [_image(8, 8)], "mix": [0] * 10},
        "`mix` must not be 0 for every class.",
    ),
    "unknown class": (
        {"images": [_image(8, 8)], "mix": {"kea": 1}},
        "`mix` names an unknown class 'kea'.",
    ),
    "missing class": (
        {"images": [_image(8, 8)], "mix": MISSING},
        "`mix` must hold every class, but lacks '9'. Write 0 for a class that does not "
        "occur.",
    ),
    "both": (
        {"images": [_image(8, 8)], "mix": [1] * 10, "site": "a"},
        "`site` names a mix and `mix` is one: give one of them.",
    ),
    "strange name": (
        {"images": [_image(8, 8)], "site": "a\x1b[31m"},
        "`site` must be 1 to 100 characters that can be shown, but is 'a\\\\x1b[31m'.",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_predict__refuses_in_a_sentence(connect: Connect, name: str) -> None:
    content, text = REFUSALS[name]
    answer = connect(held_out=None).post("/predict", json=content)
    assert (answer.status_code, answer.json()) == (422, {"error": text, "limit": None})


LIMITS = {
    "upload_bytes": (
        {"upload_bytes": 100},
        413,
        "a request must have at most 100 bytes.",
    ),
    "held_bytes": (
        {"held_bytes": 100},
        429,
        "all requests must have at most 100 bytes together, but have more. Try again "
        "later.",
    ),
    "images": (
        {"images": 1},
        413,
        "a request must have at most 1 images, but has 2.",
    ),
    "pixels": (
        {"pixels": 63},
        413,
        "an image must have at most 63 pixels, but one has more.",
    ),
    "queued_images": (
        {"queued_images": 1},
        429,
        "at most 1 images may wait for the model, but 0 do and 2 came. Try again "
        "later.",
    ),
    "sites": (
        {"sites": 0},
        403,
        "`site` must be one of the 0 that are known already, the most that are kept, "
        "but is new.",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_predict__says_which_limit(connect: Connect, body: Any, name: str) -> None:
    limit, status, text = LIMITS[name]
    client = connect(held_out=None, limits=Limits(**limit))
    answer = client.post("/predict", json=body([0, 1], site="a"))
    assert answer.status_code == status
    assert answer.json() == {"error": text, "limit": name}
    assert client.service._num_held == 0
    assert client.get("/sites").json()["sites"] == []


def test_predict__an_image_that_would_unpack_to_gigabytes(connect: Connect) -> None:
    answer = connect(held_out=None).post(
        "/predict", json={"images": [_image(30_000, 30_000)]}
    )
    assert answer.status_code == 413
    assert answer.json()["limit"] == "pixels"


def test_sites__two_clients_never_get_each_others_mix(
    connect: Connect, body: Any
) -> None:
    client = connect()
    mixes = {}
    for c in range(4):
        name, mix = f"site {c}", np.full(10, 0.01)
        mix[c] = 0.91
        client.service.sites.record(name, np.zeros((1, 10), np.float32))
        site = client.service.sites.get(name)
        site.adapt, site.approved = "approve", mix
        mixes[name] = mix

    def ask(k: int) -> None:
        name = f"site {k % 4}"
        rows = np.random.default_rng(k).integers(0, 500, 3)
        answer = client.post("/predict", json=body(rows, site=name)).json()
        np.testing.assert_array_equal(answer["mix"]["shares"], mixes[name])
        assert answer["site"]["site"] == name
        alone = client.post("/predict", json=body(rows, mix=mixes[name].tolist()))
        for one, other in zip(answer["answers"], alone.json()["answers"], strict=True):
            assert one["class"] == other["class"]
            assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(80)))
    assert max(client.service.batcher.sizes) > 3  # their images did share batches


def _send(client: Any, body: Any, rows: Any, site: str) -> dict[str, Any]:
    for start in range(0, len(rows), 50):
        answer = client.post("/predict", json=body(rows[start : start + 50], site=site))
        assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_sites__a_shift_is_followed_by_itself_after_approval_or_never(
    connect: Connect, trained: Run, body: Any, rows_of: Any
) -> None:
    client, rows = connect(adapt="auto"), rows_of(REVERSED, 300)
    first = _send(client, body, rows, "harbour")
    assert first["mix"]["from"] == "training"
    client.service.sites.refresh()
    second = _send(client, body, rows[:1], "harbour")
    site = client.get("/site", params={"site": "harbour"}).json()
    assert second["mix"] == {"from": "estimate", "shares": site["estimate"]}
    truth = REVERSED / REVERSED.sum()
    gap = np.abs(np.array(site["estimate"]) - truth).sum()
    assert gap < 0.5 * np.abs(trained.source_prior.numpy() - truth).sum()
    assert (np.array(site["low"]) <= site["estimate"]).all()
    assert (np.array(site["high"]) >= site["estimate"]).all()
    assert site["summary"]["reason"].startswith("the estimated prior is expected to ")
    assert "only 55 held-out labels" in site["doubt"]
    for change, origin in (
        (("/adapt", {"adapt": "never"}), "training"),
        (("/approve", {"mix": "estimate"}), "approved"),
        (("/approve", {"mix": "training"}), "approved"),
        (("/adapt", {"adapt": "auto"}), "estimate"),
    ):
        path, fields = change
        answer = client.post(path, json={"site": "harbour"} | fields)
        assert answer.json()["mix_from"] == origin
        if fields == {"mix": "training"}:
            [alarm] = answer.json()["alarms"]
            assert alarm.startswith("The class distribution has shifted: the ")
    assert client.service.fault == ""


def test_sites__no_shift_is_left_alone(
    connect: Connect, trained: Run, body: Any, rows_of: Any
) -> None:
    client = connect(adapt="auto")
    _send(client, body, rows_of(trained.source_prior, 300), "north")
    client.service.sites.refresh()
    [site] = client.get("/sites").json()["sites"]
    assert site["alarms"] == []
    shares = np.array(
        client.get("/site", params={"site": "north"}).json()["mix"]["shares"]
    )
    assert np.abs(shares - trained.source_prior.numpy()).sum() < 0.15


def test_sites__restart_continues(
    connect: Connect, body: Any, rows_of: Any, tmp_path: Path
) -> None:
    path, rows = tmp_path / "sites.sqlite", rows_of(REVERSED, 200)
    client = connect(state=path)
    _send(client, body, rows[:150], "harbour")
    client.service.sites.refresh()
    client.post("/approve", json={"site": "harbour", "mix": "estimate"})
    before = client.get("/site", params={"site": "harbour"}).json()
    client.service.sites.close()
    after = connect(state=path)
    assert after.get("/site", params={"site": "harbour"}).json() == before
    _send(after, body, rows[150:], "harbour")
    after.service.sites.refresh()
    whole = connect()
    _send(whole, body, rows[:150], "harbour")
    whole.service.sites.refresh()
    _send(whole, body, rows[150:], "harbour")
    whole.service.sites.refresh()
    found, expected = (
        client.get("/site", params={"site": "harbour"}).json()["estimate"]
        for client in (after, whole)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_sites__nothing_is_estimated_without_held_out_logits(
    connect: Connect, body: Any
) -> None:
    client = connect(held_out=None)
    _send(client, body, range(60), "a")
    client.service.sites.refresh()
    found = client.get("/sites").json()
    assert found["adaptation"] == (
        "no mix is estimated: an ONNX file has no held-out logits to calibrate on. "
        "Give labelled logits (--held-out)."
    )
    answer = client.post("/approve", json={"site": "a", "mix": "estimate"})
    assert (answer.status_code, answer.json()["error"]) == (
        409,
        "`mix` must be 'training' as long as 'a' has no estimate, but is 'estimate'. "
        "Send images of the site first.",
    )


def test_sites__an_unknown_one(connect: Connect, body: Any) -> None:
    client = connect(held_out=None)
    _send(client, body, [0], "harbour")
    for ask in (
        lambda: client.get("/site", params={"site": "harbor"}),
        lambda: client.post("/adapt", json={"site": "harbor", "adapt": "auto"}),
        lambda: client.post("/approve", json={"site": "harbor", "mix": "training"}),
    ):
        assert (ask().status_code, ask().json()["error"]) == (
            404,
            "`site` must be one whose images have come or that the book names, but "
            "'harbor' is not; did you mean 'harbour'?",
        )


def test_sites__a_book_is_answered_for_and_approval_comes_before_it(
    connect: Connect, trained: Run, body: Any, tmp_path: Path
) -> None:
    book = SitePriors(trained.class_names, trained.source_prior)
    book.add("harbour", counts=list(range(1, 11)))
    book.save(tmp_path / "book.json")
    client = connect(held_out=None, book=tmp_path / "book.json")
    [known] = client.get("/sites").json()["sites"]
    assert (known["site"], known["mix_from"]) == ("harbour", "book")
    answer = _send(client, body, [0], "harbour")
    assert answer["mix"]["from"] == "book"
    np.testing.assert_allclose(answer["mix"]["shares"], book.prior("harbour"))
    client.post("/approve", json={"site": "harbour", "mix": "training"})
    assert _send(client, body, [0], "harbour")["mix"]["from"] == "approved"
    assert _send(client, body, [0], "elsewhere")["mix"]["from"] == "training"


def test_open__a_book_of_other_classes(connect: Connect) -> None:
    with pytest.raises(ValueError, match="book") as error:
        connect(held_out=None, book=SitePriors(["kea", "kiwi"], [0.5, 0.5]))
    assert str(error.value) == (
        "`book` must have the 10 classes of the model in their order, but has 2 that "
        "differ from them."
    )


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
    sent = {"Authorization": "Bearer sésame".encode(), "Host": "mill.example"}
    assert client.get("/sites", headers=sent).status_code == 200


def test_guard__pages_of_others_are_kept_out(connect: Connect, body: Any) -> None:
    client = connect(held_out=None)
    _send(client, body, [0], "a")
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


def test_metrics__are_prometheus_text(connect: Connect, body: Any) -> None:
    client = connect(held_out=None)
    _send(client, body, range(5), "a")
    client.get("/nowhere/%1b%0a")
    text = client.get("/metrics").text
    line = re.compile(r'(# TYPE \w+ \w+)|(\w+({(\w+="[^"\\\n]*",?)+})? [0-9.e+-]+)')
    assert all(line.fullmatch(found) for found in text.splitlines())
    for sample in (
        'tailshift_requests_total{path="/predict",status="200"} 1',
        'tailshift_requests_total{path="other",status="404"} 1',
        'tailshift_images_total{mix="training"} 5',
        'tailshift_predict_seconds_bucket{le="+Inf"} 1',
        "tailshift_batched_images_total 5",
        "tailshift_sites 1",
    ):
        assert sample in text.splitlines()


def test_pages__load_nothing_from_elsewhere(connect: Connect) -> None:
    client = connect(held_out=None)
    for path in ("/", "/docs"):
        assert not re.search(r"(src|href)=\"?(https?:)?//", client.get(path).text)
    headers = client.get("/").headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_health__a_state_that_cannot_be_written(connect: Connect, body: Any) -> None:
    client = connect(held_out=None)
    sites = client.service.sites
    sites._file.execute("PRAGMA query_only = ON")
    _send(client, body, [0, 1], "a")
    sites.flush()
    assert client.get("/healthz").json() == {
        "status": "degraded",
        "reason": "The state cannot be written (attempt to write a readonly database).",
    }
    sites._file.execute("PRAGMA query_only = OFF")
    sites.flush()
    assert client.get("/healthz").json() == {"status": "ok", "reason": ""}
    assert sites._all("SELECT num_seen FROM sites") == [(2,)]


def test_serve__beyond_this_machine_needs_a_token(connect: Connect) -> None:
    with pytest.raises(ValueError, match="token") as error:
        server.serve(connect(held_out=None).service, host="0.0.0.0")
    assert str(error.value) == (
        "`token` must be set to listen beyond this machine, but `host` is 0.0.0.0. Set "
        "TAILSHIFT_TOKEN."
    )


def test_serve__a_port_that_is_taken(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="port") as error:
            server.serve(connect(held_out=None).service, port=port)
    assert str(error.value) == (
        f"`port` must be free to listen on, but 127.0.0.1:{port} is not ([Errno 98] "
        f"Address already in use (while attempting to bind on address ('127.0.0.1', "
        f"{port})))."
    )


def test_needed__says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as error:
        needed("tailshift_absent")
    assert str(error.value) == (
        "Serving needs the package tailshift_absent, which is not installed. Install "
        "it with `pip install tailshift[serve]`."
    )


def test_model__must_be_an_exported_file(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match="ONNX") as broken:
        OnnxModel(tmp_path / "a.onnx")
    assert str(broken.value).startswith(
        f"{tmp_path / 'a.onnx'} is no ONNX file that can be run ("
    )
    with pytest.raises(FileNotFoundError) as missing:
        OnnxModel(tmp_path / "b.onnx")
    assert str(missing.value) == f"There is no run or ONNX file {tmp_path / 'b.onnx'}."
