"""`open_engine`: an engine's life as a block, and `generate`: a whole run in one call."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import trio

from .config import EngineConfig
from .diffusion_engine import DiffusionEngine
from .errors import SidestreamError, StartupError
from .executor import make_executor
from .request import DiffusionRequest
from .result import DiffusionResult


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_engine(
    config: EngineConfig | Mapping[str, Any] | str | os.PathLike[str] | None = None, **settings: Any
) -> AsyncIterator[DiffusionEngine]:
    """Start an engine, and stop it when the block is left.

    The engine's own tasks outlive the block's body: when the body is cancelled, running requests
    are still aborted in order and workers stopped, then the cancellation goes on its way.
    Exceptions of the body leave as they are, never wrapped in a group.

    Args:
      config: a config, a mapping, or the path of a TOML file; None for the defaults.
      settings: fields of `EngineConfig` that win over `config`.

    Raises:
      ConfigError: a setting is unknown or not valid.
      StartupError: a worker could not load the model or run the warm-up; nothing is left running.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError("sidestream runs on Trio: call this from within trio.run(...)")
    config = EngineConfig.load({} if config is None else config, **settings)
    engine = DiffusionEngine(config, make_executor(config))
    stop = trio.Event()
    try:
        async with trio.open_nursery() as nursery:
            # Not by `nursery.start`: a Ctrl-C in it would wait for a task that waits for `stop`.
            opened: list[trio.Nursery] = []
            begun = trio.Event()
            nursery.start_soon(_run_services, engine, stop, opened, begun)
            try:
                with trio.CancelScope(shield=True):  # once it runs, only `stop` ends it
                    await begun.wait()
                await _start(engine, opened[0])
                yield engine
            finally:
                stop.set()
    except BaseExceptionGroup as group:
        _reraise(_that_matters(group))


@trio.lowlevel.enable_ki_protection
async def _run_services(
    engine: DiffusionEngine, stop: trio.Event, opened: list[trio.Nursery], begun: trio.Event
) -> None:
    """Hold the engine's tasks until the block is left, then close it.

    A task of its own, shielded: neither a cancellation nor a second Ctrl-C, which lands in the main
    task, can break the closing off. `DiffusionEngine.close` has its own deadline.
    """
    async with trio.open_nursery() as services:
        services.cancel_scope.shield = True
        opened.append(services)
        begun.set()
        await stop.wait()
        await engine.close()
        services.cancel_scope.cancel()


async def _start(engine: DiffusionEngine, services: trio.Nursery) -> None:
    limit = engine.config.startup_timeout
    with trio.move_on_after(limit) as timer:
        try:
            await engine.start(services)
        except StartupError:
            raise
        except (SidestreamError, ExceptionGroup) as error:
            reason = _that_matters(error) if isinstance(error, ExceptionGroup) else error
            raise StartupError(f"the warm-up request failed: {reason}") from reason
    if timer.cancelled_caught:
        raise StartupError(f"the workers were not ready within {limit:g} s (startup_timeout)")


def _that_matters(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one exception of a group that a caller should see: an interrupt, else the first
    error, which a cancellation must not hide."""
    errors = [error for error in group.exceptions if not isinstance(error, trio.Cancelled)]
    for error in errors:
        if not isinstance(error, Exception):
            return error
    return (errors or group.exceptions)[0]


def _reraise(error: BaseException) -> NoReturn:
    """Raise an exception of a group as it was: a plain `raise` would give it the group as its
    context, and `from None` would take its cause away."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context  # a frame that its own exception refers to is a cycle


async def generate(
    config: EngineConfig | Mapping[str, Any] | str | os.PathLike[str] | None,
    prompts: str | DiffusionRequest | Iterable[str | DiffusionRequest],
    **params: Any,
) -> list[DiffusionResult]:
    """Open an engine, run all prompts, and return the results in order.

        results = trio.run(sidestream.engine.generate, {"executor": "mp"}, ["a red circle", "a blue
        star"])

    Args:
      config: as for `open_engine`.
      prompts: one or several.
      params: as for `DiffusionEngine.generate`, for every prompt that is a string.

    Raises:
      what `open_engine` and `DiffusionEngine.generate` raise; the first failure ends the run.
    """
    wanted = [prompts] if isinstance(prompts, (str, DiffusionRequest)) else list(prompts)
    requests = [DiffusionRequest.make(prompt, **params) for prompt in wanted]
    results: dict[int, DiffusionResult] = {}
    async with open_engine(config) as engine:
        room = trio.CapacityLimiter(engine.config.max_queued_requests)

        async def run(index: int, request: DiffusionRequest) -> None:
            async with room:
                results[index] = await engine.generate(request)

        try:
            async with trio.open_nursery() as nursery:
                for index, request in enumerate(requests):
                    nursery.start_soon(run, index, request)
        except BaseExceptionGroup as group:
            _reraise(_that_matters(group))
    return [results[index] for index in range(len(requests))]
