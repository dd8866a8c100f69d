"""Engines on fake executors, and the callers and workers that tests put to them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from sidestream.engine import (
    DiffusionEngine,
    DiffusionRequest,
    DiffusionResult,
    EngineConfig,
    SidestreamError,
    open_engine,
)

from .fakes import FakeExecutor, Job, aborted

EVER = 1e6
"""Seconds of a jumping clock: a test that would hang fails at once."""


@asynccontextmanager
async def open_fake(
    executor: type[FakeExecutor] = FakeExecutor, **settings: Any
) -> AsyncIterator[tuple[DiffusionEngine, FakeExecutor]]:
    """Open an engine on a fake executor, without warm-up."""
    made: list[FakeExecutor] = []

    class Recorded(executor):  # type: ignore[valid-type, misc]
        def __init__(self, config: EngineConfig) -> None:
            super().__init__(config)
            made.append(self)

    with trio.fail_after(EVER):
        async with open_engine(executor=Recorded, **{"warmup": False, **settings}) as engine:
            yield engine, made[0]


class ServingExecutor(FakeExecutor):
    """One whose worker is honest and quick."""

    async def start(self, services: trio.Nursery) -> list[dict[str, Any]]:
        services.start_soon(serve, self)
        return await super().start(services)


def raw(prompt: str | None = "a", **params: Any) -> DiffusionRequest:
    """Make a request whose output is handed out without a thread, so that clocks can jump."""
    return DiffusionRequest.make(prompt, output_type="raw", **params)


def value_of(result: DiffusionResult) -> list[int]:
    """Return what a raw output says: the seeds of the request that it was made for."""
    (tensor,) = result.outputs
    seeds: list[int] = tensor.numpy().tolist()
    return seeds


class Outcomes:
    """What became of calls that run as tasks of their own."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._ended: dict[str, trio.Event] = {}
        self._outcome: dict[str, Any] = {}

    def start(self, name: str, call: Callable[..., Awaitable[Any]], *args: Any, **kw: Any) -> None:
        """Start a call; an error of sidestream's is an outcome, any other one fails the test."""
        self._ended[name] = trio.Event()
        self._nursery.start_soon(self._run, name, functools.partial(call, *args, **kw))

    async def _run(self, name: str, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            self._outcome[name] = await call()
        except SidestreamError as error:
            self._outcome[name] = error
        self._ended[name].set()

    def has(self, name: str) -> bool:
        """Whether a call has ended."""
        return self._ended[name].is_set()

    async def of(self, name: str) -> Any:
        """Wait for a call's result, or the error that it raised."""
        await self._ended[name].wait()
        return self._outcome[name]


async def serve(
    executor: FakeExecutor, *, forward: float = 1.0, output: float = 0.0, steps: int = 0
) -> None:
    """Be one honest worker, for ever: a wave after the other, flags seen at the end of the forward.

    Args:
      executor: whose waves are run.
      forward: virtual seconds for a wave.
      output: virtual seconds from the end of its forward to its outputs.
      steps: how many denoising steps are told.
    """
    async with trio.open_nursery() as nursery:
        while True:
            wave = await executor.next_wave()
            for step in range(steps):
                await trio.sleep(forward / steps)
                for job in wave:
                    job.progress(step + 1, steps)
            await trio.sleep(0 if steps else forward)
            for job in wave:
                if job.flagged:
                    job.abort()
                else:
                    job.compute_done()
                    nursery.start_soon(_send_output, job, output)


async def _send_output(job: Job, after: float) -> None:
    await trio.sleep(after)
    if job.flagged:
        job.output_failed(aborted())
    else:
        job.output_ready()
