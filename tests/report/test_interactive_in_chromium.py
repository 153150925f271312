"""Moving the target in a real browser: its numbers are those that Python computes."""

import base64
import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tailshift.predictions import Predictions
from tailshift.report import ReportRun, write_report

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<!-- <script>",
    "<b>bold</b> &amp;",
    *"efghij",
)


def _open(browser, path: Path, runs, width: int = 1280, scheme: str = "light"):
    """Return the page; it knows its logits, and what it asked for or complained of."""
    write_report(path, runs, title="A title")
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    page.embedded, page.events = _embedded(path), []
    page.on("console", lambda message: page.events.append(message.text))
    page.on("pageerror", lambda error: page.events.append(str(error)))
    page.on("request", lambda request: page.events.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("#explorer[data-milliseconds]")
    assert page.events.pop(0) == path.as_uri()
    return page


@pytest.fixture
def open_page(browser, tmp_path: Path):
    """Open a report of given runs, without a complaint or a request by its end."""
    pages = []

    def open_report(runs, *options):
        pages.append(_open(browser, tmp_path / "report.html", runs, *options))
        return pages[-1]

    yield open_report
    for page in pages:
        assert page.events == []
        page.close()


@pytest.fixture(scope="module")
def shared_page(browser, make_runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "report.html"
    page = _open(browser, path, make_runs(num_seeds=2))
    yield page
    assert page.events == []
    page.close()


@pytest.fixture
def page(shared_page):
    """Return the report of three methods, two runs each, at the uniform target."""
    shared_page.get_by_role("button", name="Reset").click()
    shared_page.evaluate("document.querySelector('#explorer details').open = false")
    return shared_page


def _embedded(path: Path):
    text = path.read_text(encoding="utf-8")
    [data] = re.findall(r'id="explorer-data">(.*?)</script>', text)
    return json.loads(data)


def _decoded(run, num_classes: int):
    f = np.frombuffer(base64.b64decode(run["logits"]), "<f2").astype(np.float64)
    y = np.frombuffer(base64.b64decode(run["labels"]), "<u2").astype(np.int64)
    return f.reshape(-1, num_classes), y


def _profile(order, ratio: float) -> np.ndarray:
    """Return p ∝ ratio^(−k / (K − 1)) over the ranks k of these classes."""
    p = np.zeros(max(order) + 1)
    p[order] = ratio ** -(np.arange(len(order)) / (len(order) - 1))
    return p / p.sum()


def _reference(run, p_t: np.ndarray, *, compensated: bool) -> tuple[float, float]:
    """Return accuracy and calibration error, each sample weighing p_t(y) / n_y."""
    f, y = _decoded(run, len(p_t))
    if compensated:
        with np.errstate(divide="ignore"):
            f = f - np.log(run["trainedPrior"]) + np.log(p_t)
    probs = np.exp(f - f.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    w = (p_t / np.maximum(np.bincount(y, minlength=len(p_t)), 1))[y]
    correct, top = f.argmax(1) == y, probs.max(1)
    error = 0.0
    for m in range(20):
        inside = (top > m / 20) & (top <= (m + 1) / 20)
        error += abs((w * (correct - top))[inside].sum())
    return float(w[correct].sum()), error


def _shown(page, kind: str) -> list[float]:
    rows = page.locator(".scores tbody tr")
    values = [rows.nth(i).get_attribute(f"data-{kind}") for i in range(rows.count())]
    return [float(value) for value in values]


def _assert_shows(page, p_t: np.ndarray) -> None:
    """Compare what is shown with the reference, averaged over a method's runs."""
    for kind, compensated in (("raw", False), ("compensated", True)):
        expected = [
            np.mean([_reference(r, p_t, compensated=compensated) for r in m["runs"]], 0)
            for m in page.embedded["methods"]
        ]
        shown = zip(_shown(page, kind), _shown(page, f"{kind}-error"), strict=True)
        np.testing.assert_allclose(list(shown), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("shift", [-1, -0.37, 0, 0.05, 0.5, 1])
def test_slider__gives_accuracy_and_calibration_error_that_python_computes(
    page, shift: float
) -> None:
    page.locator("#shift").fill(str(shift))
    _assert_shows(page, _profile(page.embedded["order"], 50.0**shift))


def test_slider__moves_the_accuracy_shown(page) -> None:
    page.locator("#shift").fill("-1")
    backward, text = _shown(page, "raw"), page.inner_text(".scores tbody tr .raw")
    assert text == f"{100 * backward[0]:.1f}\N{NO-BREAK SPACE}%"
    page.locator("#shift").fill("1")
    assert _shown(page, "raw")[0] > backward[0] + 0.2
    sentence = page.inner_text("#explorer .sentence")
    assert re.fullmatch(
        r"On forward 50, Softmax reaches \d\d\.\d\s% as trained and \d\d\.\d\s% "
        r"re-targeted \(500 weighted images, effectively \d\d\d\)\.",
        sentence,
    )


def _size(page, p_t: np.ndarray) -> float:
    """Return (Σw)² / Σw² of the first run's samples, each of weight p_t(y) / n_y."""
    _, y = _decoded(page.embedded["methods"][0]["runs"][0], len(p_t))
    w = (p_t / np.maximum(np.bincount(y, minlength=len(p_t)), 1))[y]
    return float(w.sum() ** 2 / (w**2).sum())


def test_slider__says_the_effective_number_of_images(page) -> None:
    assert _shown(page, "size") == [pytest.approx(500)] * 3
    page.locator("#shift").fill("-1")
    expected = _size(page, _profile(page.embedded["order"], 1 / 50))
    assert 100 < expected < 300
    assert _shown(page, "size") == [pytest.approx(expected)] * 3
    shown = f"{expected:.0f}"
    assert page.locator(".scores .size").all_text_contents() == [shown] * 3
    sentence = page.inner_text("#explorer .sentence")
    assert sentence.endswith(f"(500 weighted images, effectively {shown}).")
    page.locator("#class").select_option("9")
    page.locator("#class-weight").fill("-6")
    assert "(450 weighted images, " in page.inner_text("#explorer .sentence")


def test_slider__works_by_keyboard(page) -> None:
    page.locator("#shift").focus()
    page.keyboard.press("ArrowRight")
    assert page.input_value("#shift") == "0.01"
    _assert_shows(page, _profile(page.embedded["order"], 50.0**0.01))
    page.keyboard.press("Home")
    assert page.get_attribute("#shift", "aria-valuetext") == "backward 50"
    _assert_shows(page, _profile(page.embedded["order"], 1 / 50))


def test_presets__training_mix_and_reset(page) -> None:
    page.get_by_role("button", name="Training prior").press("Enter")
    counts = np.array(page.embedded["counts"], dtype=float)
    _assert_shows(page, counts / counts.sum())
    assert page.inner_text("#target-name") == "training prior"
    page.get_by_role("button", name="Backward 10").click()
    _assert_shows(page, _profile(page.embedded["order"], 1 / 10))
    page.get_by_role("button", name="Reset").click()
    _assert_shows(page, np.full(10, 0.1))


def test_weights__of_a_group_and_of_one_class(page) -> None:
    page.locator("#group-weights input").first.fill("2")
    weights = np.ones(10)
    weights[page.embedded["groups"]["many"]] = 4
    _assert_shows(page, weights / weights.sum())
    page.locator("#class").select_option("7")
    page.locator("#class-weight").fill("-6")
    weights[7] = 0
    _assert_shows(page, weights / weights.sum())
    assert page.inner_text("#target-name") == "uniform, edited"
    assert page.get_attribute("#class-weight", "aria-valuetext") == "none"


def test_weights__none_left_is_said(page) -> None:
    for group in page.locator("#group-weights input").all():
        group.fill("-6")
    assert page.inner_text("#explorer .sentence") == (
        "All class weights are 0, so there is no target. "
        "Set at least one weight above 0."
    )
    page.get_by_role("button", name="Reset").click()
    _assert_shows(page, np.full(10, 0.1))


def test_bars__can_be_dragged(page) -> None:
    box = page.locator("#mix").bounding_box()
    x = box["x"] + 48 + (box["width"] - 56) * 0.35  # the fourth of ten bars
    page.locator("#mix").scroll_into_view_if_needed()
    box = page.locator("#mix").bounding_box()
    highest = float(page.get_attribute("#explorer", "data-highest"))
    page.mouse.move(x, box["y"] + 100)
    page.mouse.down()
    y = box["y"] + 10 + (box["height"] - 40) * 0.25
    page.mouse.move(x, y)
    page.mouse.up()
    share = 0.75 * highest
    assert page.input_value("#class") == "3"
    p_t = np.full(10, (1 - share) / 9)
    p_t[3] = share
    shown = re.search(r", ([\d.]+)\s% of the target", page.inner_text("#reading"))
    assert float(shown[1]) == pytest.approx(100 * share, abs=0.5)
    assert "edited" in page.inner_text("#target-name")


@pytest.mark.parametrize(
    "text",
    [
        "9 8 7 6 5 4 3 2 1 0",
        "[9, 8,7,6,5,4,3,2,1,0.0]\n",
        "9\n8\n7\n6\n5\n4\n3\n2\n1\n0",
    ],
)
def test_counts__can_be_pasted(page, text: str) -> None:
    page.get_by_text("Paste counts").click()
    page.locator("#counts").fill(text)
    page.get_by_role("button", name="Use these counts").click()
    _assert_shows(page, np.arange(9, -1, -1) / 45)
    assert page.inner_text("#target-name") == "pasted counts"
    assert page.inner_text("#counts-error") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1 2 3",
            "There must be 10 counts, one per class in the order of the class ids, "
            "but there are 3.",
        ),
        (
            "1 2 -3 4 5 6 7 8 9 10",
            "Counts must be numbers of at least 0, but “-3” is there.",
        ),
        (
            "<img src=x onerror=alert(1)>",
            "Counts must be numbers of at least 0, but “<img” is there.",
        ),
        ("0 0 0 0 0 0 0 0 0 0", "Counts must be finite and not all 0."),
        ("1 1 1 1 1 1 1 1 1 1e999", "Counts must be finite and not all 0."),
    ],
)
def test_counts__wrong_ones_are_refused_with_a_sentence(
    page, text: str, message: str
) -> None:
    before = _shown(page, "compensated")
    page.get_by_text("Paste counts").click()
    page.locator("#counts").fill(text)
    page.get_by_role("button", name="Use these counts").click()
    assert page.inner_text("#counts-error") == message
    assert _shown(page, "compensated") == before


def test_names__are_text_and_nothing_leaves_the_page(make_runs, open_page) -> None:
    runs = [
        dataclasses.replace(run, method=f"<i>{run.method}</i>")
        for run in make_runs(num_seeds=1, class_names=HOSTILE)
    ]
    page = open_page(runs)
    page.locator("#shift").fill("-1")
    names = page.locator("#class option").all_text_contents()
    assert names == list(HOSTILE)
    assert page.inner_text(".scores tbody th") == "<i>Softmax</i>"
    for index in range(4):
        page.locator("#class").select_option(str(index))
        assert page.inner_text("#reading").startswith(f"{HOSTILE[index]}: ")
    shown = set(page.locator(".pairs bdi").all_text_contents())
    assert shown & set(HOSTILE[:4])
    assert shown <= set(HOSTILE)
    assert page.evaluate("window.hacked === undefined")
    assert page.locator("#explorer img, #explorer b, #explorer i").count() == 0


def test_pairs__are_the_confusions_that_change_most(make_runs, open_page) -> None:
    page = open_page(make_runs(("Softmax",), 1))
    page.locator("#shift").fill("-1")
    p_t = _profile(page.embedded["order"], 1 / 50)
    run = page.embedded["methods"][0]["runs"][0]
    f, y = _decoded(run, 10)
    changes = []
    after = (f - np.log(run["trainedPrior"]) + np.log(p_t)).argmax(1)
    for a in range(10):
        for b in set(range(10)) - {a}:
            x0, x1 = ((answers[y == a] == b).mean() for answers in (f.argmax(1), after))
            changes.append((abs(x1 - x0) * p_t[a], a, b, x0, x1))
    _, a, b, x0, x1 = max(changes)
    first = page.locator(".pairs li").first
    assert first.locator(".words").inner_text() == f"class {a} predicted as class {b}"
    shares = re.findall(r"\d+", first.locator(".shares").inner_text())
    assert [int(s) for s in shares] == [round(100 * x0), round(100 * x1)]


def test_unknown_prior__only_raw_results(make_runs, open_page) -> None:
    [run] = make_runs(("Softmax",), 1)
    unknown = dataclasses.replace(run.predictions, source_counts=None, logit_prior=None)
    page = open_page([dataclasses.replace(run, predictions=unknown)])
    page.locator("#shift").fill("1")
    expected, _ = _reference(
        page.embedded["methods"][0]["runs"][0],
        _profile(range(10), 50),
        compensated=False,
    )
    assert _shown(page, "raw") == [pytest.approx(expected, abs=1e-6)]
    row = page.locator(".scores tbody tr")
    assert row.get_attribute("data-compensated") == ""
    assert row.locator(".compensated").inner_text() == "–"
    assert "is unknown, so they are not re-targeted" in page.inner_text(".sentence")
    assert page.get_by_role("button", name="Training prior").count() == 0


def test_extreme_logits__do_not_underflow(open_page) -> None:
    """The likeliest class is knocked out, and the others are e^−2000 times less so."""
    f = torch.tensor([[0.0, -2000.0, -2001.0], [0.0, -2001.0, -2000.0]])
    y, p = torch.tensor([1, 2]), torch.tensor([0.5, 0.25, 0.25])
    labels, f = torch.cat([y, torch.tensor([0])]), torch.cat([f, torch.eye(3)[:1]])
    runs = [ReportRun("A", 0, Predictions(f, labels, torch.tensor([2, 1, 1]), p))]
    page = open_page(runs)
    page.get_by_text("Paste counts").click()
    page.locator("#counts").fill("0 1 1")
    page.get_by_role("button", name="Use these counts").click()
    assert _shown(page, "compensated") == [1.0]
    assert _shown(page, "raw") == [0.0]


def test_classes_without_test_images__are_left_out(open_page) -> None:
    torch.manual_seed(0)
    f, y = torch.randn(60, 4), torch.arange(3).repeat(20)  # none of class 3
    counts = torch.tensor([8, 4, 2, 1])
    runs = [ReportRun("A", 0, Predictions(f, y, counts, counts / 15))]
    page = open_page(runs)
    page.locator("#shift").fill("1")
    _assert_shows(page, np.append(_profile([0, 1, 2], 50), 0))


def test_halves__are_decoded_to_the_last_bit(make_runs, open_page) -> None:
    page = open_page(make_runs(("LADE",), 1))
    bits = np.arange(65536, dtype="<u2")
    decoded = page.evaluate(
        "text => Array.from(decodeHalves(text), (x) => Number.isNaN(x) ? 'nan' : "
        "String(x))",
        base64.b64encode(bits.tobytes()).decode(),
    )
    values = np.array([float(x.replace("Infinity", "inf")) for x in decoded])
    np.testing.assert_array_equal(values, bits.view("<f2").astype(np.float64))


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page__fits_its_width(make_runs, open_page, width: int, scheme: str) -> None:
    page = open_page(make_runs(), width, scheme)
    page.locator("#shift").fill("0.5")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for name in ("mix", "classes", "reliability"):
        painted = page.evaluate(
            f"() => {{ const c = document.getElementById('{name}'); const d = "
            "c.getContext('2d').getImageData(0, 0, c.width, c.height).data; "
            "return d.some((v) => v > 0); }"
        )
        assert painted, name


def test_update__of_ten_thousand_images_and_a_hundred_classes(
    open_page, capsys
) -> None:
    """Prints how long an update takes; how fast the machine is, is not ours to test."""
    torch.manual_seed(0)
    y = torch.arange(100).repeat(100)
    f = torch.randn(10_000, 100)
    f[torch.arange(len(y)), y] += 2
    counts = torch.arange(100, 0, -1)
    predictions = Predictions(f, y, counts, counts / counts.sum())
    page = open_page([ReportRun("LADE", 0, predictions)])
    times = []
    for shift in np.linspace(-1, 1, 21):
        page.locator("#shift").fill(f"{shift:.2f}")
        times.append(float(page.get_attribute("#explorer", "data-milliseconds")))
    _assert_shows(page, _profile(page.embedded["order"], 50))
    with capsys.disabled():
        sys.stdout.write(
            f"\nupdate: median {np.median(times):.1f} ms, worst {max(times):.1f} ms\n"
        )
