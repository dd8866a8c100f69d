"""The embedded model through engines: it obeys unseen prompts; callers get their own pictures."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
import trio

from sidestream.engine import Progress, open_engine
from sidestream.workers.models.shapes import grammar
from sidestream.workers.models.shapes.oracle import judge

from ..harness.engines import until

CALLERS = 4
PROMPTS = 16


def unseen_prompts() -> list[str]:
    """Draw scenes of two things that training never showed."""
    rng = random.Random(7)
    prompts: list[str] = []
    while len(prompts) < PROMPTS:
        scene = grammar.sample(rng, held_out=True)
        if scene.relation is not None:
            prompts.append(scene.prompt)
    return prompts


@pytest.mark.parametrize("mode", ["request", "step"])
async def test_everybody_gets_the_picture_that_was_asked_for(mode: str) -> None:
    prompts = unseen_prompts()
    pictures: dict[int, np.ndarray] = {}
    todo = iter(range(PROMPTS))
    async with open_engine(executor="mp", mode=mode, max_num_seqs=CALLERS, device="cpu") as engine:

        async def caller() -> None:
            for index in todo:
                result = await engine.generate(prompts[index], seed=index, output_type="uint8")
                pictures[index] = result.output

        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(caller)
        [statistics] = await engine.collective_rpc("runner_statistics")
    assert statistics["merged_calls"] > 0
    right = [i for i in range(PROMPTS) if judge(pictures[i], prompts[i]).ok]
    assert len(right) >= 0.9 * PROMPTS
    for i in range(PROMPTS):
        others = [j for j in range(PROMPTS) if j != i and judge(pictures[i], prompts[j]).ok]
        assert not others, f"{prompts[i]!r} got the picture of {prompts[others[0]]!r}"


async def test_a_request_that_had_to_yield_gets_the_same_picture() -> None:
    red = partial(dict, seed=1, num_inference_steps=40, output_type="uint8")
    blue = partial(dict, seed=2, num_inference_steps=3, output_type="uint8")
    async with open_engine(mode="step", max_num_seqs=1, device="cpu") as engine:
        undisturbed = await engine.generate("a large red circle", **red())
        async with engine.stream("a large red circle", **red()) as events:
            await until(events, Progress)
            urgent = await engine.generate("a small blue star", priority=1, **blue())
            assert not events.trace.forward_end, "it has yielded, and is not done"
            disturbed = await events.result()
        alone = await engine.generate("a small blue star", **blue())
    assert np.array_equal(disturbed.output, undisturbed.output)
    assert np.array_equal(urgent.output, alone.output)
