"""The watch page in a real browser: it shows, updates, approves and fetches nothing."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tailshift import Run

pytest.importorskip("fastapi")
pytest.importorskip("onnxruntime")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: no browser to drive"
)


pytestmark = pytest.mark.filterwarnings(
    "ignore::tailshift.estimators.FewSamplesWarning"
)
HOSTILE = "<img src=x onerror='window.hacked = 1'>"
NAMES = ["harbour", "north ridge, camera 4", HOSTILE]


server = pytest.importorskip("tailshift.serving.server")


class Watched(NamedTuple):
    """A server that is up, and where."""

    service: Any
    address: str


@pytest.fixture(scope="module")
def watched(
    trained: Run, model_file: Path, rows_of: Any, serving: Callable[..., Any]
) -> Iterator[Watched]:
    """Serve three sites: two that have shifted, one that has not."""
    service = server.open_service(
        model_file, held_out=trained.predictions("val"), threads=1
    )
    f = trained.predictions("test").logits.numpy()
    source = trained.source_prior.numpy()
    mixes = (np.arange(1, 11), source, source[::-1])
    for part in range(2):
        for name, shares in zip(NAMES, mixes, strict=True):
            service.sites.record(name, f[rows_of(shares, 150, seed=part)])
        service.sites.refresh()
    with serving(server.build_app(service)) as address:
        yield Watched(service, address)


@pytest.fixture(scope="module")
def locked(model_file: Path, serving: Callable[..., Any]) -> Iterator[str]:
    service = server.open_service(model_file, threads=1)
    with serving(server.build_app(service, token="sesame")) as address:
        yield address


def _open(browser: Any, address: str, width: int = 1280, scheme: str = "light") -> Any:
    """Return the page, and the list of what it complained about or asked for."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    events: list[str] = []
    page.on("console", lambda message: events.append(message.text))
    page.on("pageerror", lambda error: events.append(str(error)))
    page.on("request", lambda request: events.append(request.url))
    page.goto(address)
    return page, events


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page__shows_sites_and_fetches_nothing_else(
    browser: Any, watched: Watched, width: int, scheme: str
) -> None:
    page, events = _open(browser, watched.address, width, scheme)
    playwright.expect(page.locator("#charts figure")).to_have_count(8)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    names = page.locator("#rows bdi").all_inner_texts()
    assert sorted(names) == sorted(NAMES)
    assert page.evaluate("window.hacked === undefined")
    assert page.locator("img").count() == 0
    seen = page.locator("#alarms li").all_inner_texts()
    shifted = (
        r"harbour The class distribution has shifted: the estimate and the training "
        r"prior, which predictions use, differ in \d+% of the images\."
    )
    assert any(re.fullmatch(shifted, line) for line in seen)
    assert all(event.startswith((watched.address, "data:")) for event in events)
    page.close()


def test_page__approves_and_goes_back_by_keyboard(
    browser: Any, watched: Watched
) -> None:
    page, _ = _open(browser, watched.address)
    choice = page.get_by_role("button", name="harbour")
    choice.focus()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#name")).to_have_text("harbour")
    playwright.expect(choice).to_have_attribute("aria-pressed", "true")
    facts = dict(
        pair.split("\n", 1) for pair in page.locator("#facts > div").all_inner_texts()
    )
    expected = watched.service.sites.get("harbour").expected
    for mix, figures in zip(("training", "estimated"), 100 * expected, strict=True):
        value, low, high = figures
        text = f"{value:.1f}\xa0% ({low:.1f} to {high:.1f})"
        assert facts[f"Expected accuracy, {mix} prior"] == text
    page.get_by_role("button", name="Approve estimate").focus()
    page.keyboard.press("Enter")
    told = page.get_by_role("status")
    playwright.expect(told).to_have_text("Predictions now use the approved prior.")
    site = watched.service.sites.get("harbour")
    np.testing.assert_array_equal(site.approved, site.estimate)
    playwright.expect(page.locator("#charts .approved")).to_have_count(8)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    playwright.expect(told).to_have_text("Predictions now use the training prior.")
    np.testing.assert_array_equal(site.approved, watched.service.model.source_prior)
    page.get_by_label("Adaptation policy").select_option("auto")
    playwright.expect(told).to_have_text("Adaptation policy: automatic.")
    assert watched.service.sites.mix("harbour").origin == "estimate"
    page.close()


def test_page__updates_by_itself(browser: Any, watched: Watched) -> None:
    page, _ = _open(browser, watched.address)
    cell = page.locator("#rows tr", has_text="north ridge").locator("td").first
    playwright.expect(cell).to_have_text("300")
    watched.service.sites.record(NAMES[1], np.zeros((7, 10), np.float32))
    playwright.expect(cell).to_have_text("307", timeout=10_000)
    page.close()


def test_page__asks_for_the_token(browser: Any, locked: str) -> None:
    page, _ = _open(browser, locked)
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Open").click()
    playwright.expect(page.locator("#updated")).to_have_text(
        "Not updated: `Authorization` must be Bearer and the token."
    )
    page.get_by_label("Token").fill("sesame")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#lead")).to_have_text(
        "No images received yet. POST images to /predict with a site."
    )
    playwright.expect(page.locator("#login")).to_be_hidden()
    page.close()
