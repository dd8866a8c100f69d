"""Several engines in one nursery: each request goes to one of them; one dies, the others go on.

python examples/several_engines.py
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import trio

from sidestream.engine import (
    DiffusionEngine,
    SidestreamError,
    Started,
    WorkerDiedError,
    open_engine,
)

MODELS = {"shapes": "shapes", "noise": "random:sd3"}


async def hold_open(name: str, model: str, task_status: trio.TaskStatus[DiffusionEngine]) -> None:
    """Hold an engine open until it dies; to replace it, this would be a loop."""
    async with open_engine(model=model, executor="mp") as engine:
        task_status.started(engine)
        error = await engine.wait_dead()
    print(f"{name} has ended: {error}")


async def draw(engine: DiffusionEngine, name: str) -> None:
    """Draw a picture and say what has become of it."""
    try:
        result = await engine.generate("a large red circle")
        print(f"{name} has drawn {result.output.width}x{result.output.height} pixels")
    except SidestreamError as error:
        print(f"{name} has drawn nothing: {type(error).__name__}")


async def crash(engine: DiffusionEngine) -> None:
    """Kill a worker in the middle of a request, as a fault of a driver would."""
    with contextlib.suppress(WorkerDiedError):
        async with engine.stream("never to be seen", num_inference_steps=1000) as events:
            async for event in events:
                if isinstance(event, Started):
                    os.kill(engine.statistics().workers[0].pid, signal.SIGKILL)


async def main() -> None:
    """Use both, lose one, and use the other."""
    async with trio.open_nursery() as engines:
        shapes, noise = [await engines.start(hold_open, *names) for names in MODELS.items()]
        async with trio.open_nursery() as requests:
            requests.start_soon(draw, shapes, "shapes")
            requests.start_soon(draw, noise, "noise")
        async with trio.open_nursery() as requests:
            requests.start_soon(draw, shapes, "shapes")
            requests.start_soon(crash, noise)
        await draw(noise, "noise")
        await draw(shapes, "shapes")
        engines.cancel_scope.cancel("all is drawn")


if __name__ == "__main__":
    code = 0
    try:
        trio.run(main)
    except* KeyboardInterrupt:  # in a group: it came through nurseries
        code = 128 + signal.SIGINT
    sys.exit(code)
