"""Real workers, both executors: what a request gives back is right, byte for byte."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import trio
from PIL import Image

from sidestream.engine import DiffusionRequest, RequestError, SamplingParams, generate, open_engine

from ..harness.engines import MEBIBYTE, moments_of, offer_pipelines, synthetic, values_of
from ..harness.surroundings import PATIENCE, assert_idle, nothing_left

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "uint8": "uint8"}


@pytest.mark.parametrize(
    ("executor", "dtype"), [*(("uni", dtype) for dtype in DTYPES), ("mp", "bf16")]
)
async def test_dtypes_and_shapes(executor: str, dtype: str) -> None:
    config = synthetic(executor, options={"dtype": dtype, "shape": (1, 3, 16, 24)})
    async with open_engine(config) as engine:
        for seed, (height, width) in enumerate([(None, None), (1, 1), (33, 57), (128, 128)]):
            result = await engine.generate(
                "a", seed=seed, height=height, width=width, output_type="raw"
            )
            assert result.output.dtype == DTYPES[dtype]
            assert result.output.shape == (1, 3, height or 16, width or 24)
            assert values_of(result) == [seed]
            assert result.output.torch().dtype is getattr(torch, DTYPES[dtype])


ODD_SHAPES = [(1, 0), (1, 3, 0, 7), (1,), (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("executor", "shape"), [*(("uni", shape) for shape in ODD_SHAPES), ("mp", ODD_SHAPES[1])]
)
async def test_odd_shapes(executor: str, shape: tuple[int, ...]) -> None:
    async with open_engine(synthetic(executor, options={"shape": shape})) as engine:
        for seed in (1, 2):
            result = await engine.generate("a", seed=seed, output_type="raw")
            assert result.output.shape == shape
            assert values_of(result) == ([seed] if 0 not in shape else [])
            del result
        await assert_idle(engine)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_seeds_and_several_outputs(executor: str) -> None:
    async with open_engine(synthetic(executor)) as engine:
        result = await engine.generate("a", seed=40, num_outputs=3, output_type="uint8")
        assert [int(array.max()) for array in result.outputs] == [40, 41, 42]
        assert [array.shape for array in result.outputs] == [(64, 64, 3)] * 3
        assert result.seed == 40
        result = await engine.generate("a", seed=40, num_outputs=3, output_type="raw")
        assert [list(np.unique(row)) for row in result.output.numpy()] == [[40], [41], [42]]
        drawn = await engine.generate("a", output_type="raw")
        assert values_of(drawn) == [drawn.seed % 251]
        again = await engine.generate("b", seed=drawn.seed, output_type="raw")
        assert values_of(again) == values_of(drawn)
        complete = DiffusionRequest(
            "a", request_id="mine", sampling=SamplingParams(seed=7, output_type="raw")
        )
        result = await engine.generate(complete)
        assert (result.request_id, values_of(result)) == ("mine", [7])


PICTURE = np.full((32, 32, 3), 99, np.uint8)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_arrays_travel_to_the_pipeline(executor: str) -> None:
    arrays: list[tuple[str, Any]] = [
        ("image", PICTURE),
        ("image", PICTURE[::2, ::2]),
        ("image", Image.fromarray(PICTURE)),
        ("image", Image.fromarray(PICTURE).convert("L")),
        ("image", torch.full((3, 8, 8), 99.0, dtype=torch.bfloat16)),
        ("latents", torch.full((2, 2), 99.0, dtype=torch.float64).T),
        ("image", np.full((700, 900, 3), 99, np.uint8)),  # 1.9 MB through a ring of 1 MiB
        ("image", torch.full((1, 3, 512, 512), 99.0)),  # 3 MiB
    ]
    async with open_engine(synthetic(executor)) as engine:
        for name, array in arrays:
            result = await engine.generate("a", extra_args={name: array}, output_type="raw")
            assert values_of(result) == [99], (name, type(array))
            del result
        async with trio.open_nursery() as nursery:  # several large ones share the ring
            for value in range(6):
                image = np.full((600, 800, 3), value, np.uint8)
                nursery.start_soon(_expect, engine, value, {"extra_args": {"image": image}})
        with pytest.raises(RequestError, match="takes no 'imagge': did you mean 'image'"):
            await engine.generate("a", extra_args={"imagge": PICTURE})
        await assert_idle(engine)


async def _expect(engine: Any, value: int, arguments: dict[str, Any]) -> None:
    with trio.fail_after(PATIENCE):
        result = await engine.generate("a", output_type="raw", **arguments)
    assert values_of(result) == [value]


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_outputs_of_any_size_pass_a_small_ring_at_the_same_time(executor: str) -> None:
    sizes = [(8, 8), (256, 85), (256, 86), (512, 512), (100, 3000), (1, 1), (1024, 1024)]
    config = synthetic(executor, max_num_seqs=4, output_ring_bytes=MEBIBYTE)
    async with open_engine(config) as engine:
        async with trio.open_nursery() as nursery:
            for seed, (height, width) in enumerate(sizes * 3):
                arguments = {"seed": seed, "height": height, "width": width}
                nursery.start_soon(_expect, engine, seed, arguments)
        await assert_idle(engine)


@pytest.mark.parametrize("device_stage", [True, False])
@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_pictures_of_every_type(
    executor: str, device_stage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    config = synthetic(
        executor, model="pictures:PicturePipeline", model_options={}, device_stage=device_stage
    )
    async with open_engine(config) as engine:
        generate = partial(engine.generate, "a", seed=200, num_outputs=2)
        for output_type in ("pil", "png", "jpeg", "webp", "uint8", "np", "pt"):
            outputs = (await generate(output_type=output_type)).outputs
            assert [_describe(output) for output in outputs] == [
                (32, 48, pytest.approx(200 / 255, abs=0.01)),
                (32, 48, pytest.approx(201 / 255, abs=0.01)),
            ], output_type
        [raw] = (await generate(output_type="raw")).outputs
        assert (raw.dtype, raw.shape) == ("float32", (2, 3, 32, 48))


def _describe(output: Any) -> tuple[int, int, float]:
    """Return height, width and brightness, checking that the picture is even."""
    if isinstance(output, bytes):
        output = Image.open(io.BytesIO(output))
    if isinstance(output, torch.Tensor):
        output = output.permute(1, 2, 0).numpy()
    array = np.asarray(output)
    height, width, channels = array.shape
    assert channels == 3
    assert np.ptp(array) < 1e-6
    return height, width, array.flat[0] / (255 if array.dtype == np.uint8 else 1)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_timings_tell_both_phases(executor: str) -> None:
    options = {"forward_ms": 20, "steps": 2, "shape": (1, 3, 512, 512)}
    async with open_engine(synthetic(executor, options=options)) as engine:
        timings = (await engine.generate("a", seed=1, output_type="raw")).timings
        trace = timings.trace
        assert moments_of(trace) == sorted(moments_of(trace))
        assert timings.forward >= 0.020
        assert min(timings.queued, timings.output, timings.postprocess) >= 0
        phases = timings.queued + timings.forward + timings.output + timings.postprocess
        unheeded = (trace.postprocess_start - trace.arrived) / 1e9
        assert phases + unheeded == pytest.approx(timings.total, abs=1e-6)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_a_whole_run_in_one_call(executor: str) -> None:
    async with nothing_left():
        results = await generate(synthetic(executor), ["a", "b"], seed=5, output_type="raw")
        assert [values_of(result) for result in results] == [[5], [5]]
        del results
