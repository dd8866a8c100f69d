"""Real workers, both executors: events of a request, its ends, and who has to wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from sidestream.engine import (
    Completed,
    DeadlineExceededError,
    DiffusionEngine,
    DuplicateRequestError,
    EngineBusyError,
    ExecutionError,
    Progress,
    Queued,
    RequestAborted,
    Started,
    open_engine,
)

from ..harness.engines import LONG, synthetic, until, values_of
from ..harness.gates import OutputGate, gated
from ..harness.surroundings import assert_idle, settled


@asynccontextmanager
async def busy_worker(engine: DiffusionEngine, request_id: str = "busy") -> AsyncIterator[None]:
    """Keep a worker of dispatch depth 1 at work, so that everything else stays in the queue."""
    async with engine.stream("a", request_id=request_id, num_inference_steps=LONG) as events:
        await until(events, Progress)
        yield


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_events_of_a_request(executor: str) -> None:
    async with open_engine(synthetic(executor, dispatch_depth=1)) as engine:
        async with engine.stream("a", seed=9, num_inference_steps=20, output_type="raw") as events:
            told = [event async for event in events]
            assert {event.request_id for event in told} == {events.request_id}
        assert told[0] == Queued(events.request_id, position=0)
        assert told[1] == Started(events.request_id, worker=0)
        steps = [event.step for event in told if isinstance(event, Progress)]
        assert steps == sorted(set(steps))
        assert {event.total for event in told if isinstance(event, Progress)} == {20}
        assert [type(event) for event in told[2:]] == [Progress] * len(steps) + [Completed]
        assert isinstance(told[-1], Completed)
        assert values_of(told[-1].result) == [9]
        del told

        async with engine.stream("a", num_inference_steps=20) as events:
            await engine.generate("b")  # which comes after it
            late = [event async for event in events]  # of the steps, only the last is news
        assert [type(event) for event in late] == [Queued, Started, Progress, Completed]
        assert late[2] == Progress(events.request_id, 20, 20)
        del events, late

        async with (
            busy_worker(engine),
            engine.stream("a") as first,
            engine.stream("a") as second,
        ):
            assert await anext(first) == Queued(first.request_id, position=0)
            assert await anext(second) == Queued(second.request_id, position=1)
        await assert_idle(engine)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_events_of_a_request_in_step_mode(executor: str) -> None:
    config = synthetic(executor, options={"forward_ms": 10}, mode="step", max_num_seqs=2)
    async with open_engine(config) as engine:
        async with engine.stream("a", seed=9, num_inference_steps=20, output_type="raw") as events:
            told = [event async for event in events]
        assert [type(event) for event in (told[0], told[1], told[-1])] == [
            Queued,
            Started,
            Completed,
        ]
        progress = [event for event in told if isinstance(event, Progress)]
        steps = [event.step for event in progress]
        assert steps == sorted(set(steps))
        assert steps[-1] == 20
        assert {event.total for event in progress} == {20}
        assert any(event.eta is not None and event.eta > 0 for event in progress)
        assert values_of(told[-1].result) == [9]
        del told, events
        await assert_idle(engine)


async def test_a_short_request_is_not_kept_waiting_by_long_ones() -> None:
    config = synthetic("mp", options={"forward_ms": 1}, mode="step", max_num_seqs=2)
    async with (
        open_engine(config) as engine,
        engine.stream("a", num_inference_steps=LONG) as long,
    ):
        await until(long, Progress)
        for steps in (1, 3):
            result = await engine.generate(
                "a", seed=5, num_inference_steps=steps, output_type="raw"
            )
            assert values_of(result) == [5]
        assert engine.statistics().running == 1


async def test_an_urgent_request_takes_the_place_of_a_long_one() -> None:
    config = synthetic("mp", options={"forward_ms": 1}, mode="step", max_num_seqs=1)
    async with open_engine(config) as engine, engine.stream("a", num_inference_steps=LONG) as long:
        await until(long, Progress)
        async with engine.stream(
            "a", seed=7, num_inference_steps=50, priority=1, output_type="raw"
        ) as urgent:
            await until(urgent, Started)
            assert engine.statistics().preempted == 1
            assert values_of(await urgent.result()) == [7]
        await until(long, Progress)
        assert engine.statistics().preempted == 0


@pytest.mark.parametrize("executor", ["uni", "mp"])
@pytest.mark.parametrize("mode", ["request", "step"])
async def test_an_error_in_the_pipeline_ends_that_request_alone(executor: str, mode: str) -> None:
    options = {"steps": 3, "fail_at_step": 1}
    config = synthetic(executor, options=options, max_num_seqs=4, mode=mode)
    async with open_engine(config) as engine:
        ends: dict[str, object] = {}

        async def run(prompt: str) -> None:
            try:
                ends[prompt] = values_of(await engine.generate(prompt, seed=4, output_type="raw"))
            except ExecutionError as error:
                ends[prompt] = error

        async with trio.open_nursery() as nursery:  # one wave
            for prompt in ("one", "please fail", "three"):
                nursery.start_soon(run, prompt)
        error = ends.pop("please fail")
        assert isinstance(error, ExecutionError)
        assert error.remote_type == "RuntimeError"
        assert "synthetic failure at step 1" in str(error)
        assert "in _fail_if_told" in error.remote_traceback
        assert error.remote_traceback.rstrip() in error.__notes__[0]
        assert ends == {"one": [4], "three": [4]}
        assert engine.statistics().failed == 1
        engine.check_health()
        await assert_idle(engine)


async def test_memory_that_runs_out_ends_one_request() -> None:
    options = {"fail_at_step": 0, "fail_with": "oom"}
    async with open_engine(synthetic("uni", options=options)) as engine:
        with pytest.raises(ExecutionError, match="out of memory") as caught:
            await engine.generate("fail")
        assert caught.value.remote_type == "OutOfMemoryError"
        assert values_of(await engine.generate("a", seed=3, output_type="raw")) == [3]


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_deadlines_and_aborts_in_each_phase(executor: str) -> None:
    gate = OutputGate()
    async with open_engine(synthetic(gated(executor, gate), dispatch_depth=1)) as engine:
        for deadline in (0.0, 0.05):
            async with busy_worker(engine):
                with pytest.raises(DeadlineExceededError, match=f"within {deadline:g} s"):
                    await engine.generate("queued", deadline=deadline)
                assert engine.statistics().waiting == 0
            await assert_idle(engine)

        async with engine.stream("running", num_inference_steps=LONG, deadline=0.05) as events:
            await until(events, Progress)
            with pytest.raises(DeadlineExceededError):
                await events.result()
        await assert_idle(engine)  # the worker has let go, though the forward takes 10 s

        gate.shut()
        async with engine.stream("output", deadline=0.1) as events:
            await gate.in_flight.wait()
            assert engine.statistics().pending_outputs == 1
            with pytest.raises(DeadlineExceededError):
                await events.result()
        gate.open()
        await assert_idle(engine)
        assert engine.statistics().failed == 4

        async with busy_worker(engine), engine.stream("a", request_id="queued") as events:
            assert await engine.abort("queued")
            with pytest.raises(RequestAborted, match="'queued'"):
                await events.result()
        await assert_idle(engine)

        async with busy_worker(engine, "running"):
            assert await engine.abort("running")
            assert engine.statistics().running == engine.statistics().aborting == 0
            assert await engine.abort("running")  # again, while its caller has not left
        assert not await engine.abort("running")
        assert not await engine.abort("never seen")

        gate.shut()
        async with (
            engine.stream("a", request_id="output") as events,
            trio.open_nursery() as nursery,
        ):
            await gate.in_flight.wait()
            nursery.start_soon(engine.abort, "output")
            with pytest.raises(RequestAborted):
                await events.result()
            assert engine.statistics().aborting == 1  # `abort` returns when the output is here
            gate.open()
        await assert_idle(engine)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_a_full_queue_refuses_and_an_id_is_taken_while_its_request_lives(
    executor: str,
) -> None:
    config = synthetic(executor, dispatch_depth=1, max_queued_requests=2)
    async with open_engine(config) as engine:
        async with (
            busy_worker(engine),
            engine.stream("a", request_id="second"),
            engine.stream("a", request_id="third"),
        ):
            with pytest.raises(EngineBusyError, match="2 requests are waiting"):
                await engine.generate("fourth")
            assert engine.statistics().claims == 3
        await assert_idle(engine)

        async with busy_worker(engine):
            with pytest.raises(DuplicateRequestError, match="'busy'"):
                await engine.generate("a", request_id="busy")
        await engine.wait_idle()
        await engine.generate("a", request_id="busy")


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_outputs_that_pile_up_hold_the_next_forwards_back(executor: str) -> None:
    gate = OutputGate()
    config = synthetic(
        gated(executor, gate), dispatch_depth=1, max_pending_outputs=2, max_queued_requests=6
    )
    async with open_engine(config) as engine:
        gate.shut()
        async with trio.open_nursery() as nursery:
            for seed in range(2):
                nursery.start_soon(_expect_seed, engine, seed)
            await settled(lambda: engine.statistics().pending_outputs == 2)
            for seed in range(2, 8):
                nursery.start_soon(_expect_seed, engine, seed)
            await trio.testing.wait_all_tasks_blocked()
            statistics = engine.statistics()
            assert (statistics.pending_outputs, statistics.running) == (2, 0)
            assert statistics.waiting == 6
            with pytest.raises(EngineBusyError):
                await engine.generate("a")
            gate.open()
        await assert_idle(engine)


async def _expect_seed(engine: DiffusionEngine, seed: int) -> None:
    assert values_of(await engine.generate("a", seed=seed, output_type="raw")) == [seed]


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_progress_is_dropped_before_it_fills_the_ring(executor: str) -> None:
    """The event loop stands still while the worker takes its steps."""
    gate = OutputGate()
    config = synthetic(
        gated(executor, gate),
        options={"forward_ms": 0},
        max_num_seqs=4,
        request_batch_max_wait_ms=100,
    )
    async with open_engine(config) as engine:
        results = gate.links[0].segment.results
        async with (
            trio.open_nursery() as nursery,
            engine.stream("a", num_inference_steps=LONG, output_type="raw") as events,
        ):
            for _ in range(3):  # one alone does not tell that many short steps
                nursery.start_soon(partial(engine.generate, "a", num_inference_steps=LONG))
            await until(events, Started)
            while 2 * results.used_bytes < results.capacity - 1024:
                pass
            await until(events, Progress)
            nursery.cancel_scope.cancel()
        await _expect_seed(engine, 3)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_methods_of_the_workers_can_be_called(executor: str) -> None:
    async with open_engine(synthetic(executor)) as engine:
        [statistics] = await engine.collective_rpc("runner_statistics")
        assert statistics["calls"] >= 1
        with pytest.raises(ExecutionError, match="no method 'no_such'"):
            await engine.collective_rpc("no_such")
        with trio.move_on_after(0) as scope:
            await engine.collective_rpc("runner_statistics")
        assert scope.cancelled_caught
        assert len(await engine.collective_rpc("runner_statistics")) == 1  # its late answer is lost
