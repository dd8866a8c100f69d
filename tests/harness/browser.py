"""Headless Chromium, driven from a thread: its library has an event loop of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio
from playwright.sync_api import ConsoleMessage, Locator, Page, sync_playwright

from .surroundings import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium"
)
REFUSED = "Failed to load resource"
"""How the console begins to tell of an answer that is an error."""


class Chromium:
    """A browser, on a thread of its own; end it with `close`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(self._launch).result()

    def _launch(self) -> None:
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
            timeout=PATIENCE * 1000,
        )

    def close(self) -> None:
        """End it."""
        self._thread.submit(self._browser.close).result()
        self._thread.submit(self._playwright.stop).result()
        self._thread.shutdown()

    async def browse(
        self, url: str, script: Callable[[Page], Any], *, refusals: bool = False, **options: Any
    ) -> Any:
        """Open a page that remembers nothing, run a script on it, and return what that returns.

        Args:
          url: of the page.
          script: called on the browser's thread.
          refusals: whether answers may be errors; all else that the console tells is a failure.
          options: of the page, such as ``color_scheme``.
        """
        done = self._thread.submit(self._browse, url, script, refusals, options)
        return await trio.to_thread.run_sync(done.result)

    def _browse(
        self, url: str, script: Callable[[Page], Any], refusals: bool, options: dict[str, Any]
    ) -> Any:
        complaints: list[str] = []
        with self._browser.new_context(**options) as context:
            context.set_default_timeout(PATIENCE * 1000)
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda message: complaints.extend(_complaint(message)))
            page.goto(url)
            result = script(page)
        complaints = [text for text in complaints if not (refusals and text.startswith(REFUSED))]
        assert not complaints, complaints
        return result


def _complaint(message: ConsoleMessage) -> list[str]:
    return [message.text] if message.type in ("error", "warning") else []


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
