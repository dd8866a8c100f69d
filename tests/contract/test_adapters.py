"""Adapters through the engine: each request has its own, in a process of its own too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import trio

from sidestream.engine import RequestError, StartupError, open_engine

from ..harness.adapters import choose, load, save_adapters
from ..harness.engines import offer_pipelines
from ..harness.surroundings import assert_idle, nothing_left

SETS = [{}, {"style": 1.0}, {"detail": 0.5, "style": 0.7}, {"style": 0.25}]
STEPS = 3


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    return save_adapters("sd15", tmp_path_factory.mktemp("adapters"), ["style", "detail"])


@pytest.fixture(scope="module")
def expected(lora):
    """What plain diffusers makes."""
    pipeline = load("sd15", lora=lora)
    made = []
    for seed, chosen in enumerate(SETS):
        choose(pipeline, chosen)
        with torch.no_grad():
            (images,) = pipeline(
                **pipeline.sidestream_defaults | {"num_inference_steps": STEPS},
                prompt="a cat",
                generator=torch.Generator().manual_seed(seed),
                output_type="pt",
                return_dict=False,
            )[:1]
        made.append(images.numpy())
    return made


@pytest.mark.parametrize("mode", ["request", "step"])
@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_requests_side_by_side_have_their_own(lora, expected, executor, mode):
    settings = {"mode": mode, "max_num_seqs": 4, "merge": False, "warmup": False}
    made = [None] * len(SETS)
    async with (
        nothing_left(at_once=False),
        open_engine(
            model="random:sd15", lora=lora, device="cpu", executor=executor, **settings
        ) as engine,
    ):

        async def make(index):
            result = await engine.generate(
                "a cat",
                seed=index,
                num_inference_steps=STEPS,
                output_type="raw",
                lora=SETS[index],
            )
            made[index] = result.outputs[0].numpy().copy()

        async with trio.open_nursery() as nursery:
            for index in range(len(SETS)):
                nursery.start_soon(make, index)
        await assert_idle(engine)
    for ours, theirs in zip(made, expected, strict=True):
        assert np.array_equal(ours.squeeze(), theirs.squeeze())
    assert not np.array_equal(made[0], made[1])


async def test_an_adapter_that_there_is_not_is_refused_before_any_work(lora):
    async with open_engine(model="random:sd15", lora=lora, device="cpu", warmup=False) as engine:
        assert engine.capabilities["lora"] == ["style", "detail"]
        with pytest.raises(RequestError, match=r"^lora: there is no adapter 'styl'; did you"):
            await engine.generate("a cat", lora="styl")
        with pytest.raises(RequestError, match=r"^lora must be a table of adapters"):
            await engine.generate("a cat", lora={"style": "strong"})
        assert not engine.traces()


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_an_adapter_that_cannot_be_loaded_is_named_at_the_start(tmp_path, executor):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    with pytest.raises(StartupError, match=r"lora 'style' cannot be loaded from '.*broken\.safet"):
        async with open_engine(
            model="random:sd15", lora={"style": broken}, device="cpu", executor=executor
        ):
            raise AssertionError("it started")


async def test_a_pipeline_that_runs_its_own_steps_cannot_have_them_there(monkeypatch):
    offer_pipelines(monkeypatch)
    settings = {"model": "painters:adapted", "device": "cpu", "warmup": False}
    with pytest.raises(StartupError, match="lora: in step mode, a pipeline that runs its own"):
        async with open_engine(settings, mode="step"):
            raise AssertionError("it started")
    async with open_engine(settings) as engine:
        assert engine.capabilities["lora"] == ["style"]
