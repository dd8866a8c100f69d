"""The whole path on a CUDA device: registered ring, side stream, both phases, right bytes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import trio

from sidestream.engine import (
    EngineConfig,
    ExecutionError,
    Preview,
    Progress,
    RequestStream,
    open_engine,
)

from ..harness.engines import offer_pipelines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CYCLES_PER_MS = 1_700_000
"""Of the device's clock, about."""


def synthetic(executor: str, **options: Any) -> EngineConfig:
    return EngineConfig(
        model="synthetic",
        model_options={
            "forward_ms": 2,
            "steps": 2,
            "shape": (1, 3, 512, 512),
            "dtype": "bf16",
            **options,
        },
        executor=executor,
        device="cuda",
        output_ring_bytes=64 << 20,
    )


@pytest.mark.parametrize("executor", ["mp", "uni"])
async def test_every_byte_is_right_under_load(executor: str) -> None:
    async with open_engine(synthetic(executor)) as engine:
        [device] = await engine.collective_rpc("device_statistics")
        assert device["output_ring_registered"]
        seeds = iter(range(400))

        async def caller() -> None:
            for seed in seeds:
                result = await engine.generate("a", seed=seed, output_type="raw")
                values = np.unique(result.output.numpy())
                assert values.tolist() == [seed % 251]

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(caller)
        await engine.wait_idle()
        assert engine.statistics().ring_bytes_used == 0


async def test_phases_are_in_order_on_the_device_clock() -> None:
    async with open_engine(synthetic("mp", forward_ms=20)) as engine:
        for seed in range(5):
            timings = (await engine.generate("a", seed=seed, output_type="raw")).timings
            trace = timings.trace
            assert trace.forward_start < trace.forward_end < trace.copy_end
            assert 0.01 < timings.forward < 0.2


async def test_a_large_output_goes_in_pieces() -> None:
    async with open_engine(synthetic("mp", shape=(1, 24, 1024, 1024))) as engine:
        result = await engine.generate("a", seed=77, output_type="raw")
        assert np.unique(result.output.numpy()).tolist() == [77]


async def test_a_failed_request_leaves_the_device_usable() -> None:
    async with open_engine(synthetic("mp", fail_at_step=1)) as engine:
        with pytest.raises(ExecutionError):
            await engine.generate("fail")
        result = await engine.generate("a", seed=5, output_type="raw")
        assert np.unique(result.output.numpy()).tolist() == [5]


async def step_of(events: RequestStream, step: int) -> float:
    """Read a request's events until it has made so many steps; return when, in seconds."""
    async for event in events:
        if isinstance(event, Progress) and event.step >= step:
            return trio.current_time()
    raise AssertionError(f"the request ended before step {step}")


@pytest.mark.parametrize("mode", ["request", "step"])
async def test_steps_are_told_as_the_device_takes_them_and_it_stops_soon_after_an_abort(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host could give all of this forward, which takes ten seconds, to the device at once."""
    offer_pipelines(monkeypatch)
    config = dataclasses.replace(
        synthetic("mp"),
        model="sleeping:Sleeping",
        model_options={"cycles": 20 * CYCLES_PER_MS},
        mode=mode,
    )
    async with (
        open_engine(config) as engine,
        engine.stream("a", request_id="long", num_inference_steps=500) as events,
    ):
        began = await step_of(events, 3)
        assert await step_of(events, 23) - began > 0.25
        with trio.fail_after(2):
            assert await engine.abort("long")
            short = await engine.generate("b", num_inference_steps=2, output_type="raw")
        assert np.unique(short.output.numpy()).tolist() == [2]


@pytest.mark.parametrize("mode", ["request", "step"])
@pytest.mark.parametrize("family", ["sd15", "sdxl", "sd3", "flux"])
async def test_a_tiny_pipeline_gives_what_plain_diffusers_gives(family: str, mode: str) -> None:
    from sidestream.workers.models import load_pipeline

    plain = load_pipeline(f"random:{family}", {}, device="cuda", dtype=None)
    call = plain.sidestream_defaults | {"prompt": "a cat", "num_inference_steps": 3}
    expected = plain(**call, generator=torch.Generator("cpu").manual_seed(3)).images[0]
    config = EngineConfig(model=f"random:{family}", device="cuda", executor="uni", mode=mode)
    async with open_engine(config) as engine:
        result = await engine.generate("a cat", seed=3, num_inference_steps=3)
    assert np.array_equal(np.asarray(expected), np.asarray(result.output))


async def test_steps_of_many_requests_interleave_and_each_gets_its_own() -> None:
    config = EngineConfig(**{**vars(synthetic("mp", steps=4)), "mode": "step", "max_num_seqs": 4})
    async with open_engine(config) as engine:
        seeds = iter(range(120))

        async def caller() -> None:
            for seed in seeds:
                result = await engine.generate(
                    "a",
                    seed=seed,
                    num_inference_steps=1 + seed % 7,
                    priority=seed % 3,
                    output_type="raw",
                )
                assert np.unique(result.output.numpy()).tolist() == [seed % 251]

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(caller)
        await engine.wait_idle()
        assert engine.statistics().ring_bytes_used == 0


async def test_previews_come_from_the_side_stream() -> None:
    async with open_engine(model="shapes", device="cuda", executor="mp", mode="step") as engine:
        request = engine.stream("a large red circle on a white background", preview_steps=4, seed=1)
        async with request as events:
            previews = [event async for event in events if isinstance(event, Preview)]
            final = np.asarray((await events.result()).output, np.float32)
    assert previews
    last = np.asarray(previews[-1].image.resize((128, 128)), np.float32)
    assert np.corrcoef(last.ravel(), final.ravel())[0, 1] > 0.7


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device only")
async def test_two_workers_have_a_device_each() -> None:
    config = synthetic("mp", forward_ms=10)
    async with open_engine(dataclasses.replace(config, num_workers=2)) as engine:
        assert [worker.device for worker in engine.statistics().workers] == ["cuda:0", "cuda:1"]
        for device in await engine.collective_rpc("device_statistics"):
            assert device["output_ring_registered"]
        seeds = iter(range(100))

        async def caller() -> None:
            for seed in seeds:
                result = await engine.generate("a", seed=seed, output_type="raw")
                assert np.unique(result.output.numpy()).tolist() == [seed % 251]

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(caller)
        workers = [trace.worker for trace in engine.traces()]
        assert min(workers.count(0), workers.count(1)) >= 30
