"""A worker dies, at every step of the protocol: every waiter is told, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from sidestream.engine import (
    DiffusionEngine,
    EngineDeadError,
    Progress,
    Started,
    StartupError,
    WorkerDiedError,
    open_engine,
)
from sidestream.workers import faults

from ..harness.engines import LONG, offer_pipelines, synthetic, until, values_of
from ..harness.gates import OutputGate, gated
from ..harness.surroundings import PATIENCE, nothing_left

BEFORE_READY = ("attached", "configured", "loaded")
IN_A_REQUEST = ("executing", "computed", "compute_done", "reserved", "copied", "output_ready")
IN_A_TICK = (*IN_A_REQUEST, "step_done")
KILLED = r"worker 0 \(pid \d+\) was killed by SIGKILL"


def test_all_points_are_covered() -> None:
    assert {*BEFORE_READY, "greeted", *IN_A_TICK, "stopping"} == set(faults.POINTS)


class Waiters:
    """Requests that run at the same time, and how each of them ended."""

    def __init__(self, engine: DiffusionEngine) -> None:
        self._engine = engine
        self.good = 0
        self.errors: list[WorkerDiedError] = []
        self.last = 0.0

    async def run(self, count: int, **params: Any) -> None:
        """Run some and wait for all their ends."""
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for seed in range(count):
                    nursery.start_soon(partial(self._run, seed, **params))

    async def _run(self, seed: int, **params: Any) -> None:
        try:
            result = await self._engine.generate("a", seed=seed, output_type="raw", **params)
        except WorkerDiedError as error:
            self.last = trio.current_time()
            self.errors.append(error)
        else:
            assert values_of(result) == [seed]
            self.good += 1


async def assert_dead(engine: DiffusionEngine, status: int = -signal.SIGKILL) -> None:
    """Check that the engine knows that it is dead, of what, and holds nothing."""
    with trio.fail_after(PATIENCE):
        died = await engine.wait_dead()
    assert isinstance(died.__cause__, WorkerDiedError)
    assert died.__cause__.exit_status == status
    for attempt in (engine.generate, engine.collective_rpc):
        with pytest.raises(EngineDeadError) as caught:
            await attempt("runner_statistics")
        assert isinstance(caught.value.__cause__, WorkerDiedError)
    with pytest.raises(EngineDeadError):
        engine.check_health()
    statistics = engine.statistics()
    assert statistics.claims == statistics.waiting == statistics.running == 0
    assert statistics.cancel_slots_used == statistics.waves == statistics.pending_outputs == 0
    assert [worker.state for worker in statistics.workers] == ["dead"]


@pytest.mark.parametrize("point", BEFORE_READY)
async def test_before_it_is_ready(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDESTREAM_FAULT", point)
    async with nothing_left():
        with pytest.raises(StartupError, match=KILLED):
            async with open_engine(synthetic("mp")):
                raise AssertionError("it started")


@pytest.mark.parametrize("point", ["greeted", *IN_A_REQUEST])
async def test_during_the_warm_up(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the request's outcome was sent before, the engine may start, and is dead then."""
    monkeypatch.setenv("SIDESTREAM_FAULT", point)
    started = False
    async with nothing_left():
        try:
            async with open_engine(synthetic("mp")) as engine:
                started = True
                await assert_dead(engine)
        except StartupError as error:
            assert "was killed by SIGKILL" in str(error)  # noqa: PT017
    assert not started or point in ("compute_done", "output_ready")


@pytest.mark.parametrize(
    ("mode", "point"),
    [*(("request", point) for point in IN_A_REQUEST), *(("step", point) for point in IN_A_TICK)],
)
async def test_after_the_warm_up(mode: str, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDESTREAM_FAULT", f"{point}:2")
    ended = ("compute_done", "output_ready", "step_done")
    async with nothing_left():
        async with open_engine(synthetic("mp", max_num_seqs=2, mode=mode)) as engine:
            waiters = Waiters(engine)
            await waiters.run(6)
            assert waiters.good <= (2 if point in ended else 0)
            assert waiters.good + len(waiters.errors) == 6
            for error in waiters.errors:
                assert error.exit_status == -signal.SIGKILL
                assert "was killed by SIGKILL" in str(error)
            assert len(set(map(id, waiters.errors))) == len(waiters.errors)
            await assert_dead(engine)
        del waiters, error


async def test_while_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIDESTREAM_FAULT", "stopping")
    async with nothing_left():
        with trio.fail_after(3 * PATIENCE):
            async with open_engine(synthetic("mp")) as engine:
                await engine.generate("a")


async def test_from_outside_every_waiter_is_told_at_once() -> None:
    """Requests that run, that wait in the worker, in the engine, for their output, for room."""
    gate = OutputGate()
    config = synthetic(gated("mp", gate))
    async with nothing_left(), open_engine(config) as engine:
        [worker] = engine.statistics().workers
        assert worker.pid is not None
        waiters = Waiters(engine)
        gate.shut()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiters.run, 1)
            await gate.in_flight.wait()
            async with engine.stream("a", num_inference_steps=LONG) as running:
                await until(running, Progress)
                nursery.start_soon(partial(waiters.run, 6, num_inference_steps=LONG))
                nursery.start_soon(_expect_death, engine.abort, running.request_id)
                nursery.start_soon(_expect_death, engine.collective_rpc, "runner_statistics")
                await trio.testing.wait_all_tasks_blocked()
                os.kill(worker.pid, signal.SIGKILL)
                killed = trio.current_time()
        told = waiters.last - killed
        print(f"from SIGKILL to the last waiter's error: {1000 * told:.1f} ms")
        assert told < 10
        assert len(waiters.errors) == 7
        gate.open()
        await assert_dead(engine)
        waiters.errors.clear()


async def _expect_death(attempt: Any, argument: str) -> None:
    """Check that a call ends, one way or the other."""
    with trio.fail_after(PATIENCE), contextlib.suppress(WorkerDiedError, EngineDeadError):
        await attempt(argument)


async def test_while_a_sender_waits_for_room() -> None:
    """The worker is stopped, so nobody takes the 3 MiB out of a ring of one."""
    async with nothing_left(), open_engine(synthetic("mp")) as engine:
        [worker] = engine.statistics().workers
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        picture = np.zeros((1024, 1024, 3), np.uint8)
        waiters = Waiters(engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(waiters.run, 3, extra_args={"image": picture}))
            await trio.testing.wait_all_tasks_blocked(0.01)
            os.kill(worker.pid, signal.SIGKILL)
        assert len(waiters.errors) == 3
        await assert_dead(engine)
        waiters.errors.clear()


async def test_by_an_exit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_pipelines(monkeypatch)
    options = {"error": "exit", "when": "bad"}
    config = synthetic("mp", model="troubled:TroubledPipeline", model_options=options)
    async with nothing_left(), open_engine(config) as engine:
        with pytest.raises(WorkerDiedError, match="exited with status 3") as caught:
            await engine.generate("bad")
        assert caught.value.exit_status == 3
        assert "these are its last words" in caught.value.stderr
        assert "these are its last words" in caught.value.__notes__[0]
        await assert_dead(engine, status=3)
        del caught


async def test_one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nothing_left(), open_engine(synthetic("mp", num_workers=2)) as engine:
        pids = [worker.pid for worker in engine.statistics().workers]
        async with engine.stream("a", num_inference_steps=LONG) as events:
            started = await until(events, Started)
            assert isinstance(started, Started)
            dies = pids[1 - started.worker]
            assert dies is not None
            os.kill(dies, signal.SIGKILL)
            with pytest.raises(WorkerDiedError, match=f"worker {1 - started.worker} .*SIGKILL"):
                await events.result()
        with pytest.raises(EngineDeadError):
            await engine.generate("a")
        del events


async def test_a_worker_that_is_stopped_is_killed_if_that_is_wanted() -> None:
    config = synthetic("mp", worker_stall_timeout=3)
    async with nothing_left(), open_engine(config) as engine:
        [worker] = engine.statistics().workers
        assert worker.pid is not None
        async with engine.stream("a", num_inference_steps=LONG) as events:
            await until(events, Started)
            os.kill(worker.pid, signal.SIGSTOP)
            with (
                trio.fail_after(PATIENCE),
                pytest.raises(WorkerDiedError, match=r"no heartbeat for 3 s and was killed"),
            ):
                await events.result()
        await assert_dead(engine)
        del events
