"""An engine is cancelled after each step of its life: nothing is left, and the next one starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio

from sidestream.engine import (
    DiffusionEngine,
    EngineClosedError,
    EngineConfig,
    Started,
    generate,
    open_engine,
)

from ..harness.checkpoints import Counts, cancel_at_every_step, own, whole_run
from ..harness.engines import LONG, synthetic, until, values_of
from ..harness.surroundings import assert_nothing_beyond, settled, survey


async def whole_life(config: EngineConfig) -> None:
    """Start, and stop while a request runs."""
    async with trio.open_nursery() as callers, open_engine(config) as engine:
        await callers.start(unfinished, engine)


async def one_call(config: EngineConfig) -> None:
    """Run several prompts with an engine of their own."""
    results = await generate(config, ["a", "b", "c"], seed=5, output_type="raw")
    assert [values_of(result) for result in results] == [[5]] * 3


async def unfinished(engine: DiffusionEngine, task_status: trio.TaskStatus[None]) -> None:
    async with engine.stream("a", num_inference_steps=LONG) as events:
        await until(events, Started)
        task_status.started()
        with pytest.raises(EngineClosedError):
            await events.result()


LAUNCH = 13
"""Steps of all tasks until a process has been launched, about: up to there a run takes no time."""


@pytest.mark.parametrize(
    ("scenario", "executor", "counts", "most"),
    [
        (whole_life, "uni", whole_run, None),
        (one_call, "uni", whole_run, None),
        (whole_life, "mp", own, None),
        (whole_life, "mp", whole_run, LAUNCH),
    ],
)
async def test_whatever_step_an_engine_is_cancelled_at_nothing_is_left(
    scenario: Callable[[EngineConfig], Awaitable[None]],
    executor: str,
    counts: Counts,
    most: int | None,
) -> None:
    config = synthetic(executor)  # which starts with a warm-up request
    await scenario(config)  # brings threads and imports
    before = survey()

    async def check() -> None:
        if executor == "uni":  # a thread that is loading cannot be killed, and nobody waits for it
            await settled(lambda: not survey().beyond(before))
        assert_nothing_beyond(before)

    run = partial(scenario, config)
    steps = await cancel_at_every_step(run, check, counts=counts, most=most)
    print(scenario.__name__, executor, counts.__name__, steps, "steps")
