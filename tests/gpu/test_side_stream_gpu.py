"""Copies on the side stream read what the forward wrote, all of it, and nothing that came later.

The pipelines here write to their output's memory again as soon as they are called again, or free it
and take it again. That the tests would see a copy at the wrong time is tested, too: with a platform
that does not wait for the forward.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import trio

from sidestream.engine import EngineConfig, open_engine
from sidestream.ipc_ext.tensors import HostTensor
from sidestream.workers import diffusion_worker
from sidestream.workers.platform import CudaPlatform, HostMemoryError, Mark

from ..harness.engines import offer_pipelines

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICE = "cuda"
MEGABYTE = 1_000_000
REQUESTS = 12
TOGETHER = 6
CYCLES = 40_000_000
"""Of the device's clock, about 20 ms: longer than the output thread takes to look for an output."""

SIZES = pytest.mark.parametrize("size", [12 * MEGABYTE, 100 * MEGABYTE], ids=["12MB", "100MB"])
KINDS = pytest.mark.parametrize("kind", ["raw", "uint8"])
KEEPS = pytest.mark.parametrize("keep", [True, False], ids=["one buffer", "freed and taken again"])


def reusing(kind: str, size: int, executor: str = "uni", **options: Any) -> EngineConfig:
    """Configure an engine of a pipeline whose outputs have about `size` bytes on the device."""
    element, width, scale = ("bf16", 2, 1.0) if kind == "raw" else ("fp32", 4, 1 / 255)
    side = math.isqrt(size // (3 * width)) // 8 * 8
    return EngineConfig(
        model="reusing:Reusing",
        model_options={
            "shape": [1, 3, side, side],
            "element": element,
            "scale": scale,
            "cycles": CYCLES,
            **options,
        },
        executor=executor,
        device=DEVICE,
        startup_timeout=120.0,
    )


def is_all(output: Any, value: int) -> bool:
    """Look at every element of an output."""
    elements = output.torch() if isinstance(output, HostTensor) else output
    return bool((elements == value).all())


async def wrong_outputs(config: EngineConfig, kind: str) -> list[int]:
    """Run requests, some at a time; return the seeds of those whose output is not all theirs."""
    wrong: list[int] = []
    seeds = iter(range(1, REQUESTS + 1))

    async def caller() -> None:
        for seed in seeds:
            result = await engine.generate("a", seed=seed, output_type=kind)
            if not all(is_all(output, seed) for output in result.outputs):
                wrong.append(seed)

    async with open_engine(config) as engine, trio.open_nursery() as nursery:
        for _ in range(TOGETHER):
            nursery.start_soon(caller)
    return wrong


@pytest.mark.parametrize("executor", ["uni", "mp"])
@KEEPS
@SIZES
@KINDS
async def test_a_buffer_that_is_used_again_at_once_leaves_outputs_right(
    kind: str, size: int, keep: bool, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    assert await wrong_outputs(reusing(kind, size, executor, keep=keep), kind) == []


@pytest.mark.parametrize("executor", ["uni", "mp"])
@KEEPS
async def test_several_tensors_of_an_output_are_right(
    executor: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    config = reusing("raw", 12 * MEGABYTE, executor, keep=keep, several=True)
    assert await wrong_outputs(config, "raw") == []


class Careless(CudaPlatform):
    """Does not let copies wait for the forward."""

    def wait_event(self, event: Any) -> None:
        pass

    def time_of(self, mark: Mark) -> int:
        return mark.host_ns  # the device may not have passed it


@KEEPS
@SIZES
@KINDS
async def test_a_copy_at_the_wrong_time_is_seen(
    kind: str, size: int, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    monkeypatch.setattr(diffusion_worker, "platform_for", Careless)
    assert await wrong_outputs(reusing(kind, size, keep=keep), kind)


async def test_an_output_that_is_not_owned_is_seen_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a copy of what the pipeline keeps, the next request writes over it."""
    offer_pipelines(monkeypatch)
    monkeypatch.setattr(diffusion_worker, "owned", lambda tensors: tensors)
    assert await wrong_outputs(reusing("raw", 100 * MEGABYTE, cycles=0), "raw")


class Refused(CudaPlatform):
    """Is not allowed to register memory."""

    def register_host_memory(self, buffer: memoryview | int, nbytes: int | None = None) -> bool:
        raise HostMemoryError("not allowed by this test")


@SIZES
@KINDS
async def test_without_registration_outputs_are_right(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    monkeypatch.setattr(diffusion_worker, "platform_for", Refused)
    assert await wrong_outputs(reusing(kind, size), kind) == []


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_the_ring_is_registered_and_told(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    async with open_engine(reusing("raw", 12 * MEGABYTE, executor)) as engine:
        (device,) = await engine.collective_rpc("device_statistics")
        rings = {name: told for name, told in device.items() if name.startswith("output_ring")}
        print(rings)  # seconds of start-up for so many bytes
        assert device["output_ring_registered"]
        assert device["output_ring_refusal"] is None
        assert device["output_ring_bytes"] == engine.statistics().ring_bytes >= 2 * 8 * 11_900_000


def test_a_registration_that_is_refused_has_a_reason_and_hurts_nobody() -> None:
    platform = CudaPlatform(DEVICE)
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    page = -(-memory.data_ptr() // 4096) * 4096
    assert platform.register_host_memory(page, 1 << 16)
    try:
        with pytest.raises(HostMemoryError, match=r"\w+ .*\(CUDA error \d+\)"):
            CudaPlatform(DEVICE).register_host_memory(page, 1 << 16)  # it is registered already
        assert torch.ones(4, device=DEVICE).sum().item() == 4
    finally:
        assert platform.unregister_host_memory(page)
    assert not platform.unregister_host_memory(page)


def test_copies_into_plain_memory_are_right_beside_other_work() -> None:
    platform = CudaPlatform(DEVICE)
    source = torch.arange(9_000_001, device=DEVICE, dtype=torch.int32).to(torch.uint8)
    target = torch.zeros(source.numel(), dtype=torch.uint8)
    torch.cuda.synchronize()
    torch.cuda._sleep(CYCLES)
    with platform.side_stream():
        platform.copy_to_host(target, source)
    assert torch.equal(target, source.cpu())
