"""The service: its predictions, and the requests and limits that it rejects."""

import base64
import io
import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tailshift import Run

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("python_multipart")

from tailshift.serving import server
from tailshift.serving.inference import OnnxModel
from tailshift.serving.messages import Limits, RequestError, from_json

pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)
REVERSED = np.arange(1.0, 11.0)
Connect = Callable[..., Any]


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
        "`mix` has an unknown class 'kea'.",
    ),
    "missing class": (
        {"images": [_image(8, 8)], "mix": MISSING},
        "`mix` must hold every class, but lacks '9'. Write 0 for a class that does not "
        "occur.",
    ),
    "both": (
        {"images": [_image(8, 8)], "mix": [1] * 10, "site": "a"},
        "Give `site` or `mix`, not both.",
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
        "A request must have at most 100 bytes.",
    ),
    "held_bytes": (
        {"held_bytes": 100},
        429,
        "All requests together have more than 100 bytes. Try again later.",
    ),
    "images": (
        {"images": 1},
        413,
        "A request must have at most 1 images, got 2.",
    ),
    "pixels": (
        {"pixels": 63},
        413,
        "An image must have at most 63 pixels, but one has more.",
    ),
    "queued_images": (
        {"queued_images": 1},
        429,
        "All requests together have more than 1 images: 0 wait and 2 came. Try again "
        "later.",
    ),
    "queued_pixels": (
        {"queued_pixels": 127},
        413,
        "A request must have at most 127 pixels, got 128. Send fewer images at once.",
    ),
    "sites": (
        {"sites": 0},
        403,
        "`site` is new, but the server keeps at most 0 sites. Use a known site, or "
        "delete one with `DELETE /site`.",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_predict__says_which_limit(connect: Connect, body: Any, name: str) -> None:
    limit, status, text = LIMITS[name]
    client = connect(held_out=None, limits=Limits(**limit))
    answer = client.post("/predict", json=body([0, 1], site="a"))
    assert answer.status_code == status
    assert answer.json() == {"error": text, "limit": name}
    work = client.service.work
    assert (work.num_bytes, work.num_images, work.num_pixels) == (0, 0, 0)
    assert client.get("/sites").json()["sites"] == []


def test_predict__an_image_that_would_unpack_to_gigabytes(connect: Connect) -> None:
    answer = connect(held_out=None).post(
        "/predict", json={"images": [_image(30_000, 30_000)]}
    )
    assert answer.status_code == 413
    assert answer.json()["limit"] == "pixels"


def test_form__a_mix_cannot_add_a_second_one(connect: Connect, encode: Any) -> None:
    client = connect(held_out=None)
    files = [("images", ("a.png", encode(0), "image/png"))]
    for mix in (
        '[1,1,1,1,1,1,1,1,1,1],"mix":[0,0,0,0,0,0,0,0,0,1]',
        "[1,1,1,1,1,1,1,1,1,true]",
        '[1,1,1,1,1,1,1,1,1,"1"]',
    ):
        answer = client.post("/predict", files=files, data={"mix": mix})
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("`mix` is wrong: ")


def test_form__a_charset_that_takes_seconds_is_rejected(connect: Connect) -> None:
    kind = "multipart/form-data; boundary=x; charset=idna"
    answer = connect(held_out=None).post(
        "/predict", content=b"--x--", headers={"Content-Type": kind}
    )
    assert (answer.status_code, answer.json()["error"]) == (
        415,
        "the charset of a form must be utf-8.",
    )


HUGE = {  # bodies of 16 MB, which took up to 8.2 GB and 41 s
    "mix": b'{"images":["aaaa"],"mix":[%s]}' % b",".join([b"-1"] * 5_592_000),
    "images": b'{"images":[%s]}' % b",".join([b"1"] * 8_388_000),
    "keys": b'{"mix":{%s}}' % b",".join(b'"%d":1' % i for i in range(1_400_000)),
    "digits": b'{"images":["aaaa"],"mix":[%s]}' % (b"9" * 16_000_000),
    "nested": b'{"images":%s}' % (b"[" * 16_000_000),
}


@pytest.mark.parametrize("name", HUGE)
def test_json__millions_of_values_take_no_time(name: str) -> None:
    began = time.process_time()
    with pytest.raises(RequestError):
        from_json(HUGE[name], 300)
    assert time.process_time() - began < 1


def test_predict__images_count_from_parsing_on(
    connect: Connect, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(held_out=None, limits=Limits(queued_images=10))
    model, go = client.service.model, threading.Event()
    prepare = model.prepare

    def slow(encoded: bytes) -> Any:
        assert go.wait(60)
        return prepare(encoded)

    monkeypatch.setattr(model, "prepare", slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/predict", json=body(range(8)))
        while client.service.work.num_images < 8:
            time.sleep(0.01)
        second = client.post("/predict", json=body(range(8)))
        assert (second.status_code, second.json()["limit"]) == (429, "queued_images")
        assert client.service.work.num_pixels == 8 * 64
        go.set()
        assert first.result().status_code == 200
    assert client.service.work.num_images == 0


def test_predict__nothing_is_done_for_clients_that_left(
    model_file: Path, serving: Any, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = server.open_service(model_file, threads=1)
    prepare, seen = service.model.prepare, []

    def slow(encoded: bytes) -> Any:
        seen.append(encoded)
        time.sleep(0.2)
        return prepare(encoded)

    monkeypatch.setattr(service.model, "prepare", slow)
    content = json.dumps(body([5] * 64)).encode()
    head = f"Content-Length: {len(content)}\r\nContent-Type: application/json\r\n\r\n"
    with serving(server.build_app(service)) as address:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
            client.sendall(head.encode() + content)
            while not seen:
                time.sleep(0.01)
        while service.work.num_images:
            time.sleep(0.01)
        assert len(seen) < 40  # of 64
        assert service.batcher.sizes.total() == 0


def test_predict__rejects_what_is_not_finite(
    connect: Connect, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(held_out=None)
    f = np.zeros((3, 10), np.float32)
    f[1, 2] = np.nan
    monkeypatch.setattr(client.service.batcher, "_run", lambda pixels: f)
    answer = client.post("/predict", json=body([0, 1, 2], site="a"))
    assert answer.json()["error"] == "The model's output for image 1 is not finite."
    assert client.get("/sites").json()["sites"] == []
