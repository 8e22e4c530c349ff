"""The top of a report as a picture: python -m bench.screenshot REPORT.html OUT.png

Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

WIDTH, HEIGHT = 1120, 1192
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


def shoot(page: Path, out: Path, theme: str = "light") -> None:
    """The first screen, with its figures drawn."""
    from playwright.sync_api import sync_playwright

    browser = next((found for name in _NAMES if (found := shutil.which(name))), None)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=browser, args=_FLAGS)
        size = {"width": WIDTH, "height": HEIGHT}
        tab = opened.new_page(viewport=size, color_scheme=theme)
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("body[data-ready=yes]")
        tab.wait_for_selector("figure.plot .main-svg")
        tab.mouse.move(0, 0)
        tab.screenshot(path=out)
        opened.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    shoot(given.page, given.out)
