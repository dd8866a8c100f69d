"""An engine from its start to its end, whatever ends it."""

import asyncio

import pytest
import trio
import trio.testing

import sidestream.engine
from sidestream.engine import (
    ConfigError,
    EngineClosedError,
    EngineConfig,
    ExecutionError,
    RequestAborted,
    RequestError,
    StartupError,
    open_engine,
)
from sidestream.engine.executor import (
    MultiprocDiffusionExecutor,
    UniProcDiffusionExecutor,
    make_executor,
)

from .fake_engines import Outcomes, ServingExecutor, open_fake, raw, value_of
from .fakes import CAPABILITIES, FakeExecutor, raised

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def outcomes(nursery):
    return Outcomes(nursery)


# -- the start


async def test_every_worker_is_warmed_up(autojump_clock, nursery):
    plays = []

    class Watched(ServingExecutor):
        def __init__(self, config):
            super().__init__(config)
            plays.append(self)

    settings = {"num_workers": 3, "max_num_seqs": 4, "max_queued_requests": 1}
    async with open_engine(executor=Watched, **settings) as engine:
        (executor,) = plays
        assert [[job.worker for job in wave] for wave in executor.waves] == [[0], [1], [2]]
        for (job,) in executor.waves:
            assert job.data.call == {"prompt": "warm-up", "num_inference_steps": 1}
        assert engine.statistics().claims == 0


@pytest.mark.parametrize(
    ("arguments", "call"),
    [(["prompt"], {"prompt": "warm-up"}), (["num_inference_steps"], {"num_inference_steps": 1})],
)
async def test_the_warm_up_gives_what_the_pipeline_takes(autojump_clock, arguments, call):
    class Pipeline(ServingExecutor):
        capabilities = {**CAPABILITIES, "arguments": arguments, "required": []}  # noqa: RUF012

    async with open_fake(Pipeline, warmup=True) as (_, executor):
        assert [wave[0].data.call for wave in executor.waves] == [call]


async def test_the_warm_up_comes_to_each_size_alone_and_in_full_waves(autojump_clock):
    class Pipeline(ServingExecutor):
        capabilities = {  # noqa: RUF012
            **CAPABILITIES,
            "arguments": ["prompt", "width", "height", "num_inference_steps"],
            "required": [],
        }

    sizes = [(64, 32), (16, 16)]
    settings = {"warmup": True, "warmup_sizes": sizes, "max_num_seqs": 3}
    async with open_fake(Pipeline, **settings) as (_, executor):
        first, *others = executor.waves
        assert [job.data.call for job in first] == [{"prompt": "warm-up", "num_inference_steps": 1}]
        for width, height in sizes:
            waves = [
                [job.data.call for job in wave]
                for wave in others
                if (wave[0].data.call["width"], wave[0].data.call["height"]) == (width, height)
            ]
            assert all(call["num_inference_steps"] == 4 for wave in waves for call in wave)
            assert sum(len(wave) == 1 for wave in waves) >= 3
            assert sum(len(wave) == 3 for wave in waves) >= 3


async def test_a_pipeline_that_needs_more_than_a_prompt_is_not_warmed_up(autojump_clock):
    class Pipeline(FakeExecutor):
        capabilities = {**CAPABILITIES, "required": ["prompt", "image"]}  # noqa: RUF012

    async with open_fake(Pipeline, warmup=True) as (_, executor):
        assert executor.waves == []


async def test_a_warm_up_that_fails(autojump_clock):
    class Broken(FakeExecutor):
        async def dispatch(self, worker, wave):
            await super().dispatch(worker, wave)
            (await self.next_job()).compute_failed(raised("RuntimeError: no kernel"))

    with pytest.raises(StartupError, match="warm-up request failed: RuntimeError: no") as caught:
        async with open_fake(Broken, warmup=True):
            pytest.fail("the engine must not start")
    assert isinstance(caught.value.__cause__, ExecutionError)


async def test_a_worker_that_dies_during_the_warm_up(autojump_clock):
    class Dying(FakeExecutor):
        async def dispatch(self, worker, wave):
            self.kill()

    with pytest.raises(StartupError, match="worker 0 was killed by SIGKILL"):
        async with open_fake(Dying, warmup=True):
            pytest.fail("the engine must not start")


@pytest.mark.parametrize("error", [StartupError("no such model"), OSError("no memory")])
async def test_a_start_that_fails_leaves_as_it_is(autojump_clock, error):
    class Broken(FakeExecutor):
        async def start(self, services):
            services.start_soon(trio.sleep_forever)
            raise error

        async def close(self, grace):
            closed.append(grace)

    closed = []
    with pytest.raises(type(error)) as caught:
        async with open_fake(Broken):
            pytest.fail("the engine must not start")
    assert caught.value is error
    assert closed == [0.0]  # nobody is waited for who has never been ready


async def test_a_start_that_takes_too_long(autojump_clock):
    class Slow(FakeExecutor):
        async def start(self, services):
            await trio.sleep_forever()

    began = trio.current_time()
    with pytest.raises(StartupError, match=r"not ready within 30 s \(startup_timeout\)"):
        async with open_fake(Slow, startup_timeout=30):
            pytest.fail("the engine must not start")
    assert trio.current_time() - began == 30


async def test_a_wrong_setting_starts_nothing(autojump_clock):
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        async with open_fake(max_num_seq=3):
            pytest.fail("the engine must not start")


def test_executors_by_name_import_path_and_class():
    for wanted, cls in [
        ("uni", UniProcDiffusionExecutor),
        ("mp", MultiprocDiffusionExecutor),
        ("sidestream.engine.executor:MultiprocDiffusionExecutor", MultiprocDiffusionExecutor),
        (FakeExecutor, FakeExecutor),
    ]:
        assert isinstance(make_executor(EngineConfig(executor=wanted)), cls)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere.at_all:Executor", "cannot be imported: ModuleNotFoundError: No module named"),
        ("sidestream.engine:Nothing", "cannot be imported: .* has no attribute 'Nothing'"),
        ("sidestream.engine:open_engine", "is not a class"),
    ],
)
def test_an_import_path_that_leads_nowhere(path, reason):
    with pytest.raises(ConfigError, match=f"executor '{path}' {reason}"):
        make_executor(EngineConfig(executor=path))


# -- the body


@pytest.mark.parametrize("error", [ValueError("plain"), SystemExit(3), KeyboardInterrupt()])
async def test_an_exception_of_the_body_leaves_as_it_is(autojump_clock, error):
    cause, context = OSError("cause"), KeyError("context")

    async def body():
        async with open_fake():
            try:
                raise context
            except KeyError:
                raise error from cause

    with pytest.raises(type(error)) as caught:
        await body()
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (cause, context)


async def test_a_group_of_the_body_is_not_wrapped_in_another(autojump_clock):
    with pytest.RaisesGroup(ValueError, KeyError):
        async with open_fake():
            raise ExceptionGroup("of the body", [ValueError(), KeyError()])


async def test_a_cancelled_body(autojump_clock):
    with trio.CancelScope() as scope:
        async with open_fake() as (engine, executor), engine.stream(raw()):
            job = await executor.next_job()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert job.flagged
    assert executor.graces == [engine.config.shutdown_grace]


async def test_leaving_the_body_ends_what_others_still_wait_for(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, shutdown_grace=3.0) as (engine, executor):
        outcomes.start("running", engine.generate, raw())
        job = await executor.next_job()
        outcomes.start("queued", engine.generate, raw())
        await settled()
    for name in ("running", "queued"):
        error = await outcomes.of(name)
        assert isinstance(error, EngineClosedError)
        assert str(error) == "the engine was closed"
    assert job.flagged
    assert executor.graces == [3.0]
    assert engine.statistics().claims == 0


async def test_flags_are_up_before_the_workers_are_stopped(autojump_clock, nursery):
    """Also for a caller that is too busy to leave."""

    class Watching(FakeExecutor):
        async def close(self, grace):
            flagged.extend(job.flagged for (job,) in self.waves)

    async def busy_caller():
        async with engine.stream(raw()):
            await trio.sleep_forever()

    flagged = []
    async with open_fake(Watching) as (engine, executor):
        nursery.start_soon(busy_caller)
        await executor.next_job()
    assert flagged == [True]


async def test_a_closed_engine(autojump_clock):
    async with open_fake() as (engine, executor):
        await engine.close()
        await engine.close()
        for call in (engine.generate(raw()), engine.collective_rpc("ping")):
            with pytest.raises(EngineClosedError, match="the engine is closed"):
                await call
    with pytest.raises(EngineClosedError):
        engine.check_health()
    assert executor.graces == [engine.config.shutdown_grace]
    assert engine.statistics().completed == 0
    await engine.wait_idle()


async def test_the_worker_may_let_go_while_the_engine_closes(autojump_clock, outcomes):
    class Patient(FakeExecutor):
        async def close(self, grace):
            for wave in self.waves:
                wave[0].abort()
            self.kill()
            await trio.sleep(grace)

    async with open_fake(Patient) as (engine, executor):
        outcomes.start("a", engine.generate, raw(request_id="a"))
        await executor.next_job()
        outcomes.start("abort", engine.abort, "a")
        await settled()
    assert await outcomes.of("abort") is True
    assert isinstance(await outcomes.of("a"), RequestAborted)
    with pytest.raises(EngineClosedError):  # a worker that ends now is no death
        engine.check_health()


# -- calls to all workers


async def test_a_call_to_every_worker(autojump_clock):
    async with open_fake(num_workers=2) as (engine, _):
        assert await engine.collective_rpc("profile", 3) == [
            (0, "profile", (3,)),
            (1, "profile", (3,)),
        ]


# -- the one-line entry point


def config(**settings):
    return {"executor": ServingExecutor, "warmup": False, **settings}


async def test_generate_returns_results_in_order(autojump_clock):
    prompts = [raw(seed=seed, priority=seed) for seed in range(5)]
    results = await sidestream.engine.generate(config(max_num_seqs=2), prompts)
    assert [value_of(result) for result in results] == [[0], [1], [2], [3], [4]]


async def test_generate_takes_more_prompts_than_the_queue(autojump_clock):
    prompts = [f"prompt {i}" for i in range(20)]
    results = await sidestream.engine.generate(
        config(max_queued_requests=3), prompts, output_type="raw", seed=4
    )
    assert [value_of(result) for result in results] == [[4]] * 20


async def test_generate_takes_one_prompt_and_a_mapping_or_a_config(autojump_clock):
    for settings in (config(), EngineConfig(**config())):
        (result,) = await sidestream.engine.generate(settings, "a", output_type="raw", seed=9)
        assert value_of(result) == [9]


async def test_generate_checks_all_prompts_before_it_starts_anything(autojump_clock):
    class Never(FakeExecutor):
        async def start(self, services):
            pytest.fail("nothing may start")

    with pytest.raises(RequestError, match="unknown parameter 'stepz'"):
        await sidestream.engine.generate(config(executor=Never), ["a"], stepz=3)


async def test_the_first_error_ends_generate_unwrapped(autojump_clock):
    class Failing(FakeExecutor):
        async def dispatch(self, worker, wave):
            await super().dispatch(worker, wave)
            for job in self.waves[-1]:
                job.compute_failed(raised("ValueError: no"))

    with pytest.raises(ExecutionError, match="ValueError: no"):
        await sidestream.engine.generate(config(executor=Failing), ["a", "b"], output_type="raw")


def test_it_runs_on_trio_only():
    async def main():
        async with open_engine(model="synthetic"):
            pass

    with pytest.raises(RuntimeError, match=r"runs on Trio: call this from within trio\.run"):
        asyncio.run(main())
