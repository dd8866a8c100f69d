"""The engine loop: what workers are given, and when."""

import pytest
import trio
import trio.testing

from .fake_engines import Outcomes, open_fake, raw, serve, value_of

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def outcomes(nursery):
    return Outcomes(nursery)


async def start(outcomes, engine, request_ids, **params):
    """Start requests in order."""
    for request_id in request_ids:
        outcomes.start(request_id, engine.generate, raw(request_id=request_id, **params))
        await settled()


def given(executor):
    """Return the waves that workers were given, as strings of request ids."""
    return ["".join(job.request_id for job in wave) for wave in executor.waves]


# -- how much a worker holds


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_worker_holds_so_many_waves(autojump_clock, outcomes, depth):
    async with open_fake(dispatch_depth=depth) as (engine, executor):
        await start(outcomes, engine, "abcde")
        assert given(executor) == list("abcde"[:depth])
        executor.waves[0][0].compute_done()
        await settled()
        assert given(executor) == list("abcde"[: depth + 1])


async def test_the_next_forward_does_not_wait_for_the_last_output(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1) as (engine, executor):
        await start(outcomes, engine, "ab")
        first = await executor.next_job()
        first.compute_done()
        second = await executor.next_job()
        assert second.request_id == "b"
        assert not outcomes.has("a")
        first.output_ready()
        await outcomes.of("a")


async def test_a_worker_has_so_many_outputs_under_way(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, max_pending_outputs=2) as (engine, executor):
        await start(outcomes, engine, "abcd")
        for wave in range(2):
            executor.waves[wave][0].compute_done()
            await settled()
        assert given(executor) == ["a", "b"]
        assert engine.statistics().pending_outputs == 2
        executor.waves[1][0].output_ready()
        await settled()
        assert given(executor) == ["a", "b", "c"]


async def test_an_output_of_a_caller_that_left_counts_until_it_came(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, max_pending_outputs=1) as (engine, executor):
        async with engine.stream(raw()):
            job = await executor.next_job()
            job.compute_done()
            await settled()
        await start(outcomes, engine, "b")
        assert len(executor.waves) == 1
        job.output_ready()
        await settled()
        assert len(executor.waves) == 2


async def test_an_output_that_came_first_does_not_count(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=2, max_pending_outputs=1) as (engine, executor):
        await start(outcomes, engine, "a")
        (await executor.next_job()).output_ready()
        await start(outcomes, engine, "b")
        assert given(executor) == ["a", "b"]


async def test_a_full_ring_suspends_the_loop_alone(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=2) as (engine, executor):
        executor.room = trio.Event()
        await start(outcomes, engine, "ab")
        assert (executor.waves, engine.statistics().running) == ([], 1)
        outcomes.start("abort", engine.abort, "a")
        await outcomes.of("a")
        assert not outcomes.has("abort")  # it is on its way to the worker
        executor.room.set()
        await settled()
        assert given(executor) == ["a", "b"]
        executor.waves[0][0].abort()
        assert await outcomes.of("abort")


# -- waves


async def test_waves_are_filled_up(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, max_num_seqs=3) as (engine, executor):
        await start(outcomes, engine, "abcde")
        assert given(executor) == ["a"]
        executor.waves[0][0].finish()
        await settled()
        assert given(executor) == ["a", "bcd"]


async def test_incompatible_requests_part(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, max_num_seqs=4) as (engine, executor):
        await start(outcomes, engine, "a")
        await start(outcomes, engine, "bc", width=64)
        await start(outcomes, engine, "d", width=32)
        await start(outcomes, engine, "e", width=64)
        for wave in range(3):
            for job in executor.waves[wave]:
                job.finish()
            await settled()
        assert given(executor) == ["a", "bce", "d"]


async def test_priorities(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1) as (engine, executor):
        await start(outcomes, engine, "ab")
        await start(outcomes, engine, "c", priority=1)
        executor.waves[0][0].finish()
        await settled()
        assert given(executor) == ["a", "c"]


async def test_waiting_raises_priorities(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, ageing_s=3.0) as (engine, executor):
        await start(outcomes, engine, "ab")
        await trio.sleep(2.9)
        await start(outcomes, engine, "c", priority=1)
        await trio.sleep(0.2)
        executor.waves[0][0].finish()
        await settled()
        assert given(executor) == ["a", "b"]


async def test_company_is_looked_for_so_far(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, max_num_seqs=2, look_ahead=1) as (engine, executor):
        await start(outcomes, engine, "abc")
        executor.waves[0][0].finish()
        await settled()
        assert given(executor) == ["a", "b"]


async def test_a_wave_waits_for_company(autojump_clock, outcomes):
    async with open_fake(max_num_seqs=4, request_batch_max_wait_ms=500) as (engine, executor):
        began = trio.current_time()
        await start(outcomes, engine, "a")
        await trio.sleep(0.2)
        await start(outcomes, engine, "b")
        assert given(executor) == []
        wave = await executor.next_wave()
        assert trio.current_time() - began == pytest.approx(0.5)
        assert [job.request_id for job in wave] == ["a", "b"]


async def test_a_full_wave_waits_for_nobody(autojump_clock, outcomes):
    async with open_fake(max_num_seqs=2, request_batch_max_wait_ms=60_000) as (engine, executor):
        began = trio.current_time()
        await start(outcomes, engine, "ab")
        await executor.next_wave()
        assert trio.current_time() == began


async def test_who_leaves_an_open_window_is_not_dispatched(autojump_clock, outcomes):
    async with open_fake(max_num_seqs=4, request_batch_max_wait_ms=500) as (engine, executor):
        await start(outcomes, engine, "ab")
        await engine.abort("a")
        await trio.sleep(1)
        assert given(executor) == ["b"]


async def test_no_wave_while_nobody_waits(autojump_clock):
    async with open_fake(request_batch_max_wait_ms=500) as (engine, executor):
        async with engine.stream(raw()):
            pass
        await trio.sleep(10)
        assert executor.waves == []


# -- several workers


async def test_the_least_loaded_worker_is_next(autojump_clock, outcomes):
    async with open_fake(num_workers=2, dispatch_depth=2) as (engine, executor):
        await start(outcomes, engine, "abcde")
        assert [wave[0].worker for wave in executor.waves] == [0, 1, 0, 1]
        executor.waves[1][0].finish()
        await settled()
        assert (executor.waves[4][0].worker, executor.waves[4][0].request_id) == (1, "e")


async def test_among_idle_workers_the_one_that_ran_the_least_is_next(autojump_clock, outcomes):
    async with open_fake(num_workers=2) as (engine, executor):
        await start(outcomes, engine, "ab")
        for index, request_id in enumerate("cd"):
            executor.waves[index and 2][0].finish()  # worker 0 is quick, worker 1 is not
            await settled()
            await start(outcomes, engine, request_id)
        assert [wave[0].worker for wave in executor.waves] == [0, 1, 0, 0]
        executor.waves[1][0].finish()
        executor.waves[3][0].finish()
        await settled()
        await start(outcomes, engine, "e")
        assert executor.waves[4][0].worker == 1


async def test_a_stuck_output_does_not_stop_the_other_worker(autojump_clock, outcomes):
    async with open_fake(num_workers=2, dispatch_depth=1, max_pending_outputs=1) as (
        engine,
        executor,
    ):
        await start(outcomes, engine, "abcd")
        executor.waves[0][0].compute_done()
        executor.waves[1][0].finish()
        await settled()
        assert [wave[0].worker for wave in executor.waves] == [0, 1, 1]


# -- accounts


async def test_statistics_of_every_stage(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=2, max_num_seqs=2) as (engine, executor):
        await start(outcomes, engine, "a")  # will be computed
        await start(outcomes, engine, "b")  # will be left running
        executor.waves[0][0].compute_done()
        await settled()
        outcomes.start("abort", engine.abort, "b")
        await start(outcomes, engine, "cdef")
        statistics = engine.statistics()
        assert given(executor) == ["a", "b", "c"]
        assert (statistics.waiting, statistics.running, statistics.aborting) == (3, 1, 1)
        assert (statistics.pending_outputs, statistics.claims) == (1, 6)
        assert (statistics.waves, statistics.waves_dispatched) == (2, 3)
        assert statistics.cancel_slots_used == 3
        (worker,) = statistics.workers
        assert worker.running == ("a", "b", "c")
        assert (worker.waves, worker.pending_outputs, worker.state) == (2, 1, "ready")


async def test_statistics_of_what_has_been(autojump_clock, nursery, outcomes):
    async with open_fake() as (engine, executor):
        nursery.start_soon(serve, executor)
        results = [await engine.generate(raw()) for _ in range(3)]
        statistics = engine.statistics()
        assert (statistics.completed, statistics.failed, statistics.aborted) == (3, 0, 0)
        assert statistics.ring_bytes == executor.payloads.capacity
        assert statistics.ring_bytes_held == 3
        results.pop()
        assert engine.statistics().ring_bytes_held == 2


async def test_results_are_ones_own_in_any_order_of_completion(autojump_clock, outcomes):
    async with open_fake(max_num_seqs=9) as (engine, executor):
        for seed in range(9):
            outcomes.start(str(seed), engine.generate, raw(seed=seed))
        wave = await executor.next_wave()
        assert len(wave) == 9
        for job in wave[::2]:
            job.output_ready()
        for job in wave[::-1]:
            job.compute_done()
        for job in wave[1::2]:
            job.output_ready()
        for seed in range(9):
            assert value_of(await outcomes.of(str(seed))) == [seed]
