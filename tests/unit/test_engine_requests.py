"""One request in the engine: its result, its events, its errors."""

import pytest
import trio
import trio.testing

from sidestream.engine import (
    Completed,
    DiffusionRequest,
    DiffusionResult,
    DuplicateRequestError,
    EngineBusyError,
    ExecutionError,
    OutputError,
    Progress,
    Queued,
    RequestAborted,
    RequestError,
    SamplingParams,
    Started,
)

from .fake_engines import Outcomes, open_fake, raw, serve, value_of
from .fakes import FORWARD, aborted, raised

settled = trio.testing.wait_all_tasks_blocked


@pytest.fixture
def outcomes(nursery):
    return Outcomes(nursery)


# -- results


@pytest.mark.parametrize("order", ["compute first", "output first"])
async def test_both_orders_of_the_two_phases(autojump_clock, outcomes, order):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw(seed=42))
        job = await executor.next_job()
        words = [job.compute_done, job.output_ready]
        for say in words if order == "compute first" else words[::-1]:
            await settled()
            assert not outcomes.has("a")
            say()
        assert value_of(await outcomes.of("a")) == [42]


async def test_a_result(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw(request_id="mine", seed=7, num_outputs=2))
        job = await executor.next_job()
        await trio.sleep(4)
        job.finish()
        result = await outcomes.of("a")
    assert isinstance(result, DiffusionResult)
    assert (result.request_id, result.seed, value_of(result)) == ("mine", 7, [7, 8])
    assert result.output is result.outputs[0]
    timings = result.timings
    assert timings.trace.forward_start == FORWARD.forward_start
    assert (timings.forward, timings.total) == (2.5, 4.0)
    assert 0 <= timings.queued <= timings.total
    assert timings.output > 0
    assert timings.postprocess > 0


async def test_what_was_not_said_is_settled_before_the_worker_has_it(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw("a circle", width=8))
        job = await executor.next_job()
        assert job.data.call == {"prompt": "a circle", "width": 8}
        job.finish()
        result = await outcomes.of("a")
        assert job.data.seeds == (result.seed,)
        assert job.request_id == result.request_id


async def test_a_prompt_and_its_parameters_or_a_whole_request(autojump_clock, nursery):
    async with open_fake() as (engine, executor):
        nursery.start_soon(serve, executor)
        loose = await engine.generate("a", seed=1, output_type="raw")
        whole = await engine.generate(
            DiffusionRequest("a", sampling=SamplingParams(seed=1, output_type="raw"))
        )
        assert value_of(loose) == value_of(whole) == [1]


# -- events


async def test_the_events_of_a_stream(autojump_clock, nursery):
    async with open_fake() as (engine, executor):
        nursery.start_soon(serve, executor)
        async with engine.stream(raw(request_id="a")) as events:
            assert events.request_id == "a"
            told = [event async for event in events]
        assert told[:2] == [Queued("a", 0), Started("a", 0)]


async def test_progress_is_told_step_by_step(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(request_id="a")) as events:
        assert await anext(events) == Queued("a", 0)
        job = await executor.next_job()
        assert await anext(events) == Started("a", 0)
        for step in (1, 2):
            job.progress(step, 2)
            assert await anext(events) == Progress("a", step, 2)
        job.finish()
        last = await anext(events)
        assert isinstance(last, Completed)
        assert last.result is await events.result()
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_a_slow_reader_sees_the_latest_progress(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(request_id="a")) as events:
        job = await executor.next_job()
        for step in range(1, 6):
            job.progress(step, None)
        await settled()
        told = [await anext(events) for _ in range(3)]
        assert told == [Queued("a", 0), Started("a", 0), Progress("a", 5, None)]


async def test_a_reader_that_comes_after_the_end_sees_each_kind_once(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(request_id="a")) as events:
        job = await executor.next_job()
        job.progress(1, 2)
        job.progress(2, 2)
        job.finish()
        await settled()
        kinds = [type(event) async for event in events]
        assert kinds == [Queued, Started, Progress, Completed]


async def test_the_position_in_the_queue(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1) as (engine, executor):
        outcomes.start("a", engine.generate, raw())
        await executor.next_job()
        outcomes.start("b", engine.generate, raw())
        await settled()
        async with engine.stream(raw(request_id="c")) as events:
            assert await anext(events) == Queued("c", 1)


async def test_the_result_alone_skips_the_events(autojump_clock, nursery):
    async with open_fake() as (engine, executor):
        nursery.start_soon(serve, executor)
        async with engine.stream(raw(seed=5)) as events:
            assert value_of(await events.result()) == [5]
            assert await events.result() is await events.result()
            assert [event async for event in events] == []


# -- errors


async def test_an_error_of_the_pipeline_fails_its_request_alone(autojump_clock, outcomes):
    async with open_fake(max_num_seqs=3) as (engine, executor):
        for seed, request_id in enumerate("abc"):
            outcomes.start(request_id, engine.generate, raw(seed=seed, request_id=request_id))
        jobs = {job.request_id: job for job in await executor.next_wave()}
        jobs["a"].compute_failed(raised("ValueError: bad size"))
        jobs["b"].finish()
        error = await outcomes.of("a")
        assert isinstance(error, ExecutionError)
        assert str(error) == "ValueError: bad size"
        assert error.remote_type == "ValueError"
        assert value_of(await outcomes.of("b")) == [1]
        jobs["c"].finish()
        assert value_of(await outcomes.of("c")) == [2]
        assert engine.statistics().failed == 1


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("ValueError", "Traceback:\n  here\nValueError: no", "ValueError: no"),
        (
            "Lost",
            "Traceback:\n  here\na.b.Lost: of two\nlines: here",
            "a.b.Lost: of two\nlines: here",
        ),
        ("Odd", "Traceback:\n  here\nnothing known", "nothing known"),
        ("Silent", "", "Silent"),
    ],
)
def test_an_error_is_told_with_all_of_its_message(kind, text, message):
    assert str(ExecutionError(kind, text)) == message


async def test_an_error_of_the_output(autojump_clock, outcomes):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw())
        job = await executor.next_job()
        job.compute_done()
        job.output_failed(raised("MemoryError: out of memory"))
        assert str(await outcomes.of("a")) == "MemoryError: out of memory"
        engine.check_health()


async def test_an_error_ends_the_events(autojump_clock):
    async with open_fake() as (engine, executor), engine.stream(raw(request_id="a")) as events:
        job = await executor.next_job()
        job.compute_failed(raised())
        assert [await anext(events), await anext(events)] == [Queued("a", 0), Started("a", 0)]
        for _ in range(2):
            with pytest.raises(ExecutionError):
                await anext(events)
        with pytest.raises(ExecutionError):
            await events.result()


async def test_a_worker_that_lets_go_by_itself(autojump_clock, outcomes):
    """As its last word about a flag that was meant for a later request, say; it is an end."""
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw(request_id="a"))
        (await executor.next_job()).compute_failed(aborted())
        assert isinstance(await outcomes.of("a"), RequestAborted)
        assert engine.statistics().aborted == 1


async def test_an_error_of_the_host_stage(autojump_clock, outcomes, monkeypatch):
    async with open_fake() as (engine, executor):

        def host_stage(tensors, output_type, options):
            raise ValueError("no picture")

        monkeypatch.setattr(engine._host_stage.postprocessor, "host_stage", host_stage)
        async with engine.stream(raw()) as events:
            (await executor.next_job()).finish()
            with pytest.raises(OutputError, match="no picture"):
                await events.result()
        assert executor.payloads.held == 0
        assert engine.statistics().failed == 1


# -- refusals


async def test_a_wrong_request_takes_no_place(autojump_clock):
    async with open_fake() as (engine, executor):
        with pytest.raises(RequestError, match="did you mean 'strength'"):
            await engine.generate(raw(extra_args={"strenth": 1}))
        with pytest.raises(RequestError, match="unknown parameter 'stepz'"):
            await engine.generate("a", stepz=3)
        assert engine.statistics().claims == 0
        assert executor.waves == []


async def test_a_full_queue_refuses_before_it_looks_at_the_request(autojump_clock, outcomes):
    async with open_fake(dispatch_depth=1, max_queued_requests=2) as (engine, executor):
        outcomes.start("running", engine.generate, raw())
        job = await executor.next_job()
        outcomes.start("b", engine.generate, raw())
        outcomes.start("c", engine.generate, raw())
        await settled()
        with pytest.raises(EngineBusyError, match="2 requests are waiting"):
            await engine.generate(raw(extra_args={"nonsense": 1}))
        job.compute_done()
        await executor.next_job()
        outcomes.start("d", engine.generate, raw())
        await settled()
        assert not outcomes.has("d")


async def test_an_id_is_unique_while_its_request_lives(autojump_clock, nursery, outcomes):
    async with open_fake() as (engine, executor):
        outcomes.start("a", engine.generate, raw(request_id="x"))
        await settled()
        with pytest.raises(DuplicateRequestError, match="request_id 'x' is already in the engine"):
            await engine.generate(raw(request_id="x"))
        nursery.start_soon(serve, executor)
        await outcomes.of("a")
        assert await engine.generate(raw(request_id="x"))
