"""The examples that serve nothing over HTTP do what they say."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from PIL import Image

from sidestream.engine import ExecutionError, StartupError

from ..harness.engines import LONG, synthetic
from ..harness.surroundings import PATIENCE, assert_nothing_beyond, holdings, settled, survey

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: object) -> list[str]:
    """Run an example and return the lines that it prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_shortest_request_ends_first() -> None:
    assert run("shortest_first.py") == [f"{steps} steps have ended" for steps in (2, 8, 30)]


def test_a_batch_is_files(tmp_path) -> None:
    lines = run("batch.py", tmp_path / "out")
    paths = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in paths] == [f"{index:02}.png" for index in range(4)]
    assert sorted(line.partition(":")[0] for line in lines) == list(map(str, paths))
    for path in paths:
        with Image.open(path) as image:
            image.load()
            assert image.size == (128, 128)


def test_of_several_engines_one_can_die() -> None:
    *first, ending, again, noise, shapes = run("several_engines.py")
    assert sorted(first) == [
        "noise has drawn 64x64 pixels",
        "shapes has drawn 128x128 pixels",
    ]
    told = "noise has ended: the engine is dead: worker 0"
    assert {ending.partition(" (")[0], again} == {told, "shapes has drawn 128x128 pixels"}
    assert noise == "noise has drawn nothing: EngineDeadError"
    assert shapes == "shapes has drawn 128x128 pixels"


# -- asyncio


@pytest.fixture
def asyncio_host(monkeypatch):
    """Import the example."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import asyncio_host

    return asyncio_host


def in_asyncio(scenario) -> None:
    """Run a scenario in asyncio, and check that it leaves nothing."""
    gc.collect()
    before = survey()
    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    gc.collect()
    assert_nothing_beyond(before)


def settings(**more):
    """Return settings of an engine whose requests are never done."""
    options = {"forward_ms": 60_000, "steps": LONG}
    config = synthetic("uni", options=options, warmup=False)
    return {"config": config, **more}


async def running(engine, count):
    """Wait until so many requests run."""
    await engine.call(settled, lambda: engine.engine.statistics().running == count)


def test_an_asyncio_program_draws() -> None:
    *drawn, given_up = run("asyncio_host.py")
    assert sorted(drawn) == [
        "a large red circle: 128x128 pixels",
        "a small blue star: 128x128 pixels",
    ]
    assert given_up == "given up; 0 requests run"


def test_cancelling_in_asyncio_ends_the_request(asyncio_host) -> None:
    async def scenario():
        async with asyncio_host.open_guest_engine(**settings()) as engine:
            for count in (1, 2, 3):
                task = asyncio.create_task(engine.generate("x"))
                await running(engine, 1)
                task.cancel("enough")
                with pytest.raises(asyncio.CancelledError, match="enough"):
                    await task
                assert engine.engine.statistics().running == 0
                assert engine.engine.statistics().aborted == count
                await engine.call(engine.engine.wait_idle)
                assert not holdings(engine.engine)

    in_asyncio(scenario)


def test_what_trio_cancels_is_cancelled_for_asyncio(asyncio_host) -> None:
    async def give_up():
        trio.lowlevel.current_task().parent_nursery.cancel_scope.cancel()
        await trio.sleep_forever()

    async def scenario():
        async with asyncio_host.open_guest_engine(**settings()) as engine:
            task = asyncio.create_task(engine.generate("x"))
            await running(engine, 1)
            with pytest.raises(asyncio.CancelledError):
                await engine.call(give_up)
            with pytest.raises(asyncio.CancelledError):
                await task

    in_asyncio(scenario)


def test_leaving_the_block_ends_what_is_under_way(asyncio_host) -> None:
    async def scenario():
        async with asyncio_host.open_guest_engine(**settings()) as engine:
            task = asyncio.create_task(engine.generate("x"))
            await running(engine, 1)
        with pytest.raises(asyncio.CancelledError):
            await task

    in_asyncio(scenario)


def test_asyncio_is_told_of_errors(asyncio_host) -> None:
    async def scenario():
        failing = {"config": synthetic("uni", options={"fail_at_step": 0})}
        async with asyncio_host.open_guest_engine(**failing) as engine:
            with pytest.raises(ExecutionError, match="synthetic failure"):
                await engine.generate("fail")
            result = await engine.generate("x", seed=7, output_type="raw")
            assert result.output.numpy().max() == 7
        with pytest.raises(StartupError):
            async with asyncio_host.open_guest_engine(model="no.such:factory", executor="mp"):
                raise AssertionError("it was opened")

    in_asyncio(scenario)


def test_cancelling_in_asyncio_ends_a_start(asyncio_host) -> None:
    async def open_it():
        async with asyncio_host.open_guest_engine(**settings(executor="mp")):
            raise AssertionError("it was opened")

    async def scenario():
        for turns in (0, 1, 2, 10, 100):
            task = asyncio.create_task(open_it())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    in_asyncio(scenario)
