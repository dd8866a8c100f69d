"""Real workers and a pipeline that returns or raises what nobody expects: its request has an
answer, the ring gets its room back, and the worker goes on."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from sidestream.engine import DiffusionEngine, ExecutionError, WorkerDiedError, open_engine
from sidestream.engine.config import EngineConfig

from ..harness.engines import MEBIBYTE, offer_pipelines, synthetic
from ..harness.surroundings import PATIENCE, assert_idle, nothing_left


def odd(executor: str) -> EngineConfig:
    model = {"model": "odd:OddPipeline", "model_options": {}}
    return synthetic(executor, **model, output_ring_bytes=MEBIBYTE)


async def assert_useful(engine: DiffusionEngine) -> None:
    result = await engine.generate("good", output_type="raw")
    assert float(result.output.numpy().mean()) == 0.5
    del result
    await assert_idle(engine)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_outputs_of_many_tensors(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the ring has pages, or than fit into a message, or than fit beside each
    other."""
    offer_pipelines(monkeypatch)
    async with nothing_left(), open_engine(odd(executor)) as engine:
        with trio.fail_after(PATIENCE):
            many = await engine.generate("many", output_type="raw")
            assert [int(tensor.numpy()[0]) for tensor in many.outputs] == list(range(1000))
            large = await engine.generate("large beside large", output_type="raw")
            assert [np.unique(t.numpy()).tolist() for t in large.outputs] == [[i] for i in range(6)]
            numbered = await engine.generate("numbered", output_type="raw")
            assert [int(tensor.numpy()[0]) for tensor in numbered.outputs] == [0, 1]
            del many, large, numbered
            await assert_useful(engine)


CANNOT_BE_SENT = {
    "no data": "Cannot copy out of meta tensor",
    "long name": "FrameTooLarge",
    "surrogate name": "surrogates not allowed",
    "surrogate error": r"pictures/\\udc80\.png",
    "long class name": "its name is long",
}


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_what_cannot_be_sent_is_an_error_of_its_request(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    async with nothing_left(), open_engine(odd(executor)) as engine:
        for prompt, reason in CANNOT_BE_SENT.items():
            with trio.fail_after(PATIENCE):
                with pytest.raises(ExecutionError, match=reason):
                    await engine.generate(prompt, output_type="raw")
                await assert_useful(engine)


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_a_pipeline_that_exits_takes_its_worker_along(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    async with nothing_left(), open_engine(odd(executor)) as engine:
        with trio.fail_after(PATIENCE), pytest.raises(WorkerDiedError, match="gave up"):
            await engine.generate("leaves")
