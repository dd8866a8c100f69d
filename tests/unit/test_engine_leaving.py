"""Every way a caller can leave, at every stage: what it is told, and that nothing stays behind."""

import contextlib

import pytest
import trio
import trio.testing

from sidestream.engine import DeadlineExceededError, RequestAborted, Started

from .fake_engines import Outcomes, open_fake, raw, value_of
from .fakes import aborted

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def outcomes(nursery):
    return Outcomes(nursery)


STAGES = ["queued", "running", "computed", "ready", "delivered"]


async def bring_to(stage, executor):
    """Let a worker go on with a single request up to a stage; return its job, if it has one."""
    if stage == "queued":
        return None
    job = await executor.next_job()
    if stage in ("computed", "delivered"):
        job.compute_done()
    if stage in ("ready", "delivered"):
        job.output_ready()
    await settled()
    return job


def let_go(stage, job):
    """Say what is left for an honest worker to say, once it sees the flag."""
    if stage == "running":
        job.abort()
    elif stage == "computed":
        job.output_failed(aborted())
    elif stage == "ready":
        job.compute_done()


@contextlib.asynccontextmanager
async def engine_at(stage, outcomes):
    """Open an engine that is busy with an earlier request where a queue is wanted."""
    async with open_fake(dispatch_depth=1) as (engine, executor):
        if stage == "queued":
            outcomes.start("earlier", engine.generate, raw())
            await executor.next_job()
        yield engine, executor


def assert_nothing_held(engine, executor, *, earlier):
    statistics = engine.statistics()
    assert statistics.claims == statistics.cancel_slots_used == statistics.waves == earlier
    assert (statistics.waiting, statistics.running) == (0, earlier)
    assert (statistics.pending_outputs, statistics.aborting) == (0, 0)
    assert (executor.payloads.lying, executor.payloads.held) == (0, 0)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_consumer_that_leaves(autojump_clock, outcomes, stage):
    async with engine_at(stage, outcomes) as (engine, executor):
        async with engine.stream(raw(request_id="a")):
            job = await bring_to(stage, executor)
        held_by_worker = stage in ("running", "computed", "ready")
        assert engine.statistics().aborting == held_by_worker
        assert executor.payloads.held == 0
        if held_by_worker:
            assert job.flagged
            let_go(stage, job)
            await settled()
        assert_nothing_held(engine, executor, earlier=stage == "queued")
        assert engine.statistics().aborted == 1


@pytest.mark.parametrize("stage", STAGES[:-1])
async def test_a_cancelled_call(autojump_clock, outcomes, stage):
    async with engine_at(stage, outcomes) as (engine, executor):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.generate, raw())
            await settled()
            job = await bring_to(stage, executor)
            nursery.cancel_scope.cancel()
        if job is not None:
            assert job.flagged
            let_go(stage, job)
            await settled()
        assert_nothing_held(engine, executor, earlier=stage == "queued")
        assert engine.statistics().aborted == 1


@pytest.mark.parametrize("stage", STAGES[:-1])
async def test_an_abort_ends_the_wait_at_once_and_returns_when_the_worker_let_go(
    autojump_clock, outcomes, stage
):
    async with engine_at(stage, outcomes) as (engine, executor):
        outcomes.start("a", engine.generate, raw(request_id="a"))
        await settled()
        job = await bring_to(stage, executor)
        outcomes.start("abort", engine.abort, "a")
        outcomes.start("another", engine.abort, "a")
        error = await outcomes.of("a")
        assert isinstance(error, RequestAborted)
        assert str(error) == "request 'a' was aborted"
        await settled()
        if job is not None:
            assert job.flagged
            assert not outcomes.has("abort")
            let_go(stage, job)
        assert await outcomes.of("abort") is True
        assert await outcomes.of("another") is True
        assert await engine.abort("a") is False
        assert_nothing_held(engine, executor, earlier=stage == "queued")
        assert engine.statistics().aborted == 1


async def test_an_abort_of_a_result_that_was_not_fetched(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(request_id="a")) as events:
        await bring_to("delivered", executor)
        assert await engine.abort("a") is True
        with pytest.raises(RequestAborted):
            await events.result()


async def test_an_abort_after_the_result_was_fetched(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(request_id="a")) as events:
        await bring_to("delivered", executor)
        result = await events.result()
        assert await engine.abort("a") is True
        assert await events.result() is result
    assert engine.statistics().completed == 1


async def test_an_abort_of_nobody(autojump_clock):
    async with open_fake() as (engine, _):
        assert await engine.abort("nobody") is False


async def test_a_queued_wave_of_an_aborted_request_is_flagged_too(autojump_clock, outcomes):
    """With two waves in a worker's hands, the second one learns of it before it begins."""
    async with open_fake(dispatch_depth=2) as (engine, executor):
        outcomes.start("a", engine.generate, raw(request_id="a"))
        first = await executor.next_job()
        outcomes.start("b", engine.generate, raw(request_id="b"))
        second = await executor.next_job()
        outcomes.start("abort", engine.abort, "b")
        await outcomes.of("b")
        assert (first.flagged, second.flagged) == (False, True)
        first.finish()
        second.abort()
        await outcomes.of("abort")
        assert await outcomes.of("a")


async def test_who_leaves_a_wave_leaves_alone(autojump_clock, outcomes):
    async with open_fake(max_num_seqs=3, dispatch_depth=1) as (engine, executor):
        for seed, request_id in enumerate("abc"):
            outcomes.start(request_id, engine.generate, raw(request_id=request_id, seed=seed))
        jobs = {job.request_id: job for job in await executor.next_wave()}
        outcomes.start("abort", engine.abort, "b")
        await outcomes.of("b")
        outcomes.start("d", engine.generate, raw(request_id="d"))
        await settled()
        assert len(executor.waves) == 1  # its place in the worker is not free yet
        for request_id in "abc":
            assert jobs[request_id].flagged == (request_id == "b")
        jobs["b"].abort()
        jobs["c"].finish()
        jobs["a"].finish()
        assert value_of(await outcomes.of("a")) == [0]
        assert value_of(await outcomes.of("c")) == [2]
        assert [job.request_id for job in await executor.next_wave()] == ["d"]


# -- deadlines


@pytest.mark.parametrize("stage", STAGES[:-1])
async def test_a_deadline_passes(autojump_clock, outcomes, stage):
    async with engine_at(stage, outcomes) as (engine, executor):
        began = trio.current_time()
        outcomes.start("a", engine.generate, raw(request_id="a", deadline=2.5))
        await settled()
        job = await bring_to(stage, executor)
        error = await outcomes.of("a")
        assert isinstance(error, DeadlineExceededError)
        assert isinstance(error, TimeoutError)
        assert str(error) == "request 'a' did not finish within 2.5 s"
        assert trio.current_time() == began + 2.5
        if job is not None:
            assert job.flagged
            let_go(stage, job)
            await settled()
        assert_nothing_held(engine, executor, earlier=stage == "queued")
        assert (engine.statistics().failed, engine.statistics().aborted) == (1, 0)


async def test_a_deadline_runs_from_submission_whatever_is_told(autojump_clock):
    """Progress does not put it off."""
    async with open_fake() as (engine, executor):
        with pytest.raises(DeadlineExceededError):  # noqa: PT012 -- the block is the reader
            async with engine.stream(raw(deadline=3.0)) as events:
                job = await executor.next_job()
                async for _ in events:
                    await trio.sleep(1)
                    job.progress(int(trio.current_time()))
                    await settled()  # there is always news
        job.abort()
        await engine.wait_idle()


async def test_a_result_that_is_fetched_too_late(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(deadline=3.0)) as events:
        await bring_to("delivered", executor)
        await trio.sleep(4)
        with pytest.raises(DeadlineExceededError):
            await events.result()


async def test_a_deadline_that_is_met(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw(seed=1, deadline=3.0))
        job = await executor.next_job()
        await trio.sleep(2.9)
        job.finish()
        assert value_of(await outcomes.of("a")) == [1]
        await trio.sleep(10)
        assert not job.flagged


# -- idleness


async def test_waiting_until_nothing_is_held(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        await engine.wait_idle()
        async with engine.stream(raw(request_id="a")) as events:
            job = await executor.next_job()
            assert isinstance([await anext(events), await anext(events)][-1], Started)
            outcomes.start("idle", engine.wait_idle)
            outcomes.start("idle too", engine.wait_idle)
            await settled()
        assert not outcomes.has("idle")  # the worker holds it still
        job.abort()
        await outcomes.of("idle")
        await outcomes.of("idle too")
        await engine.wait_idle()
