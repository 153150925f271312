"""The page in a real browser: it draws, fetches nothing and shows names as text."""

from pathlib import Path

import pytest

from tailshift.report import write_report

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: no browser to drive"
)

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<b>bold</b> &amp; &lt;i&gt;",
    '<a href="https://example.org">link</a>',
    "<!-- <script>",
    '%{y} $x^2$ it\'s "it"',
    "same",
    "same",
    "\u202eright to left",
    "漢字",
)


@pytest.fixture
def report(make_runs, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    runs = make_runs(num_seeds=2, class_names=HOSTILE)
    write_report(path, runs, title="<script>window.hacked = 3</script>")
    return path


def _open(browser, report: Path, width: int = 1280, scheme: str = "light"):
    """Return the drawn page, and the list of what it complained about or asked for."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    events: list[str] = []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("request", lambda request: events.append(request.url))
    page.goto(report.as_uri())
    assert page.locator(".plot").count() == 3
    return page, events


@pytest.mark.parametrize("width", [1280, 390])
def test_page__draws_quietly_and_asks_for_nothing(
    browser, report: Path, width: int
) -> None:
    page, events = _open(browser, report, width)
    page.mouse.wheel(0, 5000)
    assert events == [report.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("#target-shift .line:visible").count() == 5
    page.close()


def test_page__hostile_names_are_text(browser, report: Path) -> None:
    page, events = _open(browser, report)
    assert page.title() == "<script>window.hacked = 3</script>"
    page.get_by_text("Numbers by class").click()
    assert page.locator("details tbody th bdi").all_inner_texts() == [
        *HOSTILE[:8],
        "right to left",
        "漢字",
    ]
    ticks = page.locator("#class-counts .ticks text").all_text_contents()
    assert ticks[0] == "</script><scr…"
    assert ticks[2] == "<b>bold</b> &…"
    page.locator("#class-counts").focus()
    for name in HOSTILE[:8]:
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#class-counts .tip strong") == name
    assert page.evaluate("window.hacked === undefined")
    assert page.locator("img, a[href^=http], b").count() == 0
    assert events == [report.as_uri()]
    page.close()


def test_page__follows_the_colour_scheme(browser, report: Path) -> None:
    page, _ = _open(browser, report, scheme="light")
    tick = page.locator("#target-shift .ticks text").first
    playwright.expect(tick).to_have_css("fill", "rgb(89, 100, 116)")
    page.emulate_media(color_scheme="dark")
    playwright.expect(tick).to_have_css("fill", "rgb(159, 171, 187)")
    page.close()


def test_page__legend_works_by_keyboard(browser, report: Path) -> None:
    page, _ = _open(browser, report)
    button = page.get_by_role("button", name="PC Softmax").first
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    shown = page.locator("#target-shift .line:visible")
    assert shown.count() == 4
    page.locator("#target-shift").press("End")
    assert page.locator("#target-shift .tip p").count() == 4
    button.press("Space")
    assert shown.count() == 5
    page.close()


def test_tooltips__show_the_numbers_of_the_tables(browser, report: Path) -> None:
    page, events = _open(browser, report)
    cells = (
        page.locator("#by-target tbody tr").nth(1).locator("th, td").all_inner_texts()
    )
    area = page.locator("#target-shift .area")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 1.5 / 11, box["y"] + 100)
    tip = page.locator("#target-shift .tip")
    assert tip.locator("strong").inner_text() == cells[0] == "forward 25"
    assert tip.locator("p span").all_inner_texts() == cells[1:6]
    assert tip.locator("p").first.inner_text().startswith("Softmax")
    page.mouse.move(5, 5)
    assert tip.inner_text() == ""
    page.get_by_text("Numbers by class").click()
    rows = page.locator("#by-class tbody tr")
    average = page.locator("#average-probability")
    for key, row in (("End", 9), ("ArrowLeft", 8), ("Home", 0)):
        average.press(key)
        shown = average.locator(".tip p span").all_inner_texts()
        assert shown == rows.nth(row).locator("td").all_inner_texts()[2:]
    average.press("Escape")
    assert average.locator(".tip").inner_text() == ""
    assert events == [report.as_uri()]
    page.close()
