"""From tensors to what callers asked for, on real threads; and how readers cannot stall a ring."""

import io

import numpy as np
import pytest
import torch
import trio
import trio.testing
from PIL import Image

from sidestream.engine import OutputError
from sidestream.ipc_ext.tensors import HostTensor

from .fake_engines import Outcomes, open_fake, raw
from .fakes import raised

settled = trio.testing.wait_all_tasks_blocked
PICTURE = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(1, 2, 4, 3)
FLOATS = np.linspace(0, 1, 24, dtype=np.float32).reshape(1, 2, 4, 3)
PATIENCE = 90
ORDER = ["compute_done", "output_ready"]


@pytest.fixture
def outcomes(nursery):
    return Outcomes(nursery)


async def output_of(output_type, array, **params):
    """Run a request whose worker returns an array."""
    with trio.fail_after(PATIENCE):
        async with (
            open_fake() as (engine, executor),
            engine.stream("a", output_type=output_type, **params) as events,
        ):
            job = await executor.next_job()
            assert job.data.output_type == output_type
            job.compute_done()
            job.output_ready(job.piece(array))
            return (await events.result()).output


async def test_pictures():
    picture = await output_of("pil", PICTURE)
    assert isinstance(picture, Image.Image)
    np.testing.assert_array_equal(np.asarray(picture), PICTURE[0])


@pytest.mark.parametrize("output_type", ["png", "jpeg", "webp"])
async def test_files(output_type):
    data = await output_of(output_type, PICTURE, output_options={"quality": 50})
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.format, picture.size) == (output_type.upper(), (4, 2))


async def test_arrays():
    np.testing.assert_array_equal(await output_of("uint8", PICTURE), PICTURE[0])
    np.testing.assert_array_equal(await output_of("np", FLOATS.transpose(0, 3, 1, 2)), FLOATS[0])
    tensor = await output_of("pt", FLOATS.transpose(0, 3, 1, 2))
    assert torch.equal(tensor.permute(1, 2, 0), torch.from_numpy(FLOATS[0]))


@pytest.mark.parametrize("nbytes", [16_384, 16_385])
async def test_raw_tensors_small_and_large(nbytes):
    array = np.arange(nbytes, dtype=np.uint64).astype(np.uint8)
    tensor = await output_of("raw", array)
    assert isinstance(tensor, HostTensor)
    np.testing.assert_array_equal(tensor.numpy(), array)


async def test_encoding_does_not_stop_the_event_loop(outcomes, monkeypatch):
    """The stage runs elsewhere: this thread meanwhile answers."""
    entered, go_on = trio.Event(), trio.Event()

    async with open_fake() as (engine, executor):

        def host_stage(tensors, output_type, options):
            trio.from_thread.run_sync(entered.set)
            trio.from_thread.run(go_on.wait)
            return ["a picture"]

        monkeypatch.setattr(engine._host_stage.postprocessor, "host_stage", host_stage)
        outcomes.start("a", engine.generate, "a")
        (await executor.next_job()).finish()
        with trio.fail_after(PATIENCE):
            await entered.wait()
            assert engine.statistics().pending_outputs == 0
            go_on.set()
            assert (await outcomes.of("a")).outputs == ["a picture"]


# -- readers that keep, or do not come


def freed(payloads):
    """Return an event that is set when memory is given back, by whatever thread."""
    event = trio.Event()
    token = trio.lowlevel.current_trio_token()
    payloads.changed = lambda: token.run_sync_soon(event.set)
    return event


@pytest.mark.parametrize("crowded", [False, True])
async def test_a_result_is_ring_memory_only_while_there_is_room(crowded):
    with trio.fail_after(PATIENCE):
        async with open_fake() as (engine, executor):
            executor.crowded = crowded
            event = freed(executor.payloads)
            async with engine.stream(raw(seed=5)) as events:
                (await executor.next_job()).finish()
                result = await events.result()
            if crowded:
                await event.wait()
            assert executor.payloads.held == (not crowded)
            assert result.output.numpy().tolist() == [5]


@pytest.mark.parametrize("words", [ORDER, ORDER[::-1]])
async def test_outputs_that_nobody_comes_for_leave_a_crowded_ring(words):
    with trio.fail_after(PATIENCE):
        async with open_fake() as (engine, executor), engine.stream(raw(seed=5)) as events:
            executor.crowded = True
            event = freed(executor.payloads)
            job = await executor.next_job()
            for word in words:
                getattr(job, word)()
            await event.wait()
            assert executor.payloads.held == 0
            executor.crowded = False
            assert (await events.result()).output.numpy().tolist() == [5]


async def test_a_crowded_ring_does_not_stop_what_failed_or_left(outcomes):
    with trio.fail_after(PATIENCE):
        async with open_fake(dispatch_depth=3) as (engine, executor):
            executor.crowded = True
            for name in "abc":
                outcomes.start(name, engine.generate, raw(request_id=name, seed=1))
                await settled()
            left, failed, well = (wave[0] for wave in executor.waves)
            outcomes.start("abort", engine.abort, "a")
            await outcomes.of("a")
            failed.output_part(failed.piece(PICTURE, 0, 8))
            failed.output_failed(raised("ValueError: no"))
            left.output_ready()
            well.output_ready()
            well.compute_done()
            assert (await outcomes.of("c")).output.numpy().tolist() == [1]
            assert str(await outcomes.of("b")) == "ValueError: no"
            engine.check_health()


@pytest.mark.parametrize(
    ("output_type", "array"),
    [("png", np.zeros((1, 2, 4, 9), np.uint8)), ("pil", np.zeros(3, np.uint8))],
)
async def test_what_cannot_be_encoded_is_an_error_of_the_library(output_type, array):
    refusal = f"^no '{output_type}' can be made of it: ."
    with pytest.raises(OutputError, match=refusal) as failure:
        await output_of(output_type, array)
    assert "Traceback" in failure.value.__notes__[0]
