"""A loop of the engine fails, or the device is lost: all waiters have the cause, nothing hangs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import trio

from sidestream.engine import (
    DiffusionEngine,
    EngineDeadError,
    ExecutionError,
    Progress,
    open_engine,
)
from sidestream.engine.executor import UniProcDiffusionExecutor
from sidestream.engine.executor.base import DispatchedRequest
from sidestream.engine.host_stage import HostStage
from sidestream.ipc_ext.messages import AsyncDiffusionOutput, TensorPiece

from ..harness.engines import LONG, offer_pipelines, synthetic, until
from ..harness.surroundings import PATIENCE, nothing_left


class Breakable(UniProcDiffusionExecutor):
    """Raises where it is told to."""

    broken = ""

    async def receive(self) -> Sequence[tuple[int, AsyncDiffusionOutput]]:
        messages = await super().receive()
        self._break("receive")
        return messages

    async def dispatch(self, worker: int, wave: Sequence[DispatchedRequest]) -> None:
        self._break("dispatch")
        await super().dispatch(worker, wave)

    def lease(self, worker: int, piece: TensorPiece) -> Any:
        self._break("lease")
        return super().lease(worker, piece)

    def _break(self, where: str) -> None:
        if self.broken == where:
            raise ZeroDivisionError(where)


async def expect_end(attempt: Callable[[], Any], ends: list[Exception]) -> None:
    with trio.fail_after(PATIENCE), pytest.raises(EngineDeadError) as caught:
        await attempt()
    ends.append(caught.value)


def break_executor(engine: DiffusionEngine, where: str) -> None:
    executor = engine._executor
    assert isinstance(executor, Breakable)
    executor.broken = where


@pytest.mark.parametrize("where", ["receive", "dispatch", "lease"])
async def test_a_loop_fails(where: str) -> None:
    """The pump's wait, the scheduling loop's dispatch, the pump's work."""
    async with nothing_left():
        ends: list[Exception] = []
        async with open_engine(synthetic(Breakable, dispatch_depth=2)) as engine:
            async with engine.stream("a", num_inference_steps=LONG) as running:
                await until(running, Progress)
                async with trio.open_nursery() as nursery:
                    break_executor(engine, where)
                    for _ in range(4):
                        nursery.start_soon(expect_end, partial(engine.generate, "b"), ends)
                    if where == "lease":  # which the pump takes when an output comes
                        await engine.abort(running.request_id)
                    else:
                        call = partial(engine.collective_rpc, "runner_statistics")
                        nursery.start_soon(expect_end, call, ends)
                        nursery.start_soon(expect_end, running.result, ends)
            assert len(ends) == (4 if where == "lease" else 6)
            for error in ends:
                assert isinstance(error.__cause__, ZeroDivisionError)
            died = await engine.wait_dead()
            assert isinstance(died.__cause__, ZeroDivisionError)
            with pytest.raises(EngineDeadError):
                engine.check_health()
            assert engine.statistics().claims == 0
        ends.clear()


async def test_making_room_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: HostStage) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(HostStage, "make_room", fail)
    async with nothing_left(), open_engine(synthetic("uni"), warmup=False) as engine:
        with trio.fail_after(PATIENCE):
            died = await engine.wait_dead()
        assert isinstance(died.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_a_poisoned_device_closes_the_engine(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    options = {"error": "poisoned", "when": "bad"}
    config = synthetic(executor, model="troubled:TroubledPipeline", model_options=options)
    async with nothing_left(), open_engine(config) as engine:
        with pytest.raises(ExecutionError, match="illegal memory access") as caught:
            await engine.generate("bad")
        assert caught.value.remote_type == "AcceleratorError"
        with trio.fail_after(PATIENCE):
            died = await engine.wait_dead()
        assert isinstance(died.__cause__, ExecutionError)
        assert "illegal memory access" in str(died)
        with pytest.raises(EngineDeadError, match="illegal memory access"):
            await engine.generate("good")
        del caught, died
