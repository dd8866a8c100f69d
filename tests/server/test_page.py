"""The page, in headless Chromium, against a server that runs."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import trio

pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import expect

from sidestream.engine import open_engine

from ..harness.browser import card, generate, needs_chromium, pixels_of, ready
from ..harness.engines import LONG, filming, offer_pipelines, painting
from ..harness.gates import OutputGate, gated
from ..harness.http import picture_of, served
from ..harness.surroundings import PATIENCE, assert_idle, settled

pytestmark = needs_chromium

SLOW = {"forward_ms": 60_000, "steps": LONG}
PROMPT = "a large red circle on a white background"


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)
    expect.set_options(timeout=PATIENCE * 1000)


async def test_what_the_engine_makes_is_shown(chromium):
    def script(page):
        generate(page, PROMPT, Steps=4, Seed=7)
        done = card(page, "done")
        expect(done).to_contain_text(PROMPT)
        expect(done).to_contain_text("seed 7 · 4 steps")
        expect(done).to_contain_text("forward")
        expect(page.get_by_role("status")).to_have_text("Picture 1 is done")
        return pixels_of(done.locator("img"))

    async with (
        open_engine(model="shapes", device="cpu", mode="step") as engine,
        served(engine) as server,
    ):
        expected = await engine.generate(PROMPT, seed=7, num_inference_steps=4)
        shown = picture_of(await chromium.browse(server.url, script))
        assert np.array_equal(shown.convert("RGB"), expected.output)
        await assert_idle(engine)


async def test_the_timeline_shows_what_runs_and_what_has_run(chromium):
    def drawn(page, kind):
        return page.locator(f"path.{kind}").get_attribute("d")

    def script(page):
        for count in range(1000):  # what was more than ten seconds ago is shown no longer
            generate(page, Steps=4)
            card(page, "done", count)
            if drawn(page, "forward") and drawn(page, "copy"):
                break
        else:
            raise AssertionError("no forward was drawn")
        expect(page.locator("#queue")).to_have_text("0 running, 0 waiting")
        expect(page.locator("path.open")).to_have_attribute("d", "")
        generate(page, Steps=LONG)
        expect(page.locator("path.open")).to_have_attribute("d", re.compile("M"))
        expect(page.locator("#queue")).to_have_text("1 running, 0 waiting")
        expect(page.locator(".lane-figure")).to_contain_text(re.compile(r"[1-9]\d* % busy"))
        page.keyboard.press("Escape")
        expect(page.locator("#queue")).to_have_text("0 running, 0 waiting")

    config = painting("uni", options={"forward_ms": 20, "steps": 4})
    async with open_engine(config) as engine, served(engine, max_steps=LONG) as server:
        await chromium.browse(server.url, script)


async def test_a_preview_is_shown_and_escape_cancels(chromium):
    def script(page):
        generate(page, PROMPT, Steps=40, Width=64, Height=64)
        preview = card(page, "running").get_by_alt_text("Preview")
        expect(preview).to_have_js_property("naturalWidth", 64)
        page.keyboard.press("Escape")
        card(page, "cancelling")
        trio.from_thread.run_sync(gate.open, trio_token=token)
        expect(card(page, "cancelled")).to_contain_text(
            re.compile(r"Cancelled at step \d+ of 40; the device has let go")
        )

    token = trio.lowlevel.current_trio_token()
    gate = OutputGate()
    async with (
        open_engine(
            model="shapes", executor=gated("uni", gate), device="cpu", mode="step"
        ) as engine,
        served(engine) as server,
    ):
        gate.shut()  # so it cannot end before it is cancelled
        await chromium.browse(server.url, script)
        await assert_idle(engine)
        assert engine.statistics().aborted == 1


@pytest.mark.parametrize("mode", ["request", "step"])
async def test_a_step_is_told_and_a_button_cancels(chromium, mode):
    def script(page):
        generate(page)
        running = card(page, "running")
        expect(running).to_contain_text(re.compile(rf"Step \d+ of {LONG} · \d+ \w+ left"))
        assert running.locator("progress").evaluate("bar => bar.value") > 0
        running.get_by_role("button", name="Cancel").click()
        card(page, "cancelled")
        expect(page.get_by_role("status")).to_have_text("Picture 1 was cancelled")

    async with (
        open_engine(painting("uni", options=SLOW, mode=mode)) as engine,
        served(engine) as server,
    ):
        await chromium.browse(server.url, script)
        await assert_idle(engine)
        assert engine.statistics().aborted == 1


async def test_several_are_under_way_and_each_can_be_cancelled(chromium):
    def script(page):
        for index in range(6):
            generate(page, f"number {index}")
        card(page, "running", 3)
        expect(card(page, "waiting", 1)).to_contain_text("number 4")
        page.locator(".card", has_text="number 1").get_by_role("button", name="Cancel").click()
        expect(card(page, "cancelled")).to_contain_text("number 1")
        card(page, "running", 3)
        for count in range(1, 6):
            page.keyboard.press("Escape")
            card(page, "cancelled", count)

    config = painting("uni", options=SLOW, mode="step", max_num_seqs=6)
    async with open_engine(config) as engine, served(engine) as server:
        await chromium.browse(server.url, script)
        await assert_idle(engine)
        assert engine.statistics().aborted == 5  # the last one had not been sent


async def test_several_pictures_are_one_card(chromium):
    def script(page):
        generate(page, Pictures=3, Seed=40)
        done = card(page, "done")
        expect(done).to_contain_text("seeds 40 to 42")
        pictures = done.get_by_role("img")
        assert len({pixels_of(pictures.nth(index)) for index in range(3)}) == 3
        pictures.nth(2).click()
        expect(page.get_by_role("dialog")).to_contain_text("x, seed 42")
        with page.expect_download() as download:
            page.get_by_role("dialog").get_by_role("link", name="Download").click()
        assert download.value.suggested_filename == "sidestream-42.png"

    async with open_engine(painting("uni")) as engine, served(engine) as server:
        await chromium.browse(server.url, script)


async def test_settings_can_be_used_again(chromium):
    def script(page):
        generate(page, "first", Width=48, Height=32)
        first = card(page, "done")
        expect(page.get_by_role("button", name="Lock", exact=True)).to_have_attribute(
            "aria-pressed", "false"
        )
        generate(page, "second", Width="", Height="")
        card(page, "done", 1)
        first = page.locator(".card", has_text="first")
        first.get_by_role("button", name="Use again").click()
        expect(page.get_by_label("Prompt", exact=True)).to_have_value("first")
        expect(page.get_by_label("Width")).to_have_value("48")
        expect(page.get_by_role("button", name="Locked")).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="Generate").click()
        card(page, "done", 2)
        shown = [pixels_of(page.locator(".card img").nth(index)) for index in range(3)]
        assert shown[0] == shown[2] != shown[1]
        first.get_by_role("button", name="Remove").last.click()
        expect(page.locator(".card")).to_have_count(2)

    async with open_engine(painting("uni")) as engine, served(engine) as server:
        await chromium.browse(server.url, script)


async def test_errors_are_shown_where_they_belong(chromium):
    def script(page):
        steps = page.get_by_label("Steps")
        generate(page, Steps=900)
        expect(card(page, "failed")).to_contain_text("num_inference_steps: must be at most 200")
        expect(steps).to_have_attribute("aria-invalid", "true")
        expect(steps).to_have_accessible_description("must be at most 200")
        steps.fill("4")
        expect(steps).not_to_have_attribute("aria-invalid", "true")
        generate(page, Width=64, Height=60)
        expect(card(page, "failed", 1)).to_be_visible()
        expect(page.locator(".card").first).to_contain_text("divisible by 8")
        generate(page, "fail", Width="", Height="")
        expect(card(page, "failed", 2)).to_be_visible()
        expect(page.locator(".card").first).to_contain_text("the pipeline failed")
        expect(page.get_by_role("status")).to_have_text("Picture 3 failed: the pipeline failed")
        generate(page, "fine")
        card(page, "done")

    config = painting("uni", options={"steps": 4, "fail_at_step": 2})
    async with open_engine(config) as engine, served(engine) as server:
        await chromium.browse(server.url, script, refusals=True)
        await assert_idle(engine)


async def test_a_key_is_asked_for_and_kept_in_the_tab(chromium):
    def script(page):
        for key, message in (("wrong", "asks for one"), ("right", "does not know this key")):
            expect(page.get_by_role("dialog")).to_contain_text(message)
            page.get_by_label("Key", exact=True).fill(key)
            page.keyboard.press("Enter")
        generate(page)
        card(page, "done")
        page.reload()
        generate(page)
        card(page, "done")
        return page.evaluate("[JSON.stringify(localStorage), document.cookie]")

    async with (
        open_engine(painting("uni")) as engine,
        served(engine, api_keys=("right",)) as server,
    ):
        assert await chromium.browse(server.url, script, refusals=True) == ["{}", ""]


async def test_it_can_be_used_with_the_keyboard_alone(chromium):
    def script(page):
        ready(page)
        press = page.keyboard.press
        expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
        page.keyboard.type("from the keyboard")
        press("Control+Enter")
        done = card(page, "done")
        while not page.evaluate("document.activeElement.matches('.picture')"):
            press("Tab")
            visible = "getComputedStyle(document.activeElement).outlineStyle"
            assert page.evaluate(visible) != "none"
        press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        press("Control+Enter")
        press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        expect(done.locator(".picture")).to_be_focused()
        expect(page.locator(".card")).to_have_count(1)

    async with open_engine(painting("uni")) as engine, served(engine) as server:
        await chromium.browse(server.url, script)


async def test_everything_that_can_be_changed_has_a_name(chromium):
    def script(page):
        ready(page)
        for kind in ("textbox", "spinbutton", "button"):
            for control in page.get_by_role(kind).all():
                expect(control).to_have_accessible_name(re.compile(r"\w"))

    async with open_engine(painting("uni")) as engine, served(engine) as server:
        await chromium.browse(server.url, script)


async def test_only_what_the_model_takes_is_asked_for(chromium):
    def script(page):
        ready(page)
        for label in ("Negative prompt", "Steps", "Guidance", "Seconds"):
            expect(page.get_by_label(label, exact=True)).to_be_hidden()
        expect(page.get_by_label("Width")).to_have_attribute("placeholder", "48")
        generate(page, Height=16, Pictures=2)
        expect(card(page, "done")).to_contain_text(re.compile("48 . 16"))

    config = dataclasses.replace(painting("uni"), model="pictures:PicturePipeline")
    config = dataclasses.replace(config, model_options={})
    async with open_engine(config) as engine, served(engine) as server:
        await chromium.browse(server.url, script)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_dark_or_light_as_wished(chromium, scheme):
    other = {"light": "dark", "dark": "light"}[scheme]

    def brightness(page):
        return page.evaluate(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)"
            ".slice(0, 3).reduce((sum, part) => sum + Number(part), 0)"
        )

    def script(page):
        as_the_system = brightness(page)
        page.get_by_role("button", name=other.capitalize()).click()
        chosen = brightness(page)
        page.reload()
        assert brightness(page) == chosen
        return as_the_system, chosen

    async with open_engine(painting("uni")) as engine, served(engine) as server:
        first, second = await chromium.browse(server.url, script, color_scheme=scheme)
        light, dark = (first, second) if scheme == "light" else (second, first)
        assert dark < 200 < 600 < light


async def test_it_waits_for_the_engine(chromium):
    async with served(None) as server, open_engine(painting("uni")) as engine:
        service = server.app.state.service
        token = trio.lowlevel.current_trio_token()

        def script(page):
            expect(page.locator("#model")).to_have_text("the engine is starting")
            expect(page.get_by_role("button", name="Generate")).to_be_disabled()
            trio.from_thread.run_sync(setattr, service, "engine", engine, trio_token=token)
            generate(page)
            card(page, "done")

        await chromium.browse(server.url, script, refusals=True)


async def test_a_video_is_made_and_another_is_cancelled(chromium):
    def script(page):
        generate(page, "a film", Seconds=1)
        done = card(page, "done")
        expect(done).to_contain_text("1 s")
        video = done.locator("video")
        expect(video).to_have_js_property("videoWidth", 64)
        generate(page, "slow", Steps=LONG)
        expect(card(page, "running")).to_contain_text(re.compile(rf"Step \d+ of {LONG}"))
        page.keyboard.press("Escape")
        card(page, "cancelled")
        generate(page, "fail", Steps=4)
        expect(card(page, "failed")).to_contain_text("the pipeline failed")

    config = filming("uni", options={"steps": 4, "fail_at_step": 2, "forward_ms": 8})
    async with open_engine(config) as engine, served(engine, max_steps=LONG) as server:
        await chromium.browse(server.url, script, refusals=True)
        await assert_idle(engine)
        assert engine.statistics().aborted == 1


async def test_a_page_that_is_closed_cancels_what_it_wanted(chromium):
    def script(page):
        generate(page)
        card(page, "running")

    config = painting("uni", options=SLOW)
    async with open_engine(config) as engine, served(engine) as server:
        await chromium.browse(server.url, script)
        await settled(lambda: engine.statistics().aborted == 1)
        await assert_idle(engine)
