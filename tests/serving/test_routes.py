"""The routes: sites, approval, pages and health."""

import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailshift import Run
from tailshift.estimators import SitePriors

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
pytest.importorskip("python_multipart")


from tailshift.serving.messages import Limits

pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)
REVERSED = np.arange(1.0, 11.0)
Connect = Callable[..., Any]


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


def test_sites__a_shift_is_followed_by_itself_after_approval_or_never(
    connect: Connect, trained: Run, send_images: Any, rows_of: Any
) -> None:
    client, rows = connect(adapt="auto"), rows_of(REVERSED, 300)
    first = send_images(client, rows, "harbour")
    assert first["mix"]["from"] == "training"
    client.service.sites.refresh()
    second = send_images(client, rows[:1], "harbour")
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
    connect: Connect, trained: Run, send_images: Any, rows_of: Any
) -> None:
    client = connect(adapt="auto")
    send_images(client, rows_of(trained.source_prior, 300), "north")
    client.service.sites.refresh()
    [site] = client.get("/sites").json()["sites"]
    assert site["alarms"] == []
    shares = np.array(
        client.get("/site", params={"site": "north"}).json()["mix"]["shares"]
    )
    assert np.abs(shares - trained.source_prior.numpy()).sum() < 0.15


def test_sites__restart_continues(
    connect: Connect, send_images: Any, rows_of: Any, tmp_path: Path
) -> None:
    path, rows = tmp_path / "sites.sqlite", rows_of(REVERSED, 200)
    client = connect(state=path)
    send_images(client, rows[:150], "harbour")
    client.service.sites.refresh()
    client.post("/approve", json={"site": "harbour", "mix": "estimate"})
    before = client.get("/site", params={"site": "harbour"}).json()
    client.service.sites.close()
    after = connect(state=path)
    assert after.get("/site", params={"site": "harbour"}).json() == before
    send_images(after, rows[150:], "harbour")
    after.service.sites.refresh()
    whole = connect()
    send_images(whole, rows[:150], "harbour")
    whole.service.sites.refresh()
    send_images(whole, rows[150:], "harbour")
    whole.service.sites.refresh()
    found, expected = (
        client.get("/site", params={"site": "harbour"}).json()["estimate"]
        for client in (after, whole)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_sites__nothing_is_estimated_without_held_out_logits(
    connect: Connect, send_images: Any
) -> None:
    client = connect(held_out=None)
    send_images(client, range(60), "a")
    client.service.sites.refresh()
    found = client.get("/sites").json()
    assert found["adaptation"] == (
        "no mix is estimated: an ONNX file has no held-out logits to calibrate on. "
        "Give labelled logits (--held-out)."
    )
    answer = client.post("/approve", json={"site": "a", "mix": "estimate"})
    assert (answer.status_code, answer.json()["error"]) == (
        409,
        "`site` 'a' has no estimate to approve. Send images of the site first, or give "
        "`mix` 'training'.",
    )


def test_sites__an_unknown_one(connect: Connect, send_images: Any) -> None:
    client = connect(held_out=None)
    send_images(client, [0], "harbour")
    for ask in (
        lambda: client.get("/site", params={"site": "harbor"}),
        lambda: client.post("/adapt", json={"site": "harbor", "adapt": "auto"}),
        lambda: client.post("/approve", json={"site": "harbor", "mix": "training"}),
    ):
        assert (ask().status_code, ask().json()["error"]) == (
            404,
            "`site` 'harbor' is unknown. `GET /sites` lists the sites with images or a "
            "stored prior.",
        )


def test_sites__a_book_is_answered_for_and_approval_comes_before_it(
    connect: Connect, trained: Run, send_images: Any, tmp_path: Path
) -> None:
    book = SitePriors(trained.class_names, trained.source_prior)
    book.add("harbour", counts=list(range(1, 11)))
    book.save(tmp_path / "book.json")
    client = connect(held_out=None, book=tmp_path / "book.json")
    [known] = client.get("/sites").json()["sites"]
    assert (known["site"], known["mix_from"]) == ("harbour", "book")
    answer = send_images(client, [0], "harbour")
    assert answer["mix"]["from"] == "book"
    np.testing.assert_allclose(answer["mix"]["shares"], book.prior("harbour"))
    client.post("/approve", json={"site": "harbour", "mix": "training"})
    assert send_images(client, [0], "harbour")["mix"]["from"] == "approved"
    assert send_images(client, [0], "elsewhere")["mix"]["from"] == "training"


def test_pages__load_nothing_from_elsewhere(connect: Connect) -> None:
    client = connect(held_out=None)
    for path in ("/", "/docs"):
        assert not re.search(r"(src|href)=\"?(https?:)?//", client.get(path).text)
    headers = client.get("/").headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_health__a_state_that_cannot_be_written(
    connect: Connect, send_images: Any
) -> None:
    client = connect(held_out=None)
    sites = client.service.sites
    sites._file._file.execute("PRAGMA query_only = ON")
    send_images(client, [0, 1], "a")
    sites.flush()
    assert client.get("/healthz").json() == {
        "status": "degraded",
        "reason": "The state cannot be written (attempt to write a readonly database).",
    }
    sites._file._file.execute("PRAGMA query_only = OFF")
    sites.flush()
    assert client.get("/healthz").json() == {"status": "ok", "reason": ""}
    assert sites._file._all("SELECT num_seen FROM sites") == [(2,)]


def test_sites__a_full_server_answers_in_json(connect: Connect, body: Any) -> None:
    """24 requests at once with new names: 16 once ended in a plain-text 500."""
    client = connect(held_out=None, limits=Limits(sites=8))
    with ThreadPoolExecutor(24) as pool:
        answers = list(
            pool.map(
                lambda i: client.post("/predict", json=body([i], site=f"site {i}")),
                range(24),
            )
        )
    assert Counter(answer.status_code for answer in answers) == {200: 8, 403: 16}
    rejected = [answer.json() for answer in answers if answer.status_code == 403]
    assert {answer["limit"] for answer in rejected} == {"sites"}
    name = client.get("/sites").json()["sites"][0]["site"]
    deleted = client.delete("/site", params={"site": name})
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert client.delete("/site", params={"site": name}).status_code == 404
    assert client.post("/predict", json=body([0], site="new")).status_code == 200


def test_approve__takes_the_estimate_that_was_shown(
    connect: Connect, send_images: Any, rows_of: Any
) -> None:
    client = connect()
    send_images(client, rows_of(REVERSED, 100), "harbour")
    client.service.sites.refresh()
    shown = client.get("/site", params={"site": "harbour"}).json()
    send_images(client, rows_of(REVERSED[::-1], 100), "harbour")
    client.service.sites.refresh()
    now = client.get("/site", params={"site": "harbour"}).json()
    assert now["version"] != shown["version"]
    change = {"site": "harbour", "mix": "estimate"}
    answer = client.post("/approve", json={**change, "version": shown["version"]})
    assert answer.status_code == 200
    site = client.get("/site", params={"site": "harbour"}).json()
    assert site["approved"] == shown["estimate"]
    answer = client.post("/approve", json={**change, "version": "0"})
    assert (answer.status_code, answer.json()["limit"]) == (409, None)


def test_approve__is_not_acknowledged_if_the_disk_is_full(
    connect: Connect, send_images: Any
) -> None:
    client = connect(held_out=None)
    send_images(client, [0], "a")
    file = client.service.sites._file._file
    file.execute("PRAGMA query_only = ON")
    changes = (("/approve", {"mix": "training"}), ("/adapt", {"adapt": "auto"}))
    for path, fields in changes:
        answer = client.post(path, json={"site": "a"} | fields)
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("The state cannot be written (")
    assert client.get("/healthz").json()["status"] == "degraded"
    file.execute("PRAGMA query_only = OFF")
    answer = client.post("/approve", json={"site": "a", "mix": "training"})
    assert answer.json()["mix_from"] == "approved"
    assert client.get("/healthz").json() == {"status": "ok", "reason": ""}


def test_health__is_ok_again_after_a_good_round(connect: Connect) -> None:
    service = connect(held_out=None).service
    rounds = iter([RuntimeError("no room"), None])
    stop = threading.Event()

    def task() -> None:
        error = next(rounds)
        if error is None:
            stop.set()
            return
        raise error

    faults = []
    wait = stop.wait

    def note(seconds: float) -> bool:
        faults.append(service.fault)
        return wait(0)

    stop.wait = note  # type: ignore[method-assign]
    service._every(0, task, stop)
    assert faults == ["", "Estimation failed (RuntimeError: no room).", ""]
