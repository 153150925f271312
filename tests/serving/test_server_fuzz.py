"""Whatever is sent, the server answers in a sentence, lives and does not grow.

Some hundred requests by default; more than ten thousand with `pytest -m slow`.
"""

import io
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from PIL import Image

for package in ("fastapi", "onnxruntime", "python_multipart", "uvicorn"):
    pytest.importorskip(package)
schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")

MOST_GROWTH = 150e6  # bytes, after the first requests
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP")
TOKENS = (b"\x00", b"\xff\xfe", b"\n", b"\xff\xff\xff\x7f", b" " * 3000, b"9" * 20)
HOSTILE = (
    *(
        "a",
        "",
        "../../x",
        "\x00",
        "'; DROP TABLE sites; --",
        "\x1b[31m",
        "漢",
        "\ud800",
    ),
    *("<script>", "a" * 10_000, "\u202e", "%s%n", "1e999"),
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of the generators


class Target:
    """A server to send to, and what it has answered."""

    def __init__(self, address: str, pid: int) -> None:
        self.address, self.pid = address, pid
        self.session = requests.Session()
        self.answers: Counter[int] = Counter()

    def check(self, answer: Any) -> None:
        """Count an answer; it is no fault of the server, and a sentence if refused."""
        self.answers[answer.status_code] += 1
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400 and answer.headers.get("content-type") == (
            "application/json"
        ):
            content = answer.json()
            assert set(content) == {"error", "limit"}
            assert re.fullmatch(r"[ -\U0010ffff]{5,700}", content["error"])

    @property
    def memory(self) -> int:
        """Bytes that the server holds in memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


@pytest.fixture(scope="module")
def target(model_file: Path, start: Any) -> Iterator[Target]:
    if not Path("/proc/self/status").exists():
        pytest.skip("there is no /proc to read a process's memory from")
    with start(model_file, "--port", 0) as (process, address):
        made = Target(address, process.pid)
        yield made
        assert process.poll() is None  # it lives
        health = made.session.get(f"{address}/healthz").json()
        assert health == {"status": "ok", "reason": ""}


def _settings(count: int) -> settings:
    return settings(
        max_examples=count,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )


def _valid(kind: str) -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((16, 12)).convert("RGB").save(file, kind)
    return file.getvalue()


VALID = [_valid(kind) for kind in FORMATS]


@st.composite
def images(draw: st.DrawFn) -> bytes:
    """Give random bytes, or an image cut short or with bytes changed."""
    content = draw(st.sampled_from(VALID))
    kind = draw(st.sampled_from(("random", "cut", "edited", "edited", "valid")))
    if kind == "random":
        return draw(st.binary(max_size=300))
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    for _ in range(draw(st.integers(1, 5)) if kind == "edited" else 0):
        where = draw(
            st.integers(0, min(draw(st.sampled_from((60, 9999))), len(content)))
        )
        removed = draw(st.sampled_from((0, 1, 4, 30)))
        added = draw(st.sampled_from(TOKENS) | st.binary(max_size=4))
        content = content[:where] + added + content[where + removed :]
    return content


def _send_described(target: Target, count: int) -> None:
    """Send what the description allows, and what it does not, to every route."""
    description = target.session.get(f"{target.address}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(description)
    for found in schema.get_all_operations():
        for mode in schemathesis.GenerationMode:
            with suppress(Unsatisfiable):  # no request is wrong for some routes
                _send_cases(target, found.ok(), mode, count)


def _send_cases(target: Target, operation: Any, mode: Any, count: int) -> None:
    declared = set(map(int, operation.definition.raw["responses"]))

    @_settings(count)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        answer = case.call(base_url=target.address, session=target.session, timeout=60)
        target.check(answer)
        assert answer.status_code in {*declared, 400, 404, 405}

    send()


def _send_images(target: Target, count: int) -> None:
    """Send broken images, strange names and torn forms."""

    @_settings(count)
    @given(
        parts=st.lists(images(), min_size=1, max_size=3),
        fields=st.dictionaries(
            st.sampled_from(("site", "mix", "images", "x")),
            st.sampled_from(HOSTILE) | st.text(max_size=20),
            max_size=2,
        ),
        name=st.sampled_from(HOSTILE),
    )
    def send(parts: list[bytes], fields: dict[str, str], name: str) -> None:
        safe = name.encode("utf-8", "replace").decode()
        files = [("images", (safe, part, "image/png")) for part in parts]
        data = {k: v.encode("utf-8", "surrogatepass") for k, v in fields.items()}
        path = f"{target.address}/predict"
        target.check(target.session.post(path, files=files, data=data))

    @_settings(count)
    @given(body=images(), boundary=st.sampled_from(("x", "", '"', "a" * 200)))
    def tear(body: bytes, boundary: str) -> None:
        head = b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"'
        kind = f"multipart/form-data; boundary={boundary}"
        path, headers = f"{target.address}/predict", {"Content-Type": kind}
        for content in (head + body, head + b"\r\n\r\n" + body + b"\r\n--x--"):
            target.check(target.session.post(path, data=content, headers=headers))

    send()
    tear()


def test_server__survives_some_hundred_bad_requests(target: Target) -> None:
    _send_described(target, 6)
    _send_images(target, 60)
    assert {200, 422} <= set(target.answers)


@pytest.mark.slow
def test_server__survives_ten_thousand_bad_requests(
    target: Target, log_fuzzing: Callable[..., None]
) -> None:
    _send_images(target, 200)  # what is loaded once
    began, earlier = time.monotonic(), Counter(target.answers)
    before = target.memory
    _send_described(target, 400)
    _send_images(target, 2600)
    grown = target.memory - before
    answers = target.answers - earlier
    log_fuzzing(
        target="HTTP",
        inputs=answers.total(),
        results=sum(n for code, n in answers.items() if code < 400),
        sentences=sum(n for code, n in answers.items() if code >= 400),
        failures=0,  # `check` has raised at any
        peak_megabytes=round(grown / 1e6),
        seconds=round(time.monotonic() - began),
    )

    assert target.answers.total() >= 10_000
    assert grown < MOST_GROWTH
