"""Previews from the worker to the caller, in one process and in two."""

from __future__ import annotations

import io

import numpy as np
import pytest
import trio
from PIL import Image

from sidestream.engine import Completed, EngineConfig, Preview, open_engine

PROMPTS = (
    "a large red circle on a black background",
    "a large blue heart on a white background",
    "a large white square on a green background",
    "a large black circle on an orange background",
)


def shapes(executor):
    return EngineConfig(
        model="shapes",
        executor=executor,
        device="cpu",
        mode="step",
        max_num_seqs=4,
        output_ring_bytes=4 << 20,
        startup_timeout=60.0,
        warmup=False,
    )


def distance(preview, picture):
    return np.abs(preview.astype(float) - picture.astype(float)).mean()


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_previews_of_concurrent_requests_are_their_own(executor):
    previews = {}
    pictures = {}

    async def watch(engine, index):
        params = {"seed": index, "output_type": "uint8", "num_inference_steps": 12}
        async with engine.stream(PROMPTS[index], preview_every=1, **params) as events:
            async for event in events:
                assert index not in pictures, "nothing comes after the result"
                if isinstance(event, Preview):
                    previews.setdefault(index, []).append(event)
                elif isinstance(event, Completed):
                    pictures[index] = event.result.output

    async with open_engine(shapes(executor)) as engine, trio.open_nursery() as nursery:
        for index in range(len(PROMPTS)):
            nursery.start_soon(watch, engine, index)
    for index, shown in previews.items():
        steps = [preview.step for preview in shown]
        assert steps == sorted(set(steps))
        assert set(steps) <= set(range(1, 12)), "of twelve steps, the last one is the picture"
        late = [preview.image for preview in shown if preview.step > 6]
        for image in late:
            distances = [distance(image, pictures[other]) for other in range(len(PROMPTS))]
            assert min(distances) == distances[index] < 40
    # Many may have been left out, but not all.
    assert sum(preview.step > 6 for shown in previews.values() for preview in shown) > 0


@pytest.mark.parametrize("output_type", ["pil", "png", "np", "raw"])
async def test_previews_are_of_the_type_of_the_output_where_that_is_a_picture(output_type):
    async with (
        open_engine(shapes("uni")) as engine,
        engine.stream(PROMPTS[0], output_type=output_type, preview_every=1) as events,
    ):
        async for event in events:
            if isinstance(event, Preview):
                image = event.image
                break
    if output_type == "png":
        image = Image.open(io.BytesIO(image))
    assert isinstance(image, np.ndarray if output_type in ("np", "raw") else Image.Image)
    pixels = np.asarray(image)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (128, 128, 3))


@pytest.mark.parametrize(("model", "width"), [("random:flux", 96), ("random:sd3", 48)])
async def test_previews_have_the_size_that_the_request_asks_for(model, width):
    config = EngineConfig(model=model, device="cpu", mode="step", warmup=False)
    params = {"num_inference_steps": 200, "preview_every": 1, "output_type": "uint8"}
    async with (
        open_engine(config) as engine,
        engine.stream("a cat", width=width, **params) as events,
    ):
        async for event in events:
            if isinstance(event, Preview):
                break
    assert event.image.shape == (64, width, 3)


async def test_small_rings_have_small_previews():
    config = EngineConfig(
        model="shapes", device="cpu", mode="step", warmup=False, output_ring_bytes=1 << 20
    )
    async with (
        open_engine(config) as engine,
        engine.stream("a red circle", width=512, height=384, preview_every=1) as events,
    ):
        async for event in events:
            if isinstance(event, Preview):
                width, height = event.image.size
                break
    assert width * height * 3 <= (1 << 20) // 4
    assert abs(width / height - 4 / 3) < 0.01
