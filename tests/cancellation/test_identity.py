"""Many callers, sizes, inputs and cancellations at the same time: nobody gets somebody else's
bytes."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from sidestream.engine import DiffusionEngine, open_engine

from ..harness.engines import MEBIBYTE, synthetic, values_of
from ..harness.surroundings import assert_idle

CALLERS = 4
REQUESTS = 50
SIDES = (1, 16, 64, 200, 333, 512)
"""Outputs from 12 bytes to 3 MiB: in one piece and in many."""


@pytest.mark.parametrize("executor", ["uni", "mp"])
@pytest.mark.parametrize("mode", ["request", "step"])
async def test_each_result_is_its_own(executor: str, mode: str) -> None:
    config = synthetic(
        executor, options={"steps": 3}, max_num_seqs=3, output_ring_bytes=MEBIBYTE, mode=mode
    )
    ends = {"result": 0, "cancelled": 0}
    async with open_engine(config) as engine:
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(CALLERS):
                    nursery.start_soon(call, engine, random.Random(number), ends)
        print(executor, ends)
        assert sum(ends.values()) == CALLERS * REQUESTS
        assert min(ends.values()) > 10
        await assert_idle(engine)


async def call(engine: DiffusionEngine, chance: random.Random, ends: dict[str, int]) -> None:
    kept: list[tuple[Any, int]] = []
    for _ in range(REQUESTS):
        value = chance.randrange(251)
        height, width = chance.choice(SIDES), chance.choice(SIDES)
        arguments: dict[str, Any] = {"seed": value + 251 * chance.randrange(1000)}
        urgency = chance.choice([0, 0, 1, 2])  # in step mode they take each other's places
        steps = chance.randint(1, 5)
        if chance.random() < 0.3:
            arguments = {"extra_args": {"image": np.full((40, 50, 3), value, np.uint8)}}
        generate = partial(
            engine.generate,
            "a",
            height=height,
            width=width,
            num_inference_steps=steps,
            priority=urgency,
            output_type="raw",
            **arguments,
        )
        delay = chance.choice([0.0, 0.001, 0.005, 0.02]) if chance.random() < 0.5 else 60.0
        with trio.move_on_after(delay):
            result = await generate()
            assert result.output.shape == (1, 3, height, width)
            assert values_of(result) == [value]
            kept.append((result, value))
            ends["result"] += 1
            continue
        ends["cancelled"] += 1
        if len(kept) > 5:
            _check(kept.pop(chance.randrange(len(kept))))
    for one in kept:
        _check(one)


def _check(one: tuple[Any, int]) -> None:
    """Look again at a result that was kept while other requests came and went."""
    result, value = one
    assert values_of(result) == [value]
