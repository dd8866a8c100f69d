"""Finished parts of outputs, from the worker to the caller."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from sidestream.engine import Chunk, Completed, EngineConfig, ExecutionError, open_engine

from ..harness.engines import synthetic

FRAMES = {"shape": [1, 6, 3, 16, 16], "dtype": "uint8"}
LARGE = {"shape": [1, 4, 3, 512, 512], "dtype": "uint8"}


async def watched(engine, prompt="a", **params):
    """Run a request; return its chunks and its output."""
    chunks = []
    params |= {"streaming_output": True, "output_type": "uint8"}
    async with engine.stream(prompt, **params) as events:
        async for event in events:
            if isinstance(event, Chunk):
                assert event.index == len(chunks)
                chunks.append(event.output)
            elif isinstance(event, Completed):
                return chunks, event.result.output
    raise AssertionError("the request did not end")


@pytest.mark.parametrize("executor", ["uni", "mp"])
@pytest.mark.parametrize(
    ("options", "count"), [(FRAMES, 6), (FRAMES, 4), (LARGE, 2)], ids=["small", "uneven", "large"]
)
async def test_chunks_come_in_order_and_make_up_the_output(executor, options, count):
    config = synthetic(executor, options=options, mode="step", output_ring_bytes=1 << 20)
    async with open_engine(config) as engine:
        chunks, output = await watched(
            engine, seed=9, num_inference_steps=6, extra_args={"num_chunks": count}
        )
    assert len(chunks) == count
    assert np.array_equal(np.concatenate(chunks), output)
    assert np.unique(output).tolist() == [9]


async def test_chunks_of_requests_side_by_side_are_their_own():
    config = synthetic("uni", options=FRAMES, mode="step", max_num_seqs=4)
    seen = {}

    async def watch(engine, seed):
        steps = 6 + seed
        extra = {"num_chunks": 1 + seed}
        seen[seed] = await watched(engine, seed=seed, num_inference_steps=steps, extra_args=extra)

    async with open_engine(config) as engine, trio.open_nursery() as nursery:
        for seed in range(4):
            nursery.start_soon(watch, engine, seed)
    for seed, (chunks, output) in seen.items():
        assert len(chunks) == 1 + seed
        assert {np.unique(part).item() for part in (*chunks, output)} == {seed}


async def test_a_video_pipeline_tells_its_windows_before_it_is_done():
    config = EngineConfig(
        model="random:wan-chunks", device="cpu", mode="step", warmup=False, streaming_output=True
    )
    chunks = []
    async with open_engine(config) as engine, engine.stream("a", output_type="uint8") as events:
        async for event in events:
            if isinstance(event, Chunk):
                chunks.append(event.output)
            elif isinstance(event, Completed):
                video = event.result.output
    assert [len(chunk) for chunk in chunks] == [5, 5, 3]
    assert np.array_equal(np.concatenate(chunks), video)


async def test_a_request_may_fail_after_its_first_chunks():
    options = FRAMES | {"fail_at_step": 4}
    config = synthetic("uni", options=options, mode="step")
    params = {"num_inference_steps": 6, "extra_args": {"num_chunks": 6}}
    async with open_engine(config) as engine:
        with pytest.raises(ExecutionError, match="synthetic failure at step 4"):
            await watched(engine, "fail", **params)
        chunks, _ = await watched(engine, **params)
        assert len(chunks) == 6, "the next request is not touched"


async def test_a_caller_may_leave_among_chunks():
    config = synthetic("uni", options=FRAMES, mode="step")
    params = {"num_inference_steps": 600, "extra_args": {"num_chunks": 6}}
    async with open_engine(config) as engine:
        async with engine.stream("a", streaming_output=True, **params) as events:
            async for event in events:
                if isinstance(event, Chunk):
                    break
        chunks, output = await watched(engine, seed=2)
        assert np.array_equal(np.concatenate(chunks), output)


async def test_a_caller_that_does_not_look_holds_nobody_up():
    """Its chunks, which all have to be kept, are more than the ring can hold."""
    options = {"shape": [1, 24, 3, 256, 256], "dtype": "uint8"}
    config = synthetic("uni", options=options, mode="step", output_ring_bytes=1 << 20)
    params = {"num_inference_steps": 24, "extra_args": {"num_chunks": 24}, "seed": 3}
    async with (
        open_engine(config) as engine,
        engine.stream("a", streaming_output=True, output_type="uint8", **params) as events,
    ):
        with trio.fail_after(60):
            await watched(engine, **params)
        chunks = [event.output async for event in events if isinstance(event, Chunk)]
    assert [np.unique(chunk).tolist() for chunk in chunks] == [[3]] * 24
