"""Traces: which are kept, what they say of the device, and what a request leaves in one."""

from __future__ import annotations

import pytest
import trio

from sidestream.engine import (
    ExecutionError,
    RequestAborted,
    RequestTrace,
    open_engine,
)
from sidestream.engine.trace import DeviceMeter, TraceLog

from ..harness.engines import LONG, moments_of, synthetic
from ..harness.surroundings import settled


def numbers(log: TraceLog, after: int = 0) -> list[int]:
    return [trace.number for trace in log.after(after)]


def test_the_latest_traces_are_kept_and_told_once():
    log = TraceLog(3)
    assert numbers(log) == []
    for name in "abcde":
        log.add(RequestTrace(name, submitted=1))
    assert [trace.request_id for trace in log.after(0)] == ["c", "d", "e"]
    assert numbers(log) == numbers(log, 1) == [3, 4, 5]
    assert numbers(log, 4) == [5]
    assert numbers(log, 5) == []
    assert numbers(log, 99) == []  # of an engine that was here before


def test_a_log_may_keep_nothing():
    log = TraceLog(0)
    log.add(RequestTrace("a", submitted=1))
    assert numbers(log) == []


@pytest.mark.parametrize(
    ("forwards", "busy", "bubble"),
    [
        pytest.param([(0, 5, 15)], 10, 5, id="dispatching is a bubble"),
        pytest.param([(0, 5, 15), (0, 15, 25)], 20, 5, id="back to back"),
        pytest.param([(0, 0, 10), (0, 12, 20)], 18, 2, id="a gap while it waits"),
        pytest.param([(0, 0, 10), (30, 31, 40)], 19, 1, id="nobody waits"),
        pytest.param([(0, 0, 10), (0, 0, 10)], 10, 0, id="merged"),
        pytest.param([(0, 0, 10), (5, 5, 12)], 12, 0, id="interleaved"),
        pytest.param([(0, 0, 20), (0, 5, 10)], 20, 0, id="told late"),
    ],
)
def test_a_meter_counts_the_time_of_a_device(forwards, busy, bubble):
    meter = DeviceMeter()
    for forward in forwards:
        meter.note(*forward)
    assert (meter.busy_ns, meter.bubble_ns) == (busy, bubble)


@pytest.mark.parametrize("executor", ["uni", "mp"])
@pytest.mark.parametrize("mode", ["request", "step"])
async def test_a_request_leaves_its_moments(executor, mode):
    async with open_engine(synthetic(executor, mode=mode, warmup=False)) as engine:
        async with engine.stream("a", request_id="mine") as events:
            result = await events.result()
            assert result.timings.trace.outcome == "completed"
            assert engine.traces() == []
        (trace,) = engine.traces()
        assert trace is result.timings.trace
        assert (trace.request_id, trace.number, trace.worker) == ("mine", 1, 0)
        assert trace.outcome == "completed"
        assert moments_of(trace) == sorted(moments_of(trace))
        assert all(moments_of(trace))
        assert engine.traces(after=1) == []
        (worker,) = engine.statistics().workers
        assert worker.busy_seconds == pytest.approx(result.timings.forward)
        assert worker.bubble_seconds > 0


async def test_a_request_that_was_aborted_tells_how_far_it_came():
    config = synthetic("uni", options={"steps": LONG}, max_num_seqs=1, dispatch_depth=1)
    async with open_engine(config) as engine, trio.open_nursery() as nursery:

        async def run(name):
            with pytest.raises(RequestAborted):
                await engine.generate("a", request_id=name)

        known = len(engine.traces())
        for name, held in (("first", "running"), ("second", "waiting")):
            nursery.start_soon(run, name)
            await settled(lambda held=held: getattr(engine.statistics(), held) == 1)
        await engine.abort("second")
        await engine.abort("first")
        await engine.wait_idle()
        second, first = engine.traces(after=known)
        assert (first.request_id, first.outcome, first.worker) == ("first", "aborted", 0)
        assert 0 < first.submitted < first.dispatched <= first.forward_start < first.forward_end
        assert first.copy_start == first.postprocess_end == 0
        assert (second.request_id, second.outcome, second.worker) == ("second", "aborted", -1)
        assert second.dispatched == second.forward_start == 0
        assert second.ended > second.submitted


async def test_a_request_that_failed_has_a_forward():
    options = {"fail_at_step": 1, "steps": 2}
    async with open_engine(synthetic("uni", options=options, warmup=False)) as engine:
        with pytest.raises(ExecutionError):
            await engine.generate("fail")
        (trace,) = engine.traces()
        assert trace.outcome == "failed"
        assert trace.forward_start < trace.forward_end
