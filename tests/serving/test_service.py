"""The service: its predictions, and the requests and limits that it rejects."""

import base64
import io
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

from tailshift.serving.inference import OnnxModel
from tailshift.serving.messages import Limits

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
