"""``/metrics``: each one tells what has happened."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from sidestream.engine import open_engine
from sidestream.server.busy_window import BusyWindow
from sidestream.server.metrics import PERIOD

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.gates import OutputGate, gated
from ..harness.http import GENERATIONS, served
from ..harness.surroundings import PATIENCE, assert_idle, settled

SLOW = {"forward_ms": 60_000, "steps": LONG}
PAGE = Path(__file__).parents[2] / "docs" / "server.md"


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


class Metered:
    """A server, a client of it, and what its metrics tell."""

    def __init__(self, engine, server, client):
        self.engine = engine
        self.service = server.app.state.service
        self.server = server
        self.client = client

    def value(self, name, **labels):
        """Return the value of a sample, None if there is none."""
        return self.service.metrics.registry.get_sample_value(f"sidestream_{name}", labels)

    async def paint(self, **fields):
        return await self.client.post(GENERATIONS, json={"prompt": "x", **fields})


@asynccontextmanager
async def metered(config):
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(config) as engine,
            served(engine) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            yield Metered(engine, server, client)


async def test_seconds_of_phases_are_those_of_the_answer():
    async with metered(painting("uni", warmup=False)) as metered_:
        timings = (await metered_.paint()).json()["timings"]
        for phase, seconds in timings.items():
            assert metered_.value("phase_seconds_sum", phase=phase) == seconds
        (trace,) = metered_.engine.traces()
        copied = (trace.copy_end - trace.copy_start) / 1e9
        assert 0 < copied < timings["output"]
        assert metered_.value("phase_seconds_sum", phase="copy") == copied
        assert metered_.value("phase_seconds_count", phase="copy") == 1
        assert metered_.value("encode_seconds_count") == 1
        assert metered_.value("encode_seconds_sum") > 0
        busy = metered_.value("worker_busy_seconds_total", worker="0")
        assert busy == pytest.approx(timings["forward"])


async def test_a_bubble_is_time_that_a_device_waits_while_a_request_does():
    gate = OutputGate()
    config = painting(gated("uni", gate), max_pending_outputs=1, dispatch_depth=1)
    async with metered(config) as metered_:
        gate.shut()
        before = metered_.value("worker_bubble_seconds_total", worker="0")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(metered_.paint)
            await gate.in_flight.wait()
            nursery.start_soon(metered_.paint)
            await settled(lambda: metered_.value("waiting") == 1)
            # The output of the first is held back, and no second one may be under way.
            waiting_from = time.monotonic()
            assert metered_.value("running") == 0
            assert metered_.value("pending_outputs") == 1
            assert 0 < metered_.value("ring_bytes_used") < metered_.value("ring_bytes")
            held = time.monotonic() - waiting_from
            gate.open()
        bubble = metered_.value("worker_bubble_seconds_total", worker="0") - before
        first, second = metered_.engine.traces()[-2:]
        assert bubble == pytest.approx(
            (first.forward_start - first.submitted + second.forward_start - second.submitted) / 1e9
        )
        assert bubble > held
        await assert_idle(metered_.engine)
        for name in ("waiting", "pending_outputs", "ring_bytes_used", "ring_bytes_held"):
            assert metered_.value(name) == 0


async def test_results_in_somebodys_hands_hold_the_ring():
    async with metered(painting("uni")) as metered_:
        result = await metered_.engine.generate("x", output_type="raw")
        assert result.output.nbytes <= metered_.value("ring_bytes_held")
        assert metered_.value("ring_bytes_held") <= metered_.value("ring_bytes_used")
        del result
        await assert_idle(metered_.engine)
        assert metered_.value("ring_bytes_held") == 0


@pytest.mark.parametrize("mode", ["request", "step"])
async def test_a_cancelled_request_is_timed_until_its_worker_lets_go(mode):
    async with metered(painting("uni", options=SLOW, mode=mode, warmup=False)) as metered_:
        answers = []

        async def run():
            answers.append(await metered_.paint(request_id="a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await settled(lambda: metered_.engine.statistics().running == 1)
            began = time.monotonic()
            for cancelled in (True, False):
                answer = await metered_.client.post("/v1/requests/a/cancel")
                assert answer.json()["cancelled"] is cancelled
            took = time.monotonic() - began
        assert answers[0].status_code == 499
        assert metered_.value("abort_seconds_count") == 1
        assert 0 < metered_.value("abort_seconds_sum") < took
        assert metered_.value("requests_total", outcome="cancelled") == 1
        assert metered_.value("phase_seconds_count", phase="total") is None
        (trace,) = metered_.engine.traces()
        busy = metered_.value("worker_busy_seconds_total", worker="0")
        assert busy == pytest.approx((trace.forward_end - trace.forward_start) / 1e9)


async def test_a_failed_request_is_no_completed_one():
    config = painting("uni", options={"fail_at_step": 0}, warmup=False)
    async with metered(config) as metered_:
        assert (await metered_.paint(prompt="fail")).status_code == 500
        assert metered_.value("requests_total", outcome="failed") == 1
        assert metered_.value("requests_total", outcome="completed") is None
        assert metered_.value("images_total") == 0


async def test_a_long_forward_shows_while_it_runs():
    async with metered(painting("uni", options=SLOW, warmup=False)) as metered_:
        await settled(lambda: metered_.value("worker_busy_fraction", worker="0") == 0)
        connection = await metered_.server.post(GENERATIONS, {"prompt": "x"})
        await settled(lambda: metered_.value("worker_busy_fraction", worker="0") > 0)
        assert metered_.value("worker_busy_seconds_total", worker="0") == 0
        assert metered_.engine.statistics().running == 1
        await connection.aclose()
        await assert_idle(metered_.engine)


def hold_up(seconds):
    """Do what nothing on the event loop may do."""
    time.sleep(seconds)


async def test_a_loop_that_is_held_up_is_late():
    async with metered(painting("uni")) as metered_:
        await settled(lambda: metered_.value("loop_lag_seconds_count") >= 1)
        count = metered_.value("loop_lag_seconds_count")
        before = metered_.value("loop_lag_seconds_sum")
        hold_up(PERIOD + 0.1)
        await settled(lambda: metered_.value("loop_lag_seconds_count") > count)
        assert metered_.value("loop_lag_seconds_sum") - before >= 0.1


async def test_the_text_is_that_of_prometheus_and_the_page_describes_it():
    async with metered(painting("uni")) as metered_:
        await metered_.paint()
        await settled(lambda: metered_.value("worker_busy_fraction", worker="0") is not None)
        text = (await metered_.client.get("/metrics")).text
        families = list(metered_.service.metrics.registry.collect())
    told = {family.name for family in text_string_to_metric_families(text)}
    assert {family.name for family in families} <= told
    table = "\n".join(map(row_of, families))
    assert f"| --- | --- | --- | --- |\n{table}\n\n" in PAGE.read_text(encoding="utf-8"), table


def row_of(family):
    """Return what the table of the page says of metrics of a name."""
    labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
    name = f"{family.name}_total" if family.type == "counter" else family.name
    told = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {family.type} | {told} | {family.documentation} |"


# -- a window


def fraction_of(*looks, seconds=10.0):
    window = BusyWindow(seconds)
    for now, counted, working in looks:
        window.note(now, counted, working=working)
    return window.fraction


@pytest.mark.parametrize(
    ("looks", "fraction"),
    [
        pytest.param([(0, 0, False)], 0, id="one look"),
        pytest.param([(0, 5, False), (4, 6, False)], 0.25, id="what was counted"),
        pytest.param([(0, 0, False), (2, 0, False), (4, 0, True)], 0, id="it begins to work"),
        pytest.param([(0, 0, True), (2, 0, True), (4, 0, True)], 1, id="a forward under way"),
        pytest.param([(0, 0, True), (3, 0, True), (4, 3, True)], 0.75, id="it has ended"),
        pytest.param([(0, 0, True), (3, 0, True), (4, 1, False)], 0.25, id="it had waited"),
        pytest.param([(0, 0, False), (1, 9, False)], 1, id="more than there is"),
        pytest.param([(0, 0, False), (9, 9, False), (19, 9, False)], 0, id="long ago"),
        pytest.param([(0, 7, False), (1, 8, False), (2, 0, False)], 0, id="another worker"),
    ],
)
def test_a_window_tells_the_share_of_time(looks, fraction):
    assert fraction_of(*looks) == pytest.approx(fraction)
