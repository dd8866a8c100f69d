"""The death of an engine: every waiter has an answer at once, and everybody learns of what."""

import pytest
import trio
import trio.testing

from sidestream.engine import (
    EngineDeadError,
    ExecutionError,
    RequestAborted,
    WorkerDiedError,
)
from sidestream.engine.claims import ProtocolError

from .fake_engines import Outcomes, open_fake, raw, value_of
from .fakes import raised

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def outcomes(nursery):
    return Outcomes(nursery)


def by_a_worker(executor):
    executor.kill()
    return WorkerDiedError


def by_the_pump(executor):
    executor.break_receive(RuntimeError("bug"))
    return RuntimeError


def by_the_protocol(executor):
    job = executor.waves[0][0]
    job.compute_done()
    job.compute_done()
    return ProtocolError


def by_the_device(executor):
    executor.waves[0][0].compute_failed(raised("AcceleratorError: unspecified", fatal=True))
    return ExecutionError


DEATHS = [by_a_worker, by_the_pump, by_the_protocol, by_the_device]


async def meet_death(engine, executor, outcomes, death):
    """Let an engine die that has a request running, others in its worker's hands, others queued."""
    for name in "abc":
        outcomes.start(name, engine.generate, raw(request_id=name))
        await settled()
    return death(executor)


@pytest.mark.parametrize("death", DEATHS)
async def test_at_a_death_every_waiter_has_an_answer_at_once(autojump_clock, outcomes, death):
    async with open_fake() as (engine, executor):
        began = trio.current_time()
        outcomes.start("death", engine.wait_dead)
        outcomes.start("idle", engine.wait_idle)
        cause = await meet_death(engine, executor, outcomes, death)
        errors = [await outcomes.of(name) for name in "abc"]
        assert trio.current_time() == began
        assert len(set(map(id, errors))) == 3  # each has one of its own
        for error in errors[1:]:
            assert isinstance(error, WorkerDiedError | EngineDeadError)
            assert isinstance(error, cause) or isinstance(error.__cause__, cause)
        assert isinstance((await outcomes.of("death")).__cause__, cause)
        await outcomes.of("idle")
        statistics = engine.statistics()
        assert (statistics.claims, statistics.waves, statistics.cancel_slots_used) == (0, 0, 0)
        assert (statistics.waiting, statistics.running) == (0, 0)
        assert (statistics.pending_outputs, statistics.failed) == (0, 3)


@pytest.mark.parametrize("death", DEATHS)
async def test_a_dead_engine_says_of_what_it_died(autojump_clock, outcomes, death):
    async with open_fake() as (engine, executor):
        cause = await meet_death(engine, executor, outcomes, death)
        await outcomes.of("c")
        for call in (engine.generate(raw()), engine.collective_rpc("ping")):
            with pytest.raises(EngineDeadError, match="the engine is dead: ") as dead:
                await call
            assert isinstance(dead.value.__cause__, cause)
        with pytest.raises(EngineDeadError) as dead:
            engine.check_health()
        assert isinstance(dead.value.__cause__, cause)
        assert await engine.abort("a") is False
    assert executor.graces == [engine.config.shutdown_grace]
    with pytest.raises(EngineDeadError):  # and not that it is closed: that is no news
        engine.check_health()


async def test_the_cause_is_not_lost_on_the_way_out(autojump_clock):
    async def body():
        async with open_fake() as (engine, executor):
            executor.kill()
            await engine.wait_dead()
            engine.check_health()

    with pytest.raises(EngineDeadError) as dead:
        await body()
    assert isinstance(dead.value.__cause__, WorkerDiedError)


async def test_what_a_dead_worker_said_last(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw(seed=1))
        job = await executor.next_job()
        outcomes.start("b", engine.generate, raw())
        await executor.next_job()
        job.finish()
        executor.kill()
        assert value_of(await outcomes.of("a")) == [1]
        error = await outcomes.of("b")
        assert str(error) == "worker 0 was killed by SIGKILL"
        assert (error.worker, error.exit_status, error.stderr) == (0, -9, "last words")
        assert error.__notes__ == ["Its last lines:\nlast words"]


async def test_a_result_that_came_before_the_death_can_be_fetched_after_it(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(seed=1)) as events:
        (await executor.next_job()).finish()
        executor.kill()
        await engine.wait_dead()
        assert value_of(await events.result()) == [1]


async def test_an_aborter_is_answered_by_a_death(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw(request_id="a"))
        await executor.next_job()
        outcomes.start("abort", engine.abort, "a")
        await outcomes.of("a")
        executor.kill()
        assert await outcomes.of("abort") is True


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (WorkerDiedError(0, "has gone", 1), WorkerDiedError),
        (RuntimeError("bug"), EngineDeadError),
    ],
)
async def test_a_dispatch_that_fails(autojump_clock, outcomes, error, told):
    async with open_fake() as (engine, executor):
        executor.dispatch_error = error
        outcomes.start("a", engine.generate, raw())
        outcomes.start("b", engine.generate, raw())
        for name in "ab":
            assert isinstance(await outcomes.of(name), told)
        assert (await engine.wait_dead()).__cause__ is error


async def test_the_first_cause_stands(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        executor.room = trio.Event()
        outcomes.start("a", engine.generate, raw())
        await settled()
        executor.kill()
        error = await outcomes.of("a")
        executor.dispatch_error = RuntimeError("the rings have gone")
        executor.room.set()
        await settled()
        assert isinstance(error, WorkerDiedError)
        assert isinstance((await engine.wait_dead()).__cause__, WorkerDiedError)


async def test_a_worker_found_dead_before_the_pump_says_so(autojump_clock):
    async with open_fake() as (engine, executor):
        executor.death = WorkerDiedError(0, "has gone", 1)
        with pytest.raises(WorkerDiedError, match="worker 0 has gone"):
            await engine.generate(raw())


async def test_who_is_aborted_is_not_told_of_a_death(autojump_clock, outcomes):
    """The first outcome stands."""
    async with open_fake() as (engine, executor), engine.stream(raw(request_id="a")) as events:
        await executor.next_job()
        outcomes.start("abort", engine.abort, "a")
        await settled()
        executor.kill()
        await engine.wait_dead()
        with pytest.raises(RequestAborted):
            await events.result()
