"""What ``sidestream generate`` does: run requests side by side, show progress, write files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import trio

from ..config import EngineConfig
from ..diffusion_engine import DiffusionEngine
from ..errors import ExecutionError
from ..opening import open_engine
from ..request import DiffusionRequest
from ..result import Event, Preview, Progress
from .meter import Meter
from .outcome import Outcome, one_line
from .picture_files import PictureFiles, PreviewFile, Samples, slug


class Painter:
    """Paints a batch of requests into files.

    Args:
      config: of the engine.
      requests: each with one output, of type "uint8" or encoded already, and a seed.
      files: where outputs go.
      quiet: show no progress bar.
    """

    def __init__(
        self,
        config: EngineConfig,
        requests: Sequence[DiffusionRequest],
        files: PictureFiles,
        *,
        quiet: bool = False,
    ) -> None:
        self._config = config
        self._requests = requests
        self._files = files
        self._outcome = Outcome(len(requests))
        self._stems = [_stem(request) for request in requests]
        self._meter = Meter(
            len(requests),
            f"loading {config.model}",
            hidden=quiet,
            bars=self._stems if config.mode == "step" else (),
        )
        self._room = trio.Semaphore(config.max_queued_requests)

    async def run(self) -> Outcome:
        """Paint until all is done, or SIGINT or SIGTERM comes, or something fatal happens.

        Names of files are printed on stdout as they are written, errors of single requests on
        stderr.
        """
        await self._outcome.run(self._paint_all, self._meter)
        return self._outcome

    async def _paint_all(self) -> None:
        with self._meter:
            async with open_engine(self._config) as engine:
                self._meter.begin("painting")
                async with trio.open_nursery() as nursery:
                    for index in range(len(self._requests)):
                        await self._room.acquire()
                        await nursery.start(self._paint_one, engine, index)  # admitted in order

    async def _paint_one(
        self, engine: DiffusionEngine, index: int, task_status: trio.TaskStatus[None]
    ) -> None:
        request, stem = self._requests[index], self._stems[index]
        preview = self._files.preview(stem)
        try:
            async with engine.stream(request) as events:
                task_status.started()
                async for event in events:
                    await self._tell(index, event, preview)
                result = await events.result()
        except ExecutionError as error:
            self._outcome.failed.append(error)
            self._meter.print(one_line(f"{request.prompt!r}: {error}"), sys.stderr)
        else:
            path = await trio.to_thread.run_sync(self._save, result.output, stem, preview)
            self._outcome.completed += 1
            self._meter.print(str(path), sys.stdout)
        self._meter.done(index)
        self._room.release()

    def _save(self, output: Samples | bytes, stem: str, preview: PreviewFile) -> Path:
        path = self._files.save(output, stem)
        preview.remove()
        return path

    async def _tell(self, index: int, event: Event, preview: PreviewFile) -> None:
        if isinstance(event, Progress):
            self._meter.step(index, event.step, event.total, event.eta)
        elif isinstance(event, Preview):
            await trio.to_thread.run_sync(preview.show, event.image)


def _stem(request: DiffusionRequest) -> str:
    """Return what the names of a request's files begin with."""
    return f"{slug(request.prompt or '')}-{request.sampling.seed}"
