"""Headless Chromium, driven from a thread: its library has an event loop of its own."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import trio
from playwright.sync_api import Locator, Page, sync_playwright

from .surroundings import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
)
REFUSED = "Failed to load resource"
"""How the console begins to tell of an answer that is an error."""


async def browse(
    url: str, script: Callable[[Page], Any], *, refusals: bool = False, **options: Any
) -> Any:
    """Open a page, run a script on it, and return what that returns.

    Args:
      url: of the page.
      script: called in a thread.
      refusals: whether answers may be errors; all else that the console tells is a failure.
      options: of the page, such as ``color_scheme``.
    """
    return await trio.to_thread.run_sync(
        functools.partial(_browse, url, script, refusals=refusals, **options)
    )


def _browse(url: str, script: Callable[[Page], Any], *, refusals: bool, **options: Any) -> Any:
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            timeout=PATIENCE * 1000,
        )
        page = browser.new_page(**options)
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: (
                message.type in ("error", "warning") and complaints.append(message.text)
            ),
        )
        page.goto(url)
        result = script(page)
        browser.close()
    complaints = [text for text in complaints if not (refusals and text.startswith(REFUSED))]
    assert not complaints, complaints
    return result


def ready(page: Page) -> None:
    """Wait until the page knows the model."""
    page.locator("#generate:enabled").wait_for()


def generate(page: Page, prompt: str = "x", **fields: object) -> None:
    """Fill the form in, by its labels, and send it."""
    ready(page)
    page.get_by_label("Prompt", exact=True).fill(prompt)
    for label, value in fields.items():
        page.get_by_label(label, exact=True).fill(str(value))
    page.get_by_role("button", name="Generate").click()


def card(page: Page, state: str, index: int = 0) -> Locator:
    """Wait for a card in a state, and return it."""
    found = page.locator(f".card[data-state={state}]").nth(index)
    found.wait_for()
    return found


def pixels_of(image: Locator) -> str:
    """Return a picture as the page shows it: base64 of a PNG."""
    url: str = image.evaluate(
        """async (image) => {
            await image.decode();
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
            canvas.getContext("2d").drawImage(image, 0, 0);
            return canvas.toDataURL();
        }"""
    )
    return url.partition(",")[2]
