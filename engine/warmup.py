"""The first requests of an engine: what happens once only is over when the first caller comes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from .result import Started

if TYPE_CHECKING:
    from .diffusion_engine import DiffusionEngine


ROUNDS = 3
STEPS = 4
"""Merging is tried out in the first, merged calls are watched in the second, recorded in the third:
calls that are made once for each request need as many rounds, calls of each step as many steps."""


async def warm_up(engine: DiffusionEngine) -> int:
    """Run a small request on each worker, and some of each size that is to be warm; unless they
    would need inputs that nobody can guess.

    Returns:
      Bytes of the largest output, as the pipeline returned it; 0 if there was none.
    """
    capabilities, config = engine.capabilities, engine.config
    if set(capabilities["required"]) - {"prompt"} or capabilities["from_image"]:
        return 0
    largest = await _run(engine, config.num_workers, steps=1, one_by_one=True)
    if not {"width", "height"} <= set(capabilities["arguments"]):
        return largest
    for width, height in config.warmup_sizes:
        for together in sorted({1, config.max_num_seqs}):
            # The first ones leave before the others have come: a wave that is full comes later.
            count = config.num_workers * (config.dispatch_depth + 1) * together
            count = min(count, config.max_queued_requests)
            for _ in range(ROUNDS):
                output = await _run(engine, count, steps=STEPS, width=width, height=height)
                largest = max(largest, output)
    return largest


async def _run(
    engine: DiffusionEngine, count: int, *, steps: int, one_by_one: bool = False, **size: int
) -> int:
    """Run some requests.

    Args:
      engine: runs them.
      count: how many.
      steps: of each, if they can be told.
      one_by_one: each has to be with a worker before the next one comes, so that they are spread.
      size: width and height.

    Returns:
      Bytes of the largest output.
    """
    accepted = engine.capabilities["arguments"]
    params = {"num_inference_steps": steps} if "num_inference_steps" in accepted else {}
    prompt = "warm-up" if "prompt" in accepted else None
    async with AsyncExitStack() as streams:
        begun = []
        for _ in range(count):
            request = engine.stream(prompt, seed=0, output_type="raw", **params, **size)
            stream = await streams.enter_async_context(request)
            while one_by_one and not isinstance(await anext(stream), Started):
                pass
            begun.append(stream)
        results = [await stream.result() for stream in begun]
    return max(sum(getattr(one, "nbytes", 0) for one in result.outputs) for result in results)
