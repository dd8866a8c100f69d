"""The output ring of a running engine: as large as what the model makes, and right without
registration too."""

from __future__ import annotations

import resource
from functools import partial

import pytest
import torch

from sidestream.engine import EngineConfig, StartupError, open_engine
from sidestream.engine.output_ring import START, UNKNOWN
from sidestream.workers import diffusion_worker
from sidestream.workers.platform import CpuPlatform, HostMemoryError
from sidestream.workers.staging import StagedCopy

from ..harness.engines import MEBIBYTE, synthetic, values_of

EXECUTORS = pytest.mark.parametrize("executor", ["uni", "mp"])
SIDE = 1024
LARGE = 3 * SIDE * SIDE * 2
"""Bytes of a picture in bfloat16."""


def automatic(executor: str, *, side: int = 64, **settings: object) -> EngineConfig:
    options = {"shape": (1, 3, side, side), "dtype": "bf16"}
    return synthetic(executor, options=options, output_ring_bytes="auto", **settings)


@EXECUTORS
async def test_it_holds_what_the_model_makes(executor: str) -> None:
    async with open_engine(automatic(executor, side=SIDE)) as engine:
        assert engine.statistics().ring_bytes == 2 * 8 * LARGE
        (device,) = await engine.collective_rpc("device_statistics")
        assert device["output_ring_bytes"] == 2 * 8 * LARGE
        kept = [await engine.generate("a", seed=seed, output_type="raw") for seed in range(9)]
        assert [values_of(result) for result in kept] == [[seed] for seed in range(9)]
        leased = [result.output.buffer.readonly for result in kept]
        assert all(leased[:7])  # they are read where they lie
        assert not leased[8]  # more than half of the ring is held


async def test_every_worker_has_its_own() -> None:
    async with open_engine(automatic("mp", side=SIDE, num_workers=2)) as engine:
        assert [w.output_ring_bytes for w in engine.statistics().workers] == [2 * 8 * LARGE] * 2


async def test_small_outputs_need_little() -> None:
    async with open_engine(automatic("uni")) as engine:
        assert engine.statistics().ring_bytes == START


async def test_sizes_to_be_warm_for_count() -> None:
    config = automatic("uni", warmup_sizes=[(SIDE, SIDE)])
    async with open_engine(config) as engine:
        assert engine.statistics().ring_bytes == 2 * 8 * LARGE


async def test_without_a_warm_up_it_is_the_usual_size() -> None:
    async with open_engine(automatic("uni", warmup=False)) as engine:
        assert engine.statistics().ring_bytes == UNKNOWN


@EXECUTORS
async def test_what_is_configured_stands(executor: str) -> None:
    config = synthetic(executor, options={"shape": (1, 3, SIDE, SIDE)}, output_ring_bytes=MEBIBYTE)
    async with open_engine(config) as engine:
        assert engine.statistics().ring_bytes == MEBIBYTE
        assert values_of(await engine.generate("a", seed=3, output_type="raw")) == [3]


@EXECUTORS
async def test_a_ring_without_memory_is_an_error_that_names_the_setting(executor: str) -> None:
    config = synthetic(executor, num_workers=1, output_ring_bytes=1 << 36)
    with pytest.raises(StartupError, match=r"^output_ring_bytes: a ring of 64\.0 GiB need"):
        async with open_engine(config):
            pass


async def test_a_limit_of_this_process_is_an_error_that_names_the_setting() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 * MEBIBYTE, hard))
    try:
        with pytest.raises(StartupError, match=r"output_ring_bytes=16777216 .*File too large"):
            async with open_engine(synthetic("uni", output_ring_bytes=16 * MEBIBYTE)):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Refusing(CpuPlatform):
    """A device that is refused access to host memory."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        allocate = partial(torch.empty, dtype=torch.uint8)
        staged = StagedCopy(allocate, self.record_device_event, self.synchronize_event)
        self._copy = staged.copy  # type: ignore[method-assign]

    def register_host_memory(self, buffer: memoryview | int, nbytes: int | None = None) -> bool:
        raise HostMemoryError("operation not permitted")


async def test_without_registration_outputs_are_right_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(diffusion_worker, "platform_for", Refusing)
    async with open_engine(automatic("uni", side=SIDE)) as engine:
        (device,) = await engine.collective_rpc("device_statistics")
        assert not device["output_ring_registered"]
        assert device["output_ring_refusal"] == "operation not permitted"
        assert "cannot be registered with cpu: operation not permitted" in caplog.text
        for seed in range(4):
            assert values_of(await engine.generate("a", seed=seed, output_type="raw")) == [seed]
