"""A request is cancelled after each step that anything takes during its life: nothing is left, and
the next request works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest
import trio
import trio.testing

from sidestream.engine import (
    Chunk,
    DiffusionEngine,
    Event,
    Queued,
    RequestAborted,
    Started,
    open_engine,
)

from ..harness.checkpoints import cancel_at_every_step, family, whole_run
from ..harness.engines import LONG, MEBIBYTE, synthetic, until, values_of
from ..harness.gates import OutputGate, gated
from ..harness.surroundings import assert_idle, assert_nothing_beyond, holdings, survey

Scenario = Callable[[DiffusionEngine, OutputGate], Awaitable[None]]


async def generate(engine: DiffusionEngine, gate: OutputGate) -> None:
    await engine.generate("a", seed=5, num_inference_steps=3, output_type="raw")


async def generate_large(engine: DiffusionEngine, gate: OutputGate) -> None:
    """3 MiB through a ring of 1 MiB: in pieces, which come one by one."""
    result = await engine.generate("a", seed=5, height=512, width=512, output_type="raw")
    assert values_of(result) == [5]


async def generate_from_picture(engine: DiffusionEngine, gate: OutputGate) -> None:
    """3 MiB of input through a ring of 1 MiB, so that the sender has to wait."""
    picture = np.full((1024, 1024, 3), 9, np.uint8)
    result = await engine.generate("a", extra_args={"image": picture}, output_type="raw")
    assert values_of(result) == [9]


async def generate_held(engine: DiffusionEngine, gate: OutputGate) -> None:
    """The output comes a good while after the end of the forward."""
    async with holding(gate), trio.open_nursery() as nursery:
        nursery.start_soon(generate, engine, gate)
        await gate.in_flight.wait()
        gate.open()


async def generate_bytes(engine: DiffusionEngine, gate: OutputGate) -> None:
    """The output is converted, by a thread."""
    await engine.generate("a", seed=5, output_type="uint8")


async def stream(engine: DiffusionEngine, gate: OutputGate) -> None:
    async with engine.stream("a", num_inference_steps=3, output_type="raw") as events:
        async for _ in events:
            pass


async def stream_chunks(engine: DiffusionEngine, gate: OutputGate) -> None:
    """A video in three parts, each of which goes through the small ring in pieces."""
    params = {"num_inference_steps": 3, "height": 512, "width": 512, "output_type": "raw"}
    extra = {"num_chunks": 3}
    async with engine.stream(
        "a", seed=5, streaming_output=True, extra_args=extra, **params
    ) as events:
        chunks = [event.output async for event in events if isinstance(event, Chunk)]
    assert [np.unique(chunk.numpy()).tolist() for chunk in chunks] == [[5]] * 3


async def call_workers(engine: DiffusionEngine, gate: OutputGate) -> None:
    [statistics] = await engine.collective_rpc("runner_statistics")
    assert statistics


async def wave_of_four(engine: DiffusionEngine, gate: OutputGate) -> None:
    waves = engine.statistics().waves_dispatched
    async with trio.open_nursery() as nursery:
        for seed in range(4):
            nursery.start_soon(
                partial(engine.generate, "a", seed=seed, num_inference_steps=2, output_type="raw")
            )
    assert engine.statistics().waves_dispatched == waves + 1


async def preempted(engine: DiffusionEngine, gate: OutputGate) -> None:
    """Four run; one more urgent takes the place of one of them, and gives it back."""
    async with trio.open_nursery() as nursery:
        for seed in range(4):
            nursery.start_soon(
                partial(engine.generate, "a", seed=seed, num_inference_steps=4, output_type="raw")
            )
        await trio.testing.wait_all_tasks_blocked()
        result = await engine.generate(
            "a", seed=9, num_inference_steps=1, priority=1, output_type="raw"
        )
        assert values_of(result) == [9]


async def stagger(engine: DiffusionEngine, gate: OutputGate) -> None:
    """Requests join and leave the running set at different steps."""
    async with trio.open_nursery() as nursery:
        for steps in (1, 4, 2):
            async with engine.stream("a", num_inference_steps=2) as events:
                nursery.start_soon(partial(engine.generate, "a", num_inference_steps=steps))
                await until(events, Started)


async def abort_queued(engine: DiffusionEngine, gate: OutputGate) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(aborted, engine, "runs", Started)
        await nursery.start(aborted, engine, "is in the worker", Started)
        await nursery.start(aborted, engine, "waits", Queued)
        await trio.lowlevel.checkpoint_if_cancelled()
        assert engine.statistics().waiting == 1
        for request_id in ("waits", "runs", "is in the worker"):
            assert await engine.abort(request_id)


async def abort_running(engine: DiffusionEngine, gate: OutputGate) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(aborted, engine, "running", Started)
        assert await engine.abort("running")


async def abort_preempted(engine: DiffusionEngine, gate: OutputGate) -> None:
    """Four run; one of them has to yield, and is aborted while it waits to go on."""
    async with trio.open_nursery() as nursery:
        for number in range(4):
            await nursery.start(aborted, engine, f"runs {number}", Started)
        await nursery.start(partial(aborted, priority=1), engine, "urgent", Started)
        await trio.lowlevel.checkpoint_if_cancelled()
        assert engine.statistics().preempted == 1
        for request_id in ("runs 3", "urgent", "runs 0", "runs 1", "runs 2"):  # the last one yields
            assert await engine.abort(request_id)


async def abort_output(engine: DiffusionEngine, gate: OutputGate) -> None:
    async with holding(gate), trio.open_nursery() as nursery:
        await nursery.start(partial(aborted, engine, "held", Started, num_inference_steps=1))
        await gate.in_flight.wait()
        nursery.start_soon(engine.abort, "held")
        for _ in range(3):  # it has begun when the last of them comes
            await trio.lowlevel.checkpoint()
        gate.open()


async def aborted(
    engine: DiffusionEngine,
    request_id: str,
    then: type[Event],
    *,
    num_inference_steps: int = LONG,
    priority: int = 0,
    task_status: trio.TaskStatus[None],
) -> None:
    """Run a request that somebody else ends; tell when the event `then` comes."""
    params = {"num_inference_steps": num_inference_steps, "priority": priority}
    async with engine.stream("a", request_id=request_id, **params) as events:
        await until(events, then)
        task_status.started()
        with pytest.raises(RequestAborted):
            await events.result()


@asynccontextmanager
async def holding(gate: OutputGate) -> AsyncIterator[None]:
    gate.shut()
    try:
        yield
    finally:
        gate.open()


@asynccontextmanager
async def gated_engine(
    executor: str, mode: str
) -> AsyncIterator[tuple[DiffusionEngine, OutputGate]]:
    """Open an engine with the smallest rings."""
    gate = OutputGate()
    config = synthetic(gated(executor, gate), max_num_seqs=4, output_ring_bytes=MEBIBYTE, mode=mode)
    async with open_engine(config) as engine:
        yield engine, gate


SCENARIOS: dict[Scenario, set[str]] = {
    generate: {"waiting", "running"},
    generate_large: {"waiting", "running"},
    generate_from_picture: {"waiting", "running"},
    generate_held: {"waiting", "running", "pending_outputs"},
    generate_bytes: {"waiting", "running"},
    stream: {"waiting", "running"},
    wave_of_four: {"waiting", "running"},
    call_workers: set(),
    abort_queued: {"waiting", "running"},
    abort_running: {"waiting", "running", "aborting"},
    abort_output: {"waiting", "running", "pending_outputs", "aborting"},
}
"""Each scenario, and in which conditions of the engine it must have been cancelled at least."""

STEP_SCENARIOS: dict[Scenario, set[str]] = {
    generate: {"waiting", "running"},
    generate_large: {"waiting", "running"},
    generate_from_picture: {"waiting", "running"},
    generate_held: {"waiting", "running", "pending_outputs"},
    stream: {"waiting", "running"},
    stream_chunks: {"waiting", "running"},
    preempted: {"waiting", "running", "preempted"},
    stagger: {"waiting", "running"},
    abort_running: {"waiting", "running", "aborting"},
    abort_preempted: {"waiting", "running", "preempted", "aborting"},
    abort_output: {"waiting", "running", "pending_outputs", "aborting"},
}


@pytest.mark.parametrize("executor", ["uni", "mp"])
@pytest.mark.parametrize(
    ("mode", "scenarios"),
    [("request", SCENARIOS), ("step", STEP_SCENARIOS)],
    ids=["request", "step"],
)
async def test_whatever_step_a_request_is_cancelled_at_nothing_is_left(
    executor: str, mode: str, scenarios: dict[Scenario, set[str]]
) -> None:
    async with gated_engine(executor, mode) as (engine, gate):
        await engine.generate("a", seed=1, output_type="uint8")  # brings threads and imports
        await assert_idle(engine)
        before = survey()

        async def check() -> None:
            await assert_idle(engine)
            assert gate.links[0].segment.inputs.used_bytes == 0
            assert not gate.calls
            assert_nothing_beyond(before)
            result = await engine.generate("a", seed=77, output_type="raw")
            assert values_of(result) == [77]

        for scenario, conditions in scenarios.items():
            seen: set[str] = set()
            note = partial(_note_holdings, engine, seen)
            run = partial(scenario, engine, gate)
            for counts in (family, whole_run):
                steps = await cancel_at_every_step(run, check, counts=counts, on_cancel=note)
                print(executor, scenario.__name__, counts.__name__, steps, "steps")
            assert seen >= conditions, scenario.__name__


def _note_holdings(engine: DiffusionEngine, seen: set[str]) -> None:
    seen.update(holdings(engine))
