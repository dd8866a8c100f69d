"""The official client of OpenAI, unmodified, against a server."""

from __future__ import annotations

import threading

import numpy as np
import openai
import pytest
import trio

from sidestream.engine import open_engine
from sidestream.postprocess import read_video_info

from ..harness.engines import LONG, filming, offer_pipelines, painting
from ..harness.http import picture_of, png, served
from ..harness.surroundings import PATIENCE, assert_idle, settled

SLOW = {"forward_ms": 60_000, "steps": LONG}
KEY = "sk-test"


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


async def in_thread(server, scenario, *, retries=0, patience=PATIENCE):
    """Run a scenario, which gets a client, beside the server."""
    url = f"{server.url}/v1"

    def run():
        options = {"max_retries": retries, "timeout": patience}
        with openai.OpenAI(base_url=url, api_key=KEY, **options) as client:
            return scenario(client)

    with trio.fail_after(PATIENCE):
        return await trio.to_thread.run_sync(run)


async def test_generate_edit_and_list():
    def scenario(client):
        (model,) = client.models.list()
        answer = client.images.generate(
            model=model.id,
            prompt="x",
            n=2,
            size="64x32",
            quality="high",
            output_format="webp",
            output_compression=80,
            user="me",
            extra_body={"seed": 5, "num_inference_steps": 3},
        )
        assert [picture_of(datum.b64_json).size for datum in answer.data] == [(64, 32)] * 2
        assert answer.size == "64x32"
        assert answer.output_format == "webp"
        assert answer.quality == "high"
        assert [datum.seed for datum in answer.data] == [5, 6]
        for image in (png(color=(77,) * 3), [("a.png", png(color=(77,) * 3))]):
            answer = client.images.edit(image=image, prompt="x", model=model.id)
            assert np.unique(picture_of(answer.data[0].b64_json)).tolist() == [77]
        assert client.models.retrieve(model.id) == model

    async with open_engine(painting("uni")) as engine, served(engine, api_keys=(KEY,)) as server:
        await in_thread(server, scenario)
        await assert_idle(engine)


async def test_stream_with_partial_images():
    def scenario(client):
        stream = client.images.generate(
            prompt="a small green star on a black background",
            stream=True,
            partial_images=3,
            output_format="jpeg",
            extra_body={"num_inference_steps": 8},
        )
        *partial, last = list(stream)
        assert {event.type for event in partial} == {"image_generation.partial_image"}
        assert [event.partial_image_index for event in partial] == list(range(len(partial)))
        assert last.type == "image_generation.completed"
        assert {picture_of(event.b64_json).size for event in (*partial, last)} == {(128, 128)}
        return len(partial)

    config = {"model": "shapes", "device": "cpu", "mode": "step"}
    async with open_engine(config) as engine, served(engine) as server:
        assert 1 <= await in_thread(server, scenario) <= 3
        await assert_idle(engine)


async def test_each_error_has_its_class():
    options = {"forward_ms": 60_000, "steps": 1000, "fail_at_step": 0}
    config = painting("uni", options=options, warmup=False)

    def raises(error, call, **fields):
        with pytest.raises(error) as caught:
            call(**{"prompt": "x", **fields})
        return caught.value

    def scenario(client):
        generate = client.images.generate
        bad = raises(openai.BadRequestError, generate, n=11)
        assert bad.param == "n"
        assert bad.body["code"] == "invalid_value"
        assert bad.request_id
        raises(openai.NotFoundError, generate, model="dall-e-3")
        raises(openai.UnprocessableEntityError, generate, size="64x63")
        late = raises(openai.InternalServerError, generate, extra_body={"timeout_s": 0.05})
        assert late.status_code == 504
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        # A failure that would be the same again is not tried again.
        failed = raises(openai.InternalServerError, generate, prompt="fail")
        assert failed.body["code"] == "failed"

    async with open_engine(config) as engine, served(engine, api_keys=(KEY,)) as server:
        await in_thread(server, scenario, retries=3)
        await assert_idle(engine)
        assert engine.statistics().failed == 3, "a size, a deadline, a failure: each once"


async def test_an_error_in_a_stream_is_raised():
    def scenario(client):
        with pytest.raises(openai.APIError, match="the pipeline failed"):
            list(client.images.generate(prompt="fail", stream=True))

    config = painting("uni", options={"steps": 3, "fail_at_step": 1})
    async with open_engine(config) as engine, served(engine) as server:
        await in_thread(server, scenario)
        await assert_idle(engine)


async def test_a_full_queue_is_a_rate_limit():
    config = painting("uni", options=SLOW, max_queued_requests=1)

    def scenario(client):
        with pytest.raises(openai.RateLimitError) as caught:
            client.images.generate(prompt="x")
        assert int(caught.value.response.headers["retry-after"]) >= 1

    async with (
        open_engine(config) as engine,
        served(engine) as server,
        trio.open_nursery() as nursery,
    ):
        for count in (1, 2, 3):  # one runs, one lies in the worker's ring, one waits
            nursery.start_soon(engine.generate, "x")
            await settled(lambda count=count: engine.statistics().claims == count)
            await settled(lambda count=count: engine.statistics().waiting == max(0, count - 2))
        await in_thread(server, scenario)
        nursery.cancel_scope.cancel()


async def test_a_timeout_of_the_client_ends_the_request():
    def scenario(client):
        with pytest.raises(openai.APITimeoutError):
            client.images.generate(prompt="x")

    async with open_engine(painting("uni", options=SLOW)) as engine, served(engine) as server:
        await in_thread(server, scenario, patience=0.3)
        await assert_idle(engine)
        assert engine.statistics().aborted == 1


async def test_closing_a_stream_ends_the_request():
    begun, go = threading.Event(), threading.Event()

    def scenario(client):
        stream = client.images.generate(prompt="x", stream=True)
        begun.set()
        assert go.wait(PATIENCE)
        stream.close()

    async with open_engine(painting("uni", options=SLOW)) as engine, served(engine) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, server, scenario)
            await trio.to_thread.run_sync(begun.wait, PATIENCE)
            assert engine.statistics().claims == 1
            go.set()
        await assert_idle(engine)
        assert engine.statistics().aborted == 1


OUTDATED = "ignore:The Sora API:DeprecationWarning"
"""So the client calls all methods of the Videos API, whoever serves it."""


@pytest.mark.filterwarnings(OUTDATED)
async def test_videos_are_made_polled_listed_and_deleted():
    def scenario(client):
        (model,) = client.models.list()
        picture = ("a.png", png(color=(77,) * 3))
        videos = [
            client.videos.create_and_poll(prompt="x", model=model.id, poll_interval_ms=10),
            client.videos.create_and_poll(
                prompt="x", seconds="4", size="64x32", input_reference=picture
            ),
        ]
        assert [video.status for video in videos] == ["completed"] * 2
        assert [video.progress for video in videos] == [100] * 2
        content = client.videos.download_content(videos[1].id).read()
        assert read_video_info(content) == (64, 32, 64, 16)
        assert (videos[1].seconds, videos[1].size) == ("4", "64x32")
        assert client.videos.retrieve(videos[0].id) == videos[0]
        first = client.videos.list(limit=1, order="asc")
        assert [video.id for video in first] == [video.id for video in videos], "of all pages"
        assert client.videos.delete(videos[0].id).deleted
        with pytest.raises(openai.NotFoundError):
            client.videos.retrieve(videos[0].id)
        assert [video.id for video in client.videos.list()] == [videos[1].id]

    async with open_engine(filming("uni")) as engine, served(engine, api_keys=(KEY,)) as server:
        await in_thread(server, scenario)
        await assert_idle(engine)


@pytest.mark.filterwarnings(OUTDATED)
async def test_a_video_is_deleted_while_it_is_made():
    def scenario(client):
        extra = {"num_frames": 3, "seed": 5, "fps": 8}
        video = client.videos.create(prompt="x", extra_body=extra)
        assert (video.num_frames, video.seed, video.fps) == (3, 5, 8)
        while client.videos.retrieve(video.id).status != "in_progress":
            pass
        with pytest.raises(openai.ConflictError):
            client.videos.download_content(video.id)
        assert client.videos.delete(video.id).deleted
        with pytest.raises(openai.BadRequestError) as caught:
            client.videos.create(prompt="x", size="1x99999")
        assert caught.value.param == "size"

    async with open_engine(filming("uni", options=SLOW)) as engine, served(engine) as server:
        await in_thread(server, scenario)
        await assert_idle(engine)
        assert engine.statistics().aborted == 1
