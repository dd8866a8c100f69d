"""What the page's form has for some models only, in headless Chromium."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

from sidestream.engine import open_engine

from ..harness.adapters import save_adapters
from ..harness.browser import card, generate, needs_chromium, pixels_of, ready
from ..harness.http import picture_of, served
from ..harness.surroundings import PATIENCE, assert_idle

pytestmark = needs_chromium


@pytest.fixture(autouse=True)
def patience():
    expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """The setting of an engine with two adapters."""
    return save_adapters("sd15", tmp_path_factory.mktemp("adapters"), ["ink", "gold-leaf"])


async def test_adapters_are_chosen_with_the_keyboard(chromium, lora):
    def script(page):
        ready(page)
        press, focused = page.keyboard.press, page.locator(":focus")
        expect(page.get_by_role("group", name="Adapters")).to_be_visible()
        for label in ("Prompt", "Steps", "Seed"):
            page.get_by_label(label, exact=True).fill("2")
        expect(page.get_by_label("Scale of ink")).to_be_disabled()
        page.get_by_label("Guidance").focus()
        while focused.get_attribute("type") != "checkbox":
            press("Tab")
        press("Space")  # ink
        press("Tab")
        expect(page.get_by_label("Scale of ink")).to_be_focused()
        page.keyboard.type("0.5")
        press("Tab")
        press("Space")  # gold-leaf, as strong as it is
        press("Control+Enter")
        first = card(page, "done")
        expect(first).to_contain_text("ink 0.5 · gold-leaf 1")
        page.get_by_label("gold-leaf", exact=True).uncheck()
        page.get_by_label("ink", exact=True).uncheck()
        generate(page, "plain", Seed=2)
        card(page, "done", 1)
        page.locator(".card", has_text="ink").get_by_role("button", name="Use again").click()
        expect(page.get_by_label("ink", exact=True)).to_be_checked()
        expect(page.get_by_label("Scale of ink")).to_have_value("0.5")
        expect(page.get_by_label("gold-leaf", exact=True)).to_be_checked()
        page.get_by_label("gold-leaf", exact=True).uncheck()
        page.get_by_role("button", name="Generate").click()
        card(page, "done", 2)
        return [pixels_of(page.locator(".card img").nth(index)) for index in range(3)]

    config = {"model": "random:sd15", "lora": lora, "device": "cpu", "warmup": False}
    async with open_engine(config) as engine, served(engine) as server:
        shown = await chromium.browse(server.url, script)
        chosen = (("2", {"ink": 0.5}), ("plain", {}), ("2", {"ink": 0.5, "gold-leaf": 1.0}))
        for picture, (prompt, scales) in zip(shown, chosen, strict=True):  # the latest is first
            expected = await engine.generate(prompt, seed=2, num_inference_steps=2, lora=scales)
            assert np.array_equal(picture_of(picture).convert("RGB"), expected.output)
        assert len(set(shown)) == 3
        await assert_idle(engine)


async def test_a_scale_that_is_refused_is_marked(chromium, lora):
    def script(page):
        ready(page)
        scale = page.get_by_label("Scale of gold-leaf")
        page.get_by_label("gold-leaf", exact=True).check()
        scale.fill("1000")
        generate(page, "x", Steps=1)
        expect(card(page, "failed")).to_contain_text("lora.gold-leaf: ")
        expect(scale).to_have_attribute("aria-invalid", "true")
        expect(scale).to_have_accessible_description("Input should be less than or equal to 100")
        scale.fill("1")
        expect(scale).not_to_have_attribute("aria-invalid", "true")
        generate(page, "x")
        card(page, "done")

    config = {"model": "random:sd15", "lora": lora, "device": "cpu", "warmup": False}
    async with open_engine(config) as engine, served(engine) as server:
        await chromium.browse(server.url, script, refusals=True)
        await assert_idle(engine)
