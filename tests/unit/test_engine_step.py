"""Step mode, on a worker that the test plays: ticks, two of them under way, ends and aborts."""

from functools import partial

import numpy as np
import pytest
import trio
import trio.testing

from sidestream.engine import (
    Chunk,
    Completed,
    EngineDeadError,
    ExecutionError,
    Preview,
    Progress,
    RequestAborted,
    RequestError,
    StepScheduler,
)
from sidestream.engine.claims import ProtocolError
from sidestream.ipc_ext.messages import AsyncDiffusionOutput, AsyncOutputKind, StepProgress

from .fake_engines import Outcomes, open_fake, raw, value_of
from .fakes import CAPABILITIES, FakeExecutor, piece_of, raised

STEP = {"mode": "step", "max_num_seqs": 2}
settled = trio.testing.wait_all_tasks_blocked


def request(name, steps=3, **params):
    return raw(request_id=name, seed=ord(name), num_inference_steps=steps, **params)


async def step(executor, **ended):
    """Run the next tick: all take a step; those named end by it, well or by an error."""
    tick = await executor.next_tick()
    went_on = {}
    for job in tick.scheduled:
        name = job.request_id
        job.steps = getattr(job, "steps", 0) + 1
        if name in ended:
            if ended[name] is None:
                job.finish()
            else:
                job.compute_failed(ended[name])
        else:
            went_on[name] = (job.steps, job.data.call["num_inference_steps"])
    tick.done(**went_on)
    return "".join(sorted(tick.names))


async def test_requests_share_ticks_and_each_gets_its_own(autojump_clock, nursery):
    outcomes = Outcomes(nursery)
    async with open_fake(**STEP) as (engine, executor):
        outcomes.start("a", engine.generate, request("a"))
        await settled()
        outcomes.start("b", engine.generate, request("b", 2))
        await settled()
        assert [await step(executor), await step(executor)] == ["a", "a"]  # they were under way
        assert await step(executor, a=None) == "ab"
        assert await step(executor, b=None) == "b"
        for name in "ab":
            assert value_of(await outcomes.of(name)) == [ord(name)]
        await engine.wait_idle()
        statistics = engine.statistics()
        assert (statistics.claims, statistics.waves, statistics.cancel_slots_used) == (0, 0, 0)


async def test_two_ticks_are_under_way_and_no_more(autojump_clock, nursery):
    async with open_fake(**STEP) as (engine, executor):
        nursery.start_soon(partial(engine.generate, request("a", 9)))
        await settled()
        assert len(executor.ticks) == 2
        (await executor.next_tick()).done(a=(1, 9))
        await settled()
        assert len(executor.ticks) == 3
        nursery.cancel_scope.cancel()


async def test_progress_is_told_with_what_is_left(autojump_clock, nursery):
    async with open_fake(**STEP) as (engine, executor), engine.stream(request("a", 2)) as events:
        await step(executor)
        seen = []
        async for event in events:
            seen.append(event)
            if event == Progress("a", 1, 2):
                await step(executor, a=None)
        assert Progress("a", 1, 2) in seen
        assert isinstance(seen[-1], Completed)


async def test_an_error_ends_its_own_request(autojump_clock, nursery):
    outcomes = Outcomes(nursery)
    async with open_fake(**STEP) as (engine, executor):
        outcomes.start("a", engine.generate, request("a", 2))
        outcomes.start("b", engine.generate, request("b", 2))
        await settled()
        assert await step(executor, a=raised()) == "ab"
        assert isinstance(await outcomes.of("a"), ExecutionError)
        assert await step(executor, b=None) == "ab"  # it was under way
        assert value_of(await outcomes.of("b")) == [ord("b")]


async def test_a_request_that_is_left_ends_by_the_next_tick(autojump_clock, nursery):
    async with open_fake(**STEP) as (engine, executor):
        with trio.CancelScope() as scope:
            async with engine.stream(request("a", 9)) as events:
                await step(executor)
                under_way = await executor.next_tick()
                scope.cancel()
                await events.result()
        (job,) = under_way.scheduled
        assert job.flagged
        assert engine.statistics().aborting == 1
        under_way.done()
        last = await executor.next_tick()  # it was under way as well
        assert last.names == ["a"]
        last.done()
        sweep = await executor.next_tick()
        assert sweep.names == []
        job.abort()
        sweep.done()
        await engine.wait_idle()
        assert engine.statistics().cancel_slots_used == 0


async def test_an_abort_is_answered_when_the_worker_lets_go(autojump_clock, nursery):
    outcomes = Outcomes(nursery)
    async with open_fake(**STEP) as (engine, executor):
        outcomes.start("a", engine.generate, request("a", 9))
        await step(executor)
        outcomes.start("abort", engine.abort, "a")
        assert isinstance(await outcomes.of("a"), RequestAborted)
        tick = await executor.next_tick()
        assert not outcomes.has("abort")
        tick.scheduled[0].abort()
        tick.done()
        assert await outcomes.of("abort") is True


async def test_a_higher_priority_takes_the_place_between_steps(autojump_clock, nursery):
    outcomes = Outcomes(nursery)
    async with open_fake(mode="step", max_num_seqs=1, dispatch_depth=1) as (engine, executor):
        outcomes.start("a", engine.generate, request("a", 2))
        tick = await executor.next_tick()
        outcomes.start("b", engine.generate, request("b", 1, priority=1))
        await settled()
        tick.done(a=(1, 2))
        assert await step(executor, b=None) == "b"
        assert value_of(await outcomes.of("b")) == [ord("b")]
        assert await step(executor, a=None) == "a"
        assert value_of(await outcomes.of("a")) == [ord("a")]


async def test_a_scheduler_of_ones_own_decides(autojump_clock, nursery):
    class LastFirst(StepScheduler):
        def rank(self, state, now):
            return -state.order

    outcomes = Outcomes(nursery)
    async with open_fake(mode="step", max_num_seqs=1, dispatch_depth=1, scheduler=LastFirst) as (
        engine,
        executor,
    ):
        for name in "abc":
            outcomes.start(name, engine.generate, request(name, 1))
            await settled()
        order = [await step(executor, a=None, b=None, c=None) for _ in range(3)]
        assert order == ["a", "c", "b"]


@pytest.mark.parametrize("method", ["update_from_output", "finish_request", "schedule", "rank"])
async def test_a_scheduler_that_fails_ends_the_engine_in_order(method, autojump_clock, nursery):
    """Every waiter is told, whatever else the scheduler may refuse to do then."""
    armed = False

    class Failing(StepScheduler):
        pass

    def fail(self, *args, **kwargs):
        if armed:
            raise RuntimeError("no policy")
        return getattr(StepScheduler, method)(self, *args, **kwargs)

    setattr(Failing, method, fail)
    outcomes = Outcomes(nursery)
    async with open_fake(scheduler=Failing, **STEP) as (engine, executor):
        for name in "abcd":
            outcomes.start(name, engine.generate, request(name, 2))
        await settled()
        armed = True
        with trio.move_on_after(1):
            await engine.generate(request("e"))
        tick = await executor.next_tick()
        if not engine._dead.is_set():
            tick.scheduled[0].compute_done()
            tick.done()
        error = await engine.wait_dead()
        assert str(error.__cause__) == "no policy"
        for name in "abcd":
            assert isinstance(await outcomes.of(name), EngineDeadError)
        statistics = engine.statistics()
        assert (statistics.claims, statistics.cancel_slots_used, statistics.waves) == (0, 0, 0)


async def test_a_scheduler_that_fails_to_admit_ends_the_engine(autojump_clock):
    class Failing(StepScheduler):
        def add_request(self, state, now):
            super().add_request(state, now)
            raise RuntimeError("no policy")

    async with open_fake(scheduler=Failing, **STEP) as (engine, _):
        with pytest.raises(EngineDeadError, match="no policy"):
            await engine.generate(request("a"))
        await engine.wait_dead()


async def test_closing_that_was_cancelled_goes_on(autojump_clock, nursery):
    class Slow(FakeExecutor):
        async def close(self, grace):
            await trio.sleep(1)
            await super().close(grace)

    async with open_fake(Slow, **STEP) as (engine, executor):
        with trio.move_on_after(0.5) as scope:
            await engine.close()
        assert scope.cancelled_caught
        nursery.start_soon(engine.close)
        await settled()
    assert executor.graces == [engine.config.shutdown_grace]


# -- previews and chunks


async def test_previews_are_shown_the_latest_one(autojump_clock, nursery):
    async with (
        open_fake(**STEP) as (engine, executor),
        engine.stream(request("a", 9, preview_every=1)) as events,
    ):
        job = (await executor.next_tick()).scheduled[0]
        assert job.data.preview_every == 1
        for number in (1, 2):
            piece = piece_of(executor.payloads, "preview", np.full((1, 2, 3), number, np.uint8))
            job.preview(piece, step=number)
        previews = []
        async for event in events:
            if isinstance(event, Preview):
                previews.append((event.step, np.unique(event.image).tolist()))
                job.finish()
        assert previews == [(2, [2])]
        assert executor.payloads.lying == 0


async def test_chunks_all_come_in_order(autojump_clock, nursery):
    async with (
        open_fake(**STEP) as (engine, executor),
        engine.stream(request("a", streaming_output=True)) as events,
    ):
        job = (await executor.next_tick()).scheduled[0]
        assert job.data.chunks
        for index in range(3):
            frames = np.full((2, 3), index, np.int64)
            job.chunk(
                piece_of(executor.payloads, "frames", frames, 0, 20), index=index, final=False
            )
            job.chunk(piece_of(executor.payloads, "frames", frames, 20), index=index)
        job.finish()
        await settled()
        assert executor.payloads.held == 1  # the output; chunks are copied
        chunks = [event async for event in events if isinstance(event, Chunk)]
        assert [chunk.index for chunk in chunks] == [0, 1, 2]
        assert [chunk.output.numpy().tolist() for chunk in chunks] == [
            [[index] * 3] * 2 for index in range(3)
        ]


async def test_chunks_are_not_kept_for_one_who_waits_for_the_whole(autojump_clock, nursery):
    outcomes = Outcomes(nursery)
    async with open_fake(streaming_output=True, **STEP) as (engine, executor):
        outcomes.start("a", engine.generate, request("a"))
        (job,) = (await executor.next_tick()).scheduled
        job.chunk(piece_of(executor.payloads, "frames", np.zeros((2, 3), np.int64)), index=0)
        await settled()
        (claim,) = engine._ledger
        assert not claim.mailbox.chunks
        job.finish()
        assert value_of(await outcomes.of("a")) == [ord("a")]


async def test_pictures_for_one_who_left_are_given_back(autojump_clock, nursery):
    async with open_fake(**STEP) as (engine, executor):
        with trio.CancelScope() as scope:
            async with engine.stream(
                request("a", preview_every=1, streaming_output=True)
            ) as events:
                job = (await executor.next_tick()).scheduled[0]
                scope.cancel()
                await events.result()
        data = np.zeros((1, 2, 3), np.uint8)
        job.preview(piece_of(executor.payloads, "preview", data), step=1)
        job.chunk(piece_of(executor.payloads, "frames", data), index=0)
        job.abort()
        await settled()
        assert executor.payloads.lying == executor.payloads.held == 0


@pytest.mark.parametrize(
    ("settings", "params", "message"),
    [
        ({}, {"preview_steps": 2}, "preview_steps needs an engine of mode 'step', not 'request'"),
        ({}, {"preview_every": 2}, "preview_every needs an engine of mode 'step'"),
        ({}, {"streaming_output": True}, "streaming_output needs an engine of mode 'step'"),
        (STEP, {"preview_steps": 2, "preview_every": 1}, "exclude each other"),
    ],
)
async def test_streaming_that_cannot_be_is_refused(settings, params, message, autojump_clock):
    async with open_fake(**settings) as (engine, _):
        with pytest.raises(RequestError, match=message):
            await engine.generate(raw(**params))
        assert engine.statistics().claims == 0


async def test_a_pipeline_that_cannot_preview_says_so(autojump_clock):
    class Blind(FakeExecutor):
        capabilities = CAPABILITIES | {"previews": False, "chunks": False}

    async with open_fake(Blind, **STEP) as (engine, _):
        with pytest.raises(RequestError, match="no way to show FakePipeline's latents"):
            await engine.generate(raw(preview_steps=1))


async def test_a_pipeline_that_has_no_parts_to_tell_says_so(autojump_clock, nursery):
    class Whole(FakeExecutor):
        capabilities = CAPABILITIES | {"chunks": False}

    async with open_fake(Whole, streaming_output=True, **STEP) as (engine, executor):
        with pytest.raises(RequestError, match="streaming_output must not be true: FakePipeline"):
            await engine.generate(raw(streaming_output=True))
        nursery.start_soon(engine.generate, request("a"))  # as configured: what there is
        (job,) = (await executor.next_tick()).scheduled
        assert not job.data.chunks
        nursery.cancel_scope.cancel()


async def test_a_config_may_ask_for_streaming(autojump_clock, nursery):
    async with open_fake(streaming_output=True, **STEP) as (engine, executor):
        nursery.start_soon(engine.generate, request("a"))
        nursery.start_soon(engine.generate, request("b", streaming_output=False))
        await settled()
        jobs = [job for tick in executor.ticks for job in tick.new]
        assert {job.request_id: job.data.chunks for job in jobs} == {"a": True, "b": False}
        nursery.cancel_scope.cancel()


# -- what no honest worker does


@pytest.mark.parametrize("progress", [(), (StepProgress(77, 1, 2),)], ids=["", "of a request"])
async def test_a_tick_that_was_not_given_ends_the_engine(progress, autojump_clock):
    async with open_fake(**STEP) as (engine, executor):
        executor.say(0, AsyncDiffusionOutput(AsyncOutputKind.STEP_DONE, progress=progress))
        error = await engine.wait_dead()
        assert isinstance(error.__cause__, ProtocolError)


async def test_a_tick_tells_of_its_own_requests_only(autojump_clock, nursery):
    outcomes = Outcomes(nursery)
    async with open_fake(**STEP) as (engine, executor):
        outcomes.start("a", engine.generate, request("a"))
        await executor.next_tick()
        progress = (StepProgress(77, 1, 2),)
        executor.say(0, AsyncDiffusionOutput(AsyncOutputKind.STEP_DONE, progress=progress))
        error = await outcomes.of("a")
        assert isinstance(error, EngineDeadError)
        assert isinstance(error.__cause__, ProtocolError)


async def test_slots_suffice_for_all_that_a_worker_may_hold(autojump_clock, nursery):
    """Those that run, those that gave way, and those that were left, before a tick ends."""
    settings = {"dispatch_depth": 1, "max_pending_outputs": 1}
    async with open_fake(**STEP, **settings) as (engine, executor):
        scopes = []
        for priority in (0, 1):
            for _ in range(2):
                scopes.append(trio.CancelScope())
                nursery.start_soon(run_in, scopes[-1], engine, priority)
            await settled()
            (await executor.next_tick()).done()
            await settled()
        assert engine.statistics().preempted == 2
        for scope in scopes:
            scope.cancel()
        await settled()
        nursery.start_soon(run_in, trio.CancelScope(), engine, 2)
        await settled()
        for tick in executor.ticks[2:]:
            tick.done()
            await settled()
        assert any(job.data.seeds == (2,) for tick in executor.ticks for job in tick.scheduled)
        nursery.cancel_scope.cancel()


async def run_in(scope, engine, priority):
    with scope:
        await engine.generate(raw(seed=priority, priority=priority, num_inference_steps=9))


async def test_who_polls_with_a_timeout_misses_nothing(nursery):
    """The conversion of a chunk, and of the output, is cancelled and asked for again."""
    wanted = {"streaming_output": True, "output_type": "np", "num_inference_steps": 9}
    async with (
        open_fake(**STEP, postprocess_threads=1) as (engine, executor),
        engine.stream("a", **wanted) as events,
    ):
        (job,) = (await executor.next_tick()).scheduled
        image = np.zeros((1, 3, 4, 4), np.float32)
        job.chunk(piece_of(executor.payloads, "images", image), index=0)
        job.compute_done()
        job.output_ready(piece_of(executor.payloads, "images", image))
        await settled()
        for kind in (Chunk, Completed):
            await cancel_in_conversion(engine, events, kind)
            event = await anext(events)
            assert isinstance(event, kind)
        assert event.result.output.shape == (4, 4, 3)


async def cancel_in_conversion(engine, events, kind):
    """Ask for events until one has to be converted; have it wait for a thread, and give up."""
    threads = engine._host_stage._threads
    async with threads, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when_settled, scope)
            while not isinstance(await anext(events), kind):
                pass
        assert scope.cancelled_caught


async def cancel_when_settled(scope):
    await settled()
    scope.cancel()
