"""Takes the pictures of the page that `docs/server.md` shows:

    python docs/take_screenshots.py

It needs Chromium, and `pip install playwright`. It serves the embedded model, makes some pictures
with the page, and looks while others are under way.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import trio
from playwright.sync_api import Page, sync_playwright

from sidestream.engine import open_engine
from sidestream.server import ServerConfig, create_app, serve

FOLDER = Path(__file__).parent
DONE = (
    ("a small yellow star left of a large purple heart", 3),
    ("a large orange diamond on a black background", 3),
    ("a large green triangle right of a small red circle on a white background", 2),
    ("a large red circle above a small blue square", 2),
)
UNDER_WAY = (
    ("a large blue star above a small orange heart on a white background", 3, 120),
    ("a small white square below a large purple circle on a green background", 2, 120),
)
VIEW = {"width": 1360, "height": 1080}
PATIENCE_MS = 120_000


async def main() -> None:
    """Serve the model, and look at it in both schemes."""
    async with (
        open_engine(model="shapes", device="cpu", mode="step", max_num_seqs=2) as engine,
        trio.open_nursery() as nursery,
    ):
        app = create_app(engine, ServerConfig(port=0))
        url: str = await nursery.start(lambda task_status: serve(app, task_status=task_status))
        for scheme in ("light", "dark"):
            await trio.to_thread.run_sync(take, url, scheme)
        nursery.cancel_scope.cancel("both are taken")


def take(url: str, scheme: str) -> None:
    """Take the picture of one scheme."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=VIEW, color_scheme=scheme, reduced_motion="reduce")
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        for index, (prompt, seed) in enumerate(DONE, 1):
            generate(page, prompt, seed)
            page.locator(".card[data-state=done]").nth(index - 1).wait_for()
        for prompt, seed, steps in UNDER_WAY:
            page.get_by_label("Steps").fill(str(steps))
            generate(page, prompt, seed)
        for index in range(len(UNDER_WAY)):
            page.locator(".card[data-state=running] .preview").nth(index).wait_for()
        page.screenshot(path=FOLDER / f"playground-{scheme}.png")
        for _ in UNDER_WAY:
            page.keyboard.press("Escape")
        page.locator(".card[data-state=cancelled]").nth(len(UNDER_WAY) - 1).wait_for()
        browser.close()


def generate(page: Page, prompt: str, seed: int) -> None:
    """Fill the form in and send it."""
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_label("Seed").fill(str(seed))
    page.keyboard.press("Control+Enter")


if __name__ == "__main__":
    trio.run(main)
