"""Real workers, both executors: starts that fail, ends, several engines, foreign executors."""

from __future__ import annotations

import importlib
import os
import signal
from functools import partial
from typing import Any

import pytest
import trio

from sidestream.engine import (
    ConfigError,
    DiffusionEngine,
    EngineClosedError,
    EngineConfig,
    ExecutionError,
    Started,
    StartupError,
    generate,
    open_engine,
)

from ..harness.engines import LONG, offer_pipelines, synthetic, until, values_of
from ..harness.surroundings import PATIENCE, nothing_left

BOTH = ("uni", "mp")


async def start(config: EngineConfig) -> None:
    with trio.fail_after(3 * PATIENCE):
        async with open_engine(config):
            raise AssertionError("it started")


@pytest.mark.parametrize(
    ("executor", "settings", "reason"),
    [
        (
            "mp",
            {"model": "nowhere:model", "model_options": {}},
            "'nowhere:model': there is no module 'nowhere'",
        ),
        ("uni", {"model_options": {"forward_mss": 3}}, "'forward_mss'; did you mean 'forward_ms'"),
        ("uni", {"model": "troubled:raises", "model_options": {}}, "the weights are lost"),
        ("mp", {"model": "troubled:raises", "model_options": {}}, "the weights are lost"),
        (
            "mp",
            {"model": "troubled:exits", "model_options": {}},
            r"exited with status 3\n(.*\n)*these are its last words",
        ),
        ("mp", {"model": "troubled:leaves", "model_options": {}}, "the loader gave up"),
        ("uni", {"device": "cuda:77"}, "cuda:77"),
        ("mp", {"num_workers": 2, "model_options": {"shape": (2,)}}, "shape must begin with 1"),
        (
            "uni",
            {"model": "troubled:TroubledPipeline", "model_options": {"error": "plain"}},
            "the warm-up request failed: ArithmeticError: this does not work",
        ),
        (
            "mp",
            {"model": "troubled:TroubledPipeline", "model_options": {"error": "plain"}},
            "the warm-up request failed: ArithmeticError: this does not work",
        ),
    ],
)
async def test_a_start_that_fails_tells_the_workers_reason_and_leaves_nothing(
    executor: str, settings: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    async with nothing_left(at_once=executor == "mp"):
        with pytest.raises(StartupError, match=reason):
            await start(synthetic(executor, **settings))


@pytest.mark.parametrize("executor", BOTH)
async def test_a_start_that_takes_too_long_is_given_up(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_pipelines(monkeypatch)
    go = importlib.import_module("troubled").GO
    go.clear()
    config = synthetic(executor, model="troubled:blocks", model_options={}, startup_timeout=0.1)
    async with nothing_left(at_once=executor == "mp"):
        with pytest.raises(StartupError, match=r"not ready within 0.1 s \(startup_timeout\)"):
            await start(config)
        go.set()  # the thread that was left behind can end now; the process is dead


async def test_without_a_warm_up_only_the_request_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_pipelines(monkeypatch)
    options = {"error": "plain", "when": "bad"}
    config = synthetic("uni", model="troubled:TroubledPipeline", model_options=options)
    async with open_engine(config, warmup=False) as engine:
        assert engine.statistics().waves_dispatched == 0
        await engine.generate("good", output_type="raw")


@pytest.mark.parametrize("executor", BOTH)
async def test_closing_is_idempotent_and_final(executor: str) -> None:
    async with nothing_left(at_once=executor == "mp"):
        async with open_engine(synthetic(executor)) as engine:
            engine.check_health()
            [worker] = engine.statistics().workers
            assert (worker.state, worker.device) == ("ready", "cpu")
            assert (worker.pid is None) == (executor == "uni")
            assert worker.heartbeat_age < PATIENCE
            async with engine.stream("a", num_inference_steps=LONG) as events:
                await until(events, Started)
                [worker] = engine.statistics().workers
                assert worker.running == (events.request_id,)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(engine.close)
                    nursery.start_soon(engine.close)
                    with pytest.raises(EngineClosedError):
                        await events.result()
            await engine.close()
            with pytest.raises(EngineClosedError):
                await engine.generate("a")
            with pytest.raises(EngineClosedError):
                engine.check_health()
            with pytest.raises(EngineClosedError):
                await engine.collective_rpc("runner_statistics")
            statistics = engine.statistics()
            assert (statistics.claims, statistics.workers[0].state) == (0, "stopped")
        with pytest.raises(EngineClosedError):
            await engine.generate("a")


async def test_a_worker_that_does_not_stop_is_killed() -> None:
    async with nothing_left(), open_engine(synthetic("mp", shutdown_grace=0.1)) as engine:
        [worker] = engine.statistics().workers
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)


async def test_a_thread_that_does_not_stop_is_left_behind_and_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offer_pipelines(monkeypatch)
    troubled = importlib.import_module("troubled")
    troubled.GO.clear()
    troubled.INSIDE.clear()
    options = {"error": "block", "when": "block"}
    config = synthetic("uni", model="troubled:TroubledPipeline", model_options=options)
    async with nothing_left(at_once=False), trio.open_nursery() as callers:
        with trio.fail_after(PATIENCE):
            async with open_engine(config, shutdown_grace=0.1) as engine:
                callers.start_soon(_expect_closed, engine, "block")
                await trio.to_thread.run_sync(troubled.INSIDE.wait)
        assert "has not stopped within 0.1 s and is left behind" in caplog.text
        troubled.GO.set()


async def _expect_closed(engine: DiffusionEngine, prompt: str) -> None:
    with pytest.raises(EngineClosedError):
        await engine.generate(prompt)


async def test_several_engines_in_one_run() -> None:
    async with (
        nothing_left(),
        open_engine(synthetic("uni")) as one,
        open_engine(synthetic("uni", options={"dtype": "uint8"})) as two,
        open_engine(synthetic("mp", options={"dtype": "bf16"})) as three,
        trio.open_nursery() as nursery,
    ):

        async def run(engine: Any, dtype: str, seed: int) -> None:
            result = await engine.generate("a", seed=seed, output_type="raw")
            assert (result.output.dtype, values_of(result)) == (dtype, [seed])

        for seed in range(20):
            nursery.start_soon(run, one, "float32", seed)
            nursery.start_soon(run, two, "uint8", seed)
            nursery.start_soon(run, three, "bfloat16", seed)


async def test_two_workers_share_the_work() -> None:
    async with nothing_left(), open_engine(synthetic("mp", num_workers=2)) as engine:
        workers = engine.statistics().workers
        assert [worker.index for worker in workers] == [0, 1]
        assert len({worker.pid for worker in workers}) == 2
        async with (
            engine.stream("a", num_inference_steps=LONG) as first,
            engine.stream("a", num_inference_steps=LONG) as second,
        ):
            places = [await until(first, Started), await until(second, Started)]
            assert {place.worker for place in places} == {0, 1}  # type: ignore[attr-defined]
        assert len(await engine.collective_rpc("runner_statistics")) == 2
        async with trio.open_nursery() as nursery:
            for seed in range(20):
                nursery.start_soon(_check_seed, engine, seed)


async def _check_seed(engine: Any, seed: int) -> None:
    assert values_of(await engine.generate("a", seed=seed, output_type="raw")) == [seed]


async def test_an_executor_of_somebody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    offer_pipelines(monkeypatch)
    backends = importlib.import_module("backends")
    for executor in ("backends:CountingExecutor", backends.CountingExecutor):
        async with open_engine(synthetic(executor), max_num_seqs=4) as engine:
            await engine.generate("a")
            assert backends.CountingExecutor.waves == [1, 1]  # the warm-up is one
    for wrong in ("backends:NoSuch", "no_such_module:Executor", "backends:annotations"):
        with pytest.raises(ConfigError, match=wrong):
            await start(synthetic(wrong))


@pytest.mark.parametrize(
    ("executor", "error"),
    [("uni", KeyError("mine")), ("uni", SystemExit(3)), ("mp", KeyError("mine"))],
)
async def test_an_exception_of_the_body_leaves_as_it_is(
    executor: str, error: BaseException
) -> None:
    async with nothing_left():
        with pytest.raises(type(error)) as caught:
            async with open_engine(synthetic(executor)):
                raise error
        assert caught.value is error
        assert caught.value.__context__ is None


async def test_a_group_of_the_body_leaves_as_it_is() -> None:
    async with nothing_left():
        error = KeyError("mine")
        with pytest.RaisesGroup(pytest.RaisesExc(KeyError, check=lambda e: e is error)):
            async with open_engine(synthetic("uni")):
                raise ExceptionGroup("of the body", [error])


@pytest.mark.parametrize("executor", BOTH)
async def test_cancelling_around_the_block_cancels_and_no_more(executor: str) -> None:
    async with nothing_left():
        with trio.CancelScope() as scope:
            async with open_engine(synthetic(executor)) as engine, trio.open_nursery() as nursery:
                nursery.start_soon(partial(engine.generate, "a", num_inference_steps=LONG))
                scope.cancel()
        assert scope.cancelled_caught


async def test_a_run_in_one_call_that_fails_ends_with_its_error() -> None:
    config = synthetic("uni", options={"fail_at_step": 0}, max_num_seqs=3)
    async with nothing_left():
        with pytest.raises(ExecutionError, match="synthetic failure"):
            await generate(config, ["a", "fail", "b"], num_inference_steps=LONG)
