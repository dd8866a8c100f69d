"""Traces as trace events: what a viewer is given, of requests that ended in any way."""

from __future__ import annotations

import dataclasses

import pytest
import trio
from hypothesis import given, strategies as st

from sidestream.engine import (
    ExecutionError,
    RequestAborted,
    RequestTrace,
    chrome_trace,
    open_engine,
)
from sidestream.engine.chrome_trace import rows_of, spans_of

from ..harness.engines import LONG, synthetic
from ..harness.surroundings import settled
from ..harness.trace_events import events_of, tracks_of

MOMENTS = [
    field.name
    for field in dataclasses.fields(RequestTrace)
    if field.name not in ("request_id", "number", "worker", "outcome")
]
US = 1000
"""ns"""


def trace_of(name="a", start=100, worker=0, outcome="completed", **moments):
    """Make a trace whose every phase takes 10 us, from a time in us."""
    order = dict(zip(MOMENTS, range(start, start + 10 * len(MOMENTS), 10), strict=True)) | moments
    return RequestTrace(
        name,
        worker=worker,
        outcome=outcome,
        **{moment: time * US for moment, time in order.items()},
    )


def phases(trace):
    """Return the phases of a trace: name, start, end; us."""
    return [(span.name, span.start / US, span.end / US) for span in spans_of(trace)]


def counters(document):
    """Return how many requests wait and run, at each change."""
    counts = [(event["ts"], event["args"]) for event in events_of(document) if event["ph"] == "C"]
    return [(time, args["waiting"], args["running"]) for time, args in counts]


def test_a_request_has_its_phases_and_its_worker_a_forward_and_a_copy():
    document = chrome_trace([trace_of("mine")])
    assert tracks_of(document) == {
        "requests/requests": [
            [
                ("queued", 0, 10),
                ("dispatched", 10, 20),
                ("forward", 20, 30),
                ("copy", 40, 50),
                ("arriving", 50, 60),
                ("postprocess", 70, 80),
                ("mine", 0, 80),
            ]
        ],
        "worker 0/forwards": [[("mine", 20, 30)]],
        "worker 0/copies": [[("mine", 40, 50)]],
    }
    assert document["otherData"]["origin_ns"] == {"": 100 * US}
    assert counters(document) == [(0, 1, 0), (10, 0, 1), (30, 0, 0)]


def test_an_arrow_leads_from_a_request_to_its_forward_and_on_to_its_copy():
    document = chrome_trace([trace_of("a"), trace_of("b", 200, copy_start=0, copy_end=0)])
    tracks_of(document)
    arrows = [(e["id"], e["ph"], e["ts"]) for e in events_of(document) if e["ph"] in "stf"]
    assert arrows == [(1, "s", 20), (1, "t", 20), (1, "f", 40), (2, "s", 120), (2, "f", 120)]


def test_requests_tell_how_they_ended():
    document = chrome_trace([trace_of("a", outcome="failed"), trace_of("b", outcome="completed")])
    begun = [e for e in events_of(document) if e["ph"] == "B" and "outcome" in e["args"]]
    assert {(e["name"], e["args"]["request"], e["args"]["outcome"]) for e in begun} == {
        ("a (failed)", "a", "failed"),
        ("b", "b", "completed"),
    }


@pytest.mark.parametrize(
    ("reached", "expected"),
    [
        pytest.param({"ended": 7}, [("queued", 1, 7)], id="aborted in the queue"),
        pytest.param(
            {"dispatched": 3, "ended": 7},
            [("queued", 1, 3), ("dispatched", 3, 7)],
            id="lost by its worker",
        ),
        pytest.param(
            {"dispatched": 3, "forward_start": 4, "forward_end": 9, "ended": 6},
            [("queued", 1, 3), ("dispatched", 3, 4), ("forward", 4, 9)],
            id="aborted while it ran, which the worker saw later",
        ),
        pytest.param(
            {"dispatched": 3, "arrived": 6, "ended": 7},
            [("queued", 1, 3), ("dispatched", 3, 7)],
            id="its output could not be copied",
        ),
        pytest.param(
            {"dispatched": 2, "forward_start": 3, "forward_end": 4, "copy_start": 5, "copy_end": 6}
            | {"arrived": 7, "postprocess_start": 8, "ended": 9},
            [
                *[("queued", 1, 2), ("dispatched", 2, 3), ("forward", 3, 4), ("copy", 5, 6)],
                *[("arriving", 6, 7), ("postprocess", 8, 9)],
            ],
            id="it could not be encoded",
        ),
        pytest.param(
            {"dispatched": 2, "forward_start": 3, "forward_end": 4, "copy_start": 5, "copy_end": 6}
            | {"ended": 4},
            [("queued", 1, 2), ("dispatched", 2, 3), ("forward", 3, 4), ("copy", 5, 6)],
            id="left before its output came",
        ),
        pytest.param({}, [], id="nothing has happened yet"),
    ],
)
def test_phases_that_were_not_reached_are_left_out(reached, expected):
    trace = trace_of(**{**dict.fromkeys(MOMENTS, 0), "submitted": 1, **reached})
    assert phases(trace) == expected
    tracks = tracks_of(chrome_trace([trace]))
    names = [name for name, *_ in expected]
    assert ("worker 0/forwards" in tracks) == ("forward" in names)
    assert ("worker 0/copies" in tracks) == ("copy" in names)


def test_a_copy_that_was_queued_during_its_forward_begins_after_it():
    trace = trace_of(dispatched=101, forward_start=102, forward_end=130, copy_start=105)
    assert phases(trace)[2:4] == [("forward", 102, 130), ("copy", 130, 150)]


def test_a_request_that_nobody_ran_is_with_no_worker():
    trace = trace_of(worker=-1, **dict.fromkeys(MOMENTS[1:-1], 0))
    assert list(tracks_of(chrome_trace([trace]))) == ["requests/requests"]


def test_what_overlaps_lies_in_rows_of_its_own_and_what_touches_does_not():
    forwards = [spans_of(trace_of(*each))[2] for each in (("c", 110), ("b", 105), ("a", 100))]
    assert [[span.trace.request_id for span in row] for row in rows_of(forwards)] == [
        ["a", "c"],
        ["b"],
    ]
    tracks = tracks_of(chrome_trace([trace_of("a"), trace_of("b", 105), trace_of("c", 110)]))
    assert [len(row) for row in tracks["worker 0/forwards"]] == [2, 1]
    assert len(tracks["requests/requests"]) == 3


def test_each_worker_has_tracks_of_its_own():
    tracks = tracks_of(chrome_trace([trace_of("a", worker=0), trace_of("b", worker=3)]))
    assert tracks["worker 0/forwards"] == [[("a", 20, 30)]]
    assert tracks["worker 3/forwards"] == [[("b", 20, 30)]]


def test_several_runs_are_laid_over_one_another():
    document = chrome_trace({"sync": [trace_of("a", 100)], "async": [trace_of("a", 5000)]})
    tracks = tracks_of(document)
    assert tracks["sync: worker 0/forwards"] == tracks["async: worker 0/forwards"]
    assert document["otherData"]["origin_ns"] == {"sync": 100 * US, "async": 5000 * US}


@pytest.mark.parametrize("traces", [[], {}, {"sync": []}, iter(())])
def test_without_requests_there_is_an_empty_document(traces):
    assert tracks_of(chrome_trace(traces)) == {}


@st.composite
def any_trace(draw):
    """Draw a trace that has reached some phase, with clocks that may all be wrong."""
    reached = draw(st.sampled_from([1, 2, 4, 6, 7, 8, 9]))
    times = {name: draw(st.integers(1, 60)) for name in (*MOMENTS[:reached], "ended")}
    worker = draw(st.integers(0, 2)) if reached > 1 else -1
    outcome = draw(st.sampled_from(["completed", "failed", "aborted"]))
    known = dict.fromkeys(MOMENTS, 0) | times
    return RequestTrace(f"r{draw(st.text(max_size=3))}", worker=worker, outcome=outcome, **known)


@given(st.lists(any_trace(), max_size=8))
def test_any_time_stamps_at_all_give_slices_that_nest(known):
    tracks_of(chrome_trace(known))


@pytest.mark.parametrize("mode", ["request", "step"])
async def test_the_traces_of_an_engine_with_two_workers(mode):
    config = synthetic("mp", mode=mode, num_workers=2, max_num_seqs=2)
    async with open_engine(config) as engine, trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(engine.generate, "a")
        await settled(lambda: engine.statistics().completed == 10)
        await engine.wait_idle()
        tracks = tracks_of(chrome_trace(engine.traces()))
    assert sum(map(len, tracks["worker 0/forwards"] + tracks["worker 1/forwards"])) == 10
    assert sum(map(len, tracks["worker 0/copies"] + tracks["worker 1/copies"])) == 10


async def test_the_traces_of_requests_that_failed_and_were_aborted():
    options = {"steps": LONG, "fail_at_step": 1}
    config = synthetic("uni", options=options, max_num_seqs=1, dispatch_depth=1, warmup=False)
    async with open_engine(config) as engine, trio.open_nursery() as nursery:
        with pytest.raises(ExecutionError):
            await engine.generate("fail", request_id="failing")

        async def run(name):
            with pytest.raises(RequestAborted):
                await engine.generate("a", request_id=name)

        for name, held in (("running", "running"), ("waiting", "waiting")):
            nursery.start_soon(run, name)
            await settled(lambda held=held: getattr(engine.statistics(), held) == 1)
        for name in ("waiting", "running"):
            await engine.abort(name)
        await engine.wait_idle()
        tracks = tracks_of(chrome_trace(engine.traces()))
    names = {name for row in tracks["worker 0/forwards"] for name, *_ in row}
    assert names == {"failing (failed)", "running (aborted)"}
    assert "worker 0/copies" not in tracks
    assert "waiting (aborted)" in {name for row in tracks["requests/requests"] for name, *_ in row}
