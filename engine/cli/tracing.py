"""What ``sidestream trace`` does: run requests for a number of callers, and keep their traces."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import trio

from ..config import EngineConfig
from ..diffusion_engine import DiffusionEngine
from ..errors import ExecutionError
from ..opening import open_engine
from ..request import DiffusionRequest
from ..trace import RequestTrace
from .meter import Meter
from .outcome import Outcome, one_line


@dataclass(frozen=True, slots=True)
class Run:
    """One way to run the workload."""

    config: EngineConfig
    concurrency: int
    """Requests that are submitted and not answered yet."""


def ways_to_compare(config: EngineConfig, concurrency: int) -> dict[str, Run]:
    """Return the runs of a comparison: each request submitted when the result of the one before it
    is there; several at a time; the same with the next wave in the worker's hands."""
    shallow, deep = (EngineConfig.load(config, dispatch_depth=depth) for depth in (1, 2))
    return {
        "sync": Run(shallow, 1),
        "async, depth 1": Run(shallow, concurrency),
        "async, depth 2": Run(deep, concurrency),
    }


class Tracer:
    """Runs the same requests in one or several ways, one after the other.

    Args:
      runs: by name.
      requests: whose ids differ.
      quiet: show no progress bar.
    """

    def __init__(
        self, runs: Mapping[str, Run], requests: Sequence[DiffusionRequest], *, quiet: bool = False
    ) -> None:
        self._runs = runs
        self._requests = requests
        self._meter = Meter(len(runs) * len(requests), "loading", hidden=quiet)
        self.traces: dict[str, list[RequestTrace]] = {}
        self.outcome = Outcome(len(runs) * len(requests))

    async def run(self) -> None:
        """Run until all is done, or SIGINT or SIGTERM comes, or something fatal happens.

        Errors of single requests are printed on stderr.
        """
        await self.outcome.run(self._run_all, self._meter)

    async def _run_all(self) -> None:
        with self._meter:
            for number, name in enumerate(self._runs):
                await self._run_one(name, number * len(self._requests))

    async def _run_one(self, name: str, first: int) -> None:
        run = self._runs[name]
        config = EngineConfig.load(run.config, trace_requests=len(self._requests))
        async with open_engine(config) as engine:
            self._meter.begin(f"tracing {name}".strip())
            warm_up = max((trace.number for trace in engine.traces()), default=0)
            try:
                await self._call(engine, run.concurrency, first)
                await engine.wait_idle()  # a trace is there when the worker has let go, too
            finally:
                self.traces[name] = engine.traces(warm_up)

    async def _call(self, engine: DiffusionEngine, concurrency: int, first: int) -> None:
        todo = enumerate(self._requests, first)

        async def caller() -> None:
            for index, request in todo:
                try:
                    await engine.generate(request)
                except ExecutionError as error:
                    self.outcome.failed.append(error)
                    self._meter.print(one_line(f"{request.request_id}: {error}"), sys.stderr)
                else:
                    self.outcome.completed += 1
                self._meter.step(index, 1, 1)
                self._meter.done(index)

        async with trio.open_nursery() as nursery:
            for _ in range(min(concurrency, len(self._requests))):
                nursery.start_soon(caller)
