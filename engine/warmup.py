"""The first requests of an engine: what happens once only is over when the first caller comes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from .result import Started

if TYPE_CHECKING:
    from .diffusion_engine import DiffusionEngine


async def warm_up(engine: DiffusionEngine) -> None:
    """Run a small request on each worker, unless it would need inputs that nobody can guess."""
    capabilities = engine.capabilities
    accepted = capabilities["arguments"]
    steps = {"num_inference_steps": 1} if "num_inference_steps" in accepted else {}
    prompt = "warm-up" if "prompt" in accepted else None
    if set(capabilities["required"]) - {"prompt"} or capabilities["from_image"]:
        return
    async with AsyncExitStack() as streams:
        begun = []
        for _ in range(engine.config.num_workers):
            request = engine.stream(prompt, seed=0, output_type="raw", **steps)
            stream = await streams.enter_async_context(request)
            while not isinstance(await anext(stream), Started):
                pass
            begun.append(stream)
        for stream in begun:
            await stream.result()
