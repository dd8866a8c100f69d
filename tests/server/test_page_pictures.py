"""Pictures that the page sends: chosen, dropped or pasted, in headless Chromium."""

from __future__ import annotations

import base64
import io
import re

import httpx2
import numpy as np
import pytest

pytest.importorskip("playwright", reason="needs playwright")

from PIL import Image
from playwright.sync_api import expect

from sidestream.engine import open_engine

from ..harness.browser import card, generate, needs_chromium, pixels_of, ready
from ..harness.engines import LONG, filming, offer_pipelines, painting
from ..harness.http import picture_of, png, served
from ..harness.surroundings import PATIENCE, assert_idle
from ..harness.videos import VIDEOS, frames_of, ids

pytestmark = needs_chromium

SETTINGS = {"device": "cpu", "warmup": False}
PICTURE = png(color=(200, 40, 40))
HALF = Image.new("L", (64, 64))
HALF.paste(255, (0, 0, 32, 64))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    offer_pipelines(monkeypatch)
    expect.set_options(timeout=PATIENCE * 1000)


def opened(data: bytes) -> Image.Image:
    """Return the picture of a file."""
    return Image.open(io.BytesIO(data))


def half_mask() -> bytes:
    """Return a mask as a file: its left half is painted anew."""
    file = io.BytesIO()
    HALF.save(file, "png")
    return file.getvalue()


def upload(name: str, data: bytes) -> dict[str, object]:
    """Describe a file to the browser."""
    return {"name": name, "mimeType": "image/png", "buffer": data}


def bring(page, kind: str, data: bytes, onto: str) -> bool:
    """Drop or paste a file onto an element; return whether the page took it."""
    return page.locator(onto).evaluate(
        """(target, [kind, base64]) => {
            const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
            const files = new DataTransfer();
            files.items.add(new File([bytes], `${kind}.png`, { type: "image/png" }));
            const how = { bubbles: true, cancelable: true };
            const event = kind === "paste"
                ? new ClipboardEvent(kind, { clipboardData: files, ...how })
                : new DragEvent(kind, { dataTransfer: files, ...how });
            return !target.dispatchEvent(event);
        }""",
        [kind, base64.b64encode(data).decode()],
    )


def same(shown: str, expected) -> bool:
    """Compare what the page shows with what the engine makes."""
    return np.array_equal(picture_of(shown).convert("RGB"), expected.output)


async def test_a_picture_is_chosen_with_the_keyboard_and_edited(chromium):
    def script(page):
        ready(page)
        field = page.locator("#image")
        expect(field).to_have_accessible_name("Picture")
        expect(field).to_have_js_property("required", True)
        expect(page.get_by_label("Mask", exact=True)).to_be_hidden()
        expect(page.get_by_label("Width")).to_be_hidden()
        page.keyboard.press("Tab")  # from the prompt, over the negative one
        page.keyboard.press("Tab")
        expect(field).to_be_focused()
        assert field.evaluate("field => getComputedStyle(field).outlineStyle") != "none"
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Space")
        chooser.value.set_files(upload("red.png", PICTURE))
        expect(page.locator("[data-field=image] img")).to_have_js_property("naturalWidth", 64)
        generate(page, "a cat", Steps=4, Strength=0.5, Seed=3)
        done = card(page, "done")
        expect(done).to_contain_text("red.png · seed 3 · 4 steps")
        expect(done).to_contain_text("strength 0.5")
        return pixels_of(done.locator("img"))

    async with (
        open_engine(SETTINGS, model="random:sd15-img2img") as engine,
        served(engine) as server,
    ):
        shown = await chromium.browse(server.url, script)
        extra = {"image": opened(PICTURE), "strength": 0.5}
        expected = await engine.generate("a cat", seed=3, num_inference_steps=4, extra_args=extra)
        assert same(shown, expected)
        await assert_idle(engine)


async def test_a_picture_is_dropped_a_mask_is_pasted_and_both_are_used_again(chromium):
    def script(page):
        ready(page)
        assert bring(page, "dragover", PICTURE, "#gallery"), "the browser would open the file"
        assert bring(page, "drop", PICTURE, "#gallery")
        page.get_by_label("Mask", exact=True).focus()
        assert bring(page, "paste", half_mask(), "#mask")
        for name in ("image", "mask"):
            expect(page.locator(f"[data-field={name}] img")).to_be_visible()
        generate(page, "a cat", Steps=2, Seed=3)
        first = card(page, "done")
        expect(first).to_contain_text("drop.png · paste.png")
        page.get_by_role("button", name="Remove the mask").click()
        expect(page.get_by_label("Mask", exact=True)).to_be_focused()
        expect(page.locator("[data-field=mask] img")).to_be_hidden()
        generate(page, "a dog", Seed=3)
        expect(card(page, "failed")).to_contain_text("mask: the model works on one")
        expect(page.get_by_label("Mask", exact=True)).to_have_attribute("aria-invalid", "true")
        first = page.locator(".card", has_text="a cat")
        first.get_by_role("button", name="Use again").click()
        expect(page.get_by_label("Mask", exact=True)).not_to_have_attribute("aria-invalid", "true")
        page.get_by_role("button", name="Generate").click()
        card(page, "done", 1)
        made = page.locator(".card[data-state=done] img")
        return [pixels_of(made.nth(index)) for index in range(2)]

    async with (
        open_engine(SETTINGS, model="random:sd15-inpaint") as engine,
        served(engine) as server,
    ):
        shown = await chromium.browse(server.url, script, refusals=True)
        extra = {"image": opened(PICTURE), "mask_image": HALF}
        expected = await engine.generate("a cat", seed=3, num_inference_steps=2, extra_args=extra)
        assert same(shown[0], expected)
        assert same(shown[1], expected)
        await assert_idle(engine)


async def test_a_picture_that_is_missing_or_none_is_asked_for(chromium):
    def script(page):
        generate(page)
        field = page.locator("#image")
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_have_accessible_description("The model works on one")
        expect(field).to_be_focused()
        expect(page.locator(".card")).to_have_count(0)
        field.set_input_files(upload("text.png", b"no picture"))
        expect(field).not_to_have_attribute("aria-invalid", "true")
        generate(page)
        expect(card(page, "failed")).to_contain_text("no picture that can be read")
        expect(field).to_have_attribute("aria-invalid", "true")

    async with (
        open_engine(SETTINGS, model="random:sd15-img2img") as engine,
        served(engine) as server,
    ):
        await chromium.browse(server.url, script, refusals=True)
        assert engine.statistics().completed == 0
        await assert_idle(engine)


async def test_a_picture_may_be_left_out_where_the_model_can_do_without(chromium):
    def script(page):
        generate(page, Seed=3)
        card(page, "done")
        field = page.get_by_label("Picture (optional)", exact=True)
        field.set_input_files(upload("grey.png", png(color=(99, 99, 99))))
        generate(page, "edited", Seed=3)
        card(page, "done", 1)
        return pixels_of(page.locator(".card", has_text="edited").locator("img"))

    async with open_engine(painting("uni")) as engine, served(engine) as server:
        shown = picture_of(await chromium.browse(server.url, script))
        assert np.unique(shown.convert("L")).tolist() == [99]
        await assert_idle(engine)


async def test_a_video_starts_from_a_picture(chromium):
    def script(page):
        ready(page)
        grey = upload("grey.png", png(color=(77, 77, 77)))
        page.locator("#input_reference").set_input_files(grey)
        generate(page, Seconds=0.25)
        expect(card(page, "done")).to_contain_text("grey.png")

    async with open_engine(filming("uni")) as engine, served(engine) as server:
        await chromium.browse(server.url, script)
        async with httpx2.AsyncClient(base_url=server.url) as client:
            (video,) = await ids(client)
            frames = frames_of((await client.get(f"{VIDEOS}/{video}/content")).content)
        assert np.abs(frames[0].astype(int) - 77).max() <= 3
        await assert_idle(engine)


async def test_an_edit_tells_its_steps_and_is_cancelled(chromium):
    def script(page):
        ready(page)
        page.locator("#image").set_input_files(upload("a.png", PICTURE))
        generate(page)
        expect(card(page, "running")).to_contain_text(re.compile(rf"Step \d+ of {LONG}"))
        page.keyboard.press("Escape")
        card(page, "cancelled")

    config = painting("uni", options={"forward_ms": 60_000, "steps": LONG})
    async with open_engine(config) as engine, served(engine) as server:
        await chromium.browse(server.url, script)
        await assert_idle(engine)
        assert engine.statistics().aborted == 1


async def test_a_model_that_takes_no_picture_is_given_none(chromium):
    def script(page):
        ready(page)
        for label in ("Picture", "Picture (optional)", "Mask", "Strength", "First picture"):
            expect(page.get_by_label(label, exact=True)).to_be_hidden()
        assert not bring(page, "paste", PICTURE, "#prompt")
        generate(page)
        card(page, "done")

    async with (
        open_engine(SETTINGS, model="random:sd15") as engine,
        served(engine) as server,
    ):
        await chromium.browse(server.url, script)
        await assert_idle(engine)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_what_is_chosen_can_be_read_in_the_dark_and_in_the_light(chromium, scheme):
    def script(page):
        ready(page)
        return page.locator("#image").evaluate(
            """(field) => {
                const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).reduce(
                    (sum, part) => sum + Number(part), 0);
                const button = getComputedStyle(field, "::file-selector-button");
                const { color, backgroundColor } = getComputedStyle(field);
                return [[color, backgroundColor], [button.color, button.backgroundColor]].map(
                    (pair) => pair.map(light));
            }"""
        )

    async with open_engine(painting("uni")) as engine, served(engine) as server:
        pairs = await chromium.browse(server.url, script, color_scheme=scheme)
    for ink, paper in pairs:
        assert abs(ink - paper) > 400
        assert (ink < paper) == (scheme == "light")
