"""A program with an engine that tells what it does, line by line: ``python telling.py EXECUTOR``.

It ends by itself only when its standard input does.
"""

from __future__ import annotations

import sys
from typing import Any

import trio

from sidestream.engine import Progress, open_engine
from sidestream.engine.executor import BUILT_IN
from sidestream.engine.executor.link import WorkerLink


def tell(*words: object) -> None:
    print(*words, flush=True)


Base: Any = BUILT_IN[sys.argv[1]]


class Telling(Base):  # type: ignore[misc]
    """Tells when a worker is launched, and its pid."""

    async def _launch(self, link: WorkerLink, services: trio.Nursery) -> None:
        tell("launching")
        await super()._launch(link, services)
        tell("launched", self._pid(link))


async def main() -> None:
    tell("opening")
    async with open_engine(
        model="synthetic",
        model_options={"forward_ms": 10, "steps": 2, "shape": (1, 3, 1024, 1024)},
        executor=Telling,
        device="cpu",
        output_ring_bytes=64 << 20,
        input_ring_bytes=1 << 20,
    ) as engine:
        tell("ready")
        kept = await engine.generate("a", output_type="raw")
        tell("kept", kept.output.nbytes)
        async with engine.stream("a", num_inference_steps=4) as events:
            async for event in events:
                if not isinstance(event, Progress):  # on a busy machine there may be none
                    tell(type(event).__name__.lower())
        async with engine.stream("a", num_inference_steps=10_000) as events:
            async for event in events:
                if isinstance(event, Progress):
                    tell("progress")
                    break
            tell("leaving")
        tell("closing")
    tell("closed")


trio.run(main)
tell("done")
sys.stdin.read()
