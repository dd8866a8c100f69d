"""An asyncio program with an engine, which runs in Trio's guest mode on asyncio's own loop.

python examples/asyncio_host.py

Copy `open_guest_engine` and what it needs. Cancellation goes both ways: a task of asyncio's that is
cancelled ends its request, and is done when the engine has let go of it; what Trio cancels is
cancelled for asyncio. What it costs: docs/performance.md, "Guest mode".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio
from outcome import Error, Outcome, Value

from sidestream.engine import DiffusionEngine, DiffusionResult, open_engine

T = TypeVar("T")


class GuestEngine:
    """An engine for asyncio; made by `open_guest_engine`.

    Functions of `engine` that are not async can be called as they are.
    """

    def __init__(self, engine: DiffusionEngine, calls: trio.Nursery) -> None:
        self.engine = engine
        self._calls = calls

    async def generate(self, prompt: str, **params: Any) -> DiffusionResult:
        """Run a request; see `DiffusionEngine.generate`."""
        return await self.call(self.engine.generate, prompt, **params)

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Await a function of Trio's, such as one that reads the events of a stream."""
        done: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    done.set_result(Value(await function(*args, **kwargs)))
            except Exception as error:
                done.set_result(Error(error))
            finally:
                if not done.done():
                    done.cancel()

        self._calls.start_soon(run)
        await finish(done, scope)
        return done.result().unwrap()


@asynccontextmanager
async def open_guest_engine(**settings: Any) -> AsyncIterator[GuestEngine]:
    """Open an engine for the length of a block; see `open_engine`."""
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[GuestEngine | None] = loop.create_future()
    ended: asyncio.Future[Outcome[None]] = loop.create_future()
    scope = trio.CancelScope()

    async def run() -> None:
        try:
            with scope:
                async with open_engine(**settings) as engine, trio.open_nursery() as calls:
                    opened.set_result(GuestEngine(engine, calls))
                    await trio.sleep_forever()
        finally:
            if not opened.done():
                opened.set_result(None)

    trio.lowlevel.start_guest_run(
        run,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        run_sync_soon_not_threadsafe=loop.call_soon,
        done_callback=ended.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    try:
        await finish(opened, scope)
        if engine := opened.result():
            yield engine
    finally:
        scope.cancel()
        await finish(ended, scope)  # asyncio's loop must not stop before
        ended.result().unwrap()


async def finish(future: asyncio.Future[Any], scope: trio.CancelScope) -> None:
    """Wait until a future is done; a cancellation goes to Trio first, and on when it is."""
    cancelled = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:  # it is raised below
            scope.cancel()
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def draw(engine: GuestEngine, prompt: str) -> None:
    """Draw a picture."""
    result = await engine.generate(prompt, seed=1)
    print(f"{prompt}: {result.output.width}x{result.output.height} pixels")


async def main() -> None:
    """Draw two pictures side by side, and give a third one up."""
    async with open_guest_engine(model="shapes", executor="mp", max_num_seqs=2) as engine:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(draw(engine, "a large red circle"))
            tasks.create_task(draw(engine, "a small blue star"))
        try:
            async with asyncio.timeout(0.1):
                await engine.generate("too much work", num_inference_steps=10_000)
        except TimeoutError:
            print(f"given up; {engine.engine.statistics().running} requests run")


if __name__ == "__main__":
    asyncio.run(main())
