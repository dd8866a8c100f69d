"""Real workers, both executors: who holds ring memory, for how long, and that nobody can stall the
device by holding it."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import AsyncExitStack

import numpy as np
import pytest
import trio

from sidestream.engine import DiffusionEngine, DiffusionResult, EngineConfig, open_engine

from ..harness.engines import MEBIBYTE, synthetic, values_of
from ..harness.surroundings import PATIENCE, assert_idle, holdings, nothing_left, settled, survey

SIDE = 128
NBYTES = 3 * SIDE * SIDE * 4
"""Of one output, just under a quarter of the smallest ring."""


def tiny(executor: str, **settings: object) -> EngineConfig:
    options = {"shape": (1, 3, SIDE, SIDE), "forward_ms": 0}
    return synthetic(executor, options=options, output_ring_bytes=MEBIBYTE, **settings)


async def generate(engine: DiffusionEngine, seed: int) -> DiffusionResult:
    with trio.fail_after(PATIENCE):
        return await engine.generate("a", seed=seed, output_type="raw")


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_an_output_is_ring_memory_until_its_last_reference_goes(executor: str) -> None:
    async with open_engine(synthetic(executor)) as engine:
        result = await generate(engine, 5)
        held = engine.statistics().ring_bytes_held
        assert held >= result.output.nbytes > 0
        assert not result.output.numpy().flags.writeable
        corner = result.output.numpy()[0, 0, :2]
        del result
        assert engine.statistics().ring_bytes_held == held
        assert (corner == 5).all()
        del corner
        await assert_idle(engine)

        tensor = (await generate(engine, 6)).output.torch()[0, 1]
        assert engine.statistics().ring_bytes_held == held
        assert (tensor == 6).all()
        del tensor
        await assert_idle(engine)

        kept = [await generate(engine, 7)]
        await trio.to_thread.run_sync(kept.clear)  # from any thread
        await assert_idle(engine)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_who_keeps_results_does_not_stall_the_device(executor: str) -> None:
    async with open_engine(tiny(executor)) as engine:
        kept = [await generate(engine, seed) for seed in range(30)]
        statistics = engine.statistics()
        assert 5 * statistics.ring_bytes < 30 * NBYTES
        assert 0 < statistics.ring_bytes_held < statistics.ring_bytes
        assert [values_of(result) for result in kept] == [[seed] for seed in range(30)]

        first = kept[0]
        kept.clear()
        await settled(lambda: engine.statistics().ring_bytes_held < 2 * NBYTES)
        assert NBYTES <= engine.statistics().ring_bytes_held < 2 * NBYTES
        for seed in range(40):  # with one held for ever, as many as there may be go by
            assert values_of(await generate(engine, seed)) == [seed]
        assert values_of(first) == [0]
        del first
        await assert_idle(engine)


async def test_small_results_kept_here_and_there_leave_room_for_large_ones() -> None:
    async with open_engine(tiny("uni")) as engine:
        kept = []
        for seed in range(20):  # a few would do to leave no gap of a quarter of the ring
            with trio.fail_after(PATIENCE):
                kept.append(await engine.generate("a", seed=seed, width=1, output_type="raw"))
            await generate(engine, seed)
        with trio.fail_after(PATIENCE):
            large = await engine.generate("a", seed=9, height=512, width=512, output_type="raw")
        assert values_of(large) == [9]
        assert [values_of(result) for result in kept] == [[seed] for seed in range(20)]


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_who_does_not_come_for_results_does_not_stall_the_device(executor: str) -> None:
    async with open_engine(tiny(executor, max_num_seqs=2)) as engine:
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(engine.stream("a", seed=seed, output_type="raw"))
                for seed in range(20)
            ]
            await settled(lambda: holdings(engine).keys() <= {"ring_bytes_used", "ring_bytes_held"})
            assert holdings(engine).keys() <= {"ring_bytes_used", "ring_bytes_held"}
            assert values_of(await generate(engine, 77)) == [77]
            assert [values_of(await events.result()) for events in streams] == [
                [seed] for seed in range(20)
            ]
            del streams
        await assert_idle(engine)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_arrays_outlive_the_engine(executor: str) -> None:
    async with nothing_left(at_once=executor == "mp"):
        async with open_engine(synthetic(executor)) as engine:
            results = [await generate(engine, seed) for seed in (1, 2, 3)]
            arrays = [result.output.numpy() for result in results]
            del results
        assert survey().segments
        assert [np.unique(array).tolist() for array in arrays] == [[1], [2], [3]]
        arrays.clear()


async def test_an_engine_that_only_the_garbage_collector_finds_is_collected() -> None:
    async with nothing_left():
        async with open_engine(synthetic("uni")) as engine:
            circle: list[object] = [engine, await generate(engine, 1)]
            circle.append(circle)
        del circle, engine
        gc.collect()


@pytest.mark.parametrize("closed", [True, False])
def test_an_array_that_is_left_at_exit_does_no_harm(closed: bool) -> None:
    program = f"""
import trio
from sidestream.engine import open_engine

async def main():
    global kept
    async with open_engine(model="synthetic", device="cpu") as engine:
        kept = [await engine.generate("a", output_type="raw")]
        if not {closed}:
            raise SystemExit
    kept.append(kept)

trio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
