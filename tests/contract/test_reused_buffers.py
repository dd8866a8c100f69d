"""Pipelines that write to their output's memory again as soon as the next request begins."""

from __future__ import annotations

import pytest
import trio

from sidestream.engine import open_engine

from ..harness.engines import offer_pipelines, synthetic, values_of


@pytest.mark.parametrize("keep", [True, False], ids=["one buffer", "freed and taken again"])
@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_every_request_gets_its_own(
    executor: str, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    options = {"shape": [1, 3, 512, 512], "keep": keep, "several": True}
    config = synthetic(executor, model="reusing:Reusing", model_options=options)
    seeds = iter(range(1, 25))

    async def caller() -> None:
        for seed in seeds:
            result = await engine.generate("a", seed=seed, output_type="raw")
            assert [values_of(result, index) for index in range(3)] == [[seed]] * 3

    async with open_engine(config) as engine, trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(caller)
