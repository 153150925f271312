"""Take the README's picture of the report from ``results/logits/``.

Run ``python docs/screenshots.py`` (needs Chromium and Playwright) to write
``docs/images/report_page.png``.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tailshift.report import write_report
from tailshift.report.runs import run_from_logits

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "report_page.png"
RUNS = {
    "Softmax": "cifar100_lt_ir100_softmax_quick-seed0",
    "Balanced Softmax": "cifar100_lt_ir100_balanced_softmax_quick-seed0",
    "LADE (paper)": "cifar100_lt_ir100_lade_paper_quick-paper-seed0",
    "LADE (official)": "cifar100_lt_ir100_lade_quick-official-seed0",
}
WIDTH, SHIFT = 1280, -0.8


def main() -> None:
    """Write the page, move its target, and keep what is seen."""
    folder = ROOT / "results" / "logits"
    runs = [
        run_from_logits(f"{name}={folder / file}.safetensors")
        for name, file in RUNS.items()
    ]
    PICTURE.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as temporary, sync_playwright() as driver:
        page = Path(temporary) / "report.html"
        write_report(page, runs, title="CIFAR-100-LT, imbalance ratio 100")
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        take_picture(browser, page)
    Image.open(PICTURE).convert("RGB").save(PICTURE, optimize=True)


def take_picture(browser: Browser, report: Path) -> None:
    """Keep the interactive section down to the accuracy of each class."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 1900})
    page.goto(report.as_uri())
    page.wait_for_selector("#explorer[data-milliseconds]")
    page.locator("#shift").fill(str(SHIFT))
    page.locator("#shift").blur()
    top = page.locator("#explorer").bounding_box()
    bottom = page.locator("#classes").bounding_box()
    assert top is not None
    assert bottom is not None
    height = bottom["y"] + bottom["height"] - top["y"] + 12
    page.screenshot(path=PICTURE, clip={**top, "height": height}, full_page=True)


if __name__ == "__main__":
    main()
