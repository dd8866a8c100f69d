"""Video jobs over HTTP: they outlive their clients, and end with a delete or with the server."""

from __future__ import annotations

import io
from contextlib import asynccontextmanager

import av
import httpx2
import numpy as np
import pytest
import trio

from sidestream.engine import open_engine
from sidestream.server import ServerConfig, create_app
from sidestream.server.video_jobs import VideoJob
from sidestream.server.video_requests import make_video_request
from sidestream.server.video_schemas import VideoParams

from ..harness.checkpoints import cancel_at_every_step, family
from ..harness.engines import LONG, filming, offer_pipelines, painting
from ..harness.http import client_of, png, served
from ..harness.surroundings import PATIENCE, assert_idle, nothing_left, settled

VIDEOS = "/v1/videos"
SLOW = {"forward_ms": 60_000, "steps": LONG}


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


@asynccontextmanager
async def working(engine, **settings):
    """Offer a client of an app whose jobs run, without a socket between them."""
    app = create_app(engine, ServerConfig(**settings))
    async with trio.open_nursery() as nursery:
        await nursery.start(app.state.videos.run)
        async with client_of(app) as client:
            yield client
        nursery.cancel_scope.cancel()


async def create(client, **fields):
    """Start a job, and return what is told of it."""
    answer = await client.post(VIDEOS, json={"prompt": "x", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def told(client, video, *statuses):
    """Wait until a job is at one of some statuses, and return what is told of it."""
    with trio.fail_after(PATIENCE):
        while True:
            answer = await client.get(f"{VIDEOS}/{video['id']}")
            assert answer.status_code == 200, answer.text
            if answer.json()["status"] in statuses:
                return answer.json()
            await trio.lowlevel.checkpoint()


async def made(client, **fields):
    """Make a video, and return what is told of it."""
    video = await told(client, await create(client, **fields), "completed", "failed")
    assert video["error"] is None
    return video


async def ids(client, **query):
    return [video["id"] for video in (await client.get(VIDEOS, params=query)).json()["data"]]


def frames_of(data):
    with av.open(io.BytesIO(data)) as mp4:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in mp4.decode(video=0)])


def assert_error(answer, status, *, param=None, code=None, word=""):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert word in error["message"]


# -- what is made


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("random:wan", {}),
        ("random:wan", {"mode": "step"}),
        ("random:wan-chunks", {"mode": "step", "streaming_output": True}),
    ],
)
async def test_a_video_is_the_one_that_the_engine_makes(model, settings):
    async with (
        open_engine(model=model, device="cpu", **settings) as engine,
        working(engine) as client,
    ):
        expected = await engine.generate(
            "waves", seed=7, output_type="uint8", num_inference_steps=2, streaming_output=False
        )
        video = await create(client, prompt="waves", seed=7, num_inference_steps=2, fps=8)
        assert video["object"] == "video"
        assert video["status"] in ("queued", "in_progress")
        assert video["size"] == "32x32"
        frames = video["num_frames"]
        video = await told(client, video, "completed", "failed")
        assert video["error"] is None
        assert (video["progress"], video["seed"], video["fps"]) == (100, 7, 8)
        assert (video["size"], video["num_frames"]) == ("32x32", frames)
        assert video["seconds"] == f"{frames / 8:g}"
        assert video["expires_at"] - video["completed_at"] == 3600
        answer = await client.get(f"{VIDEOS}/{video['id']}/content")
        assert answer.headers["content-type"] == "video/mp4"
        assert int(answer.headers["content-length"]) == len(answer.content)
        pixels = frames_of(answer.content)
        assert pixels.shape == expected.output.shape
        del expected
        await assert_idle(engine)


async def test_its_frames_are_in_order_and_right():
    async with open_engine(filming("uni")) as engine, working(engine) as client:
        video = await made(client, seed=100, num_frames=9, size="48x32")
        assert video["size"] == "48x32"
        data = (await client.get(f"{VIDEOS}/{video['id']}/content")).content
        for index, frame in enumerate(frames_of(data)):
            assert np.abs(frame.astype(int) - (100 + 10 * index)).max() <= 3


async def test_seconds_and_frames_per_second_say_how_long_it_is():
    async with open_engine(filming("uni")) as engine, working(engine, video_fps=10) as client:
        for fields, frames, seconds in (
            ({}, 5, "0.5"),
            ({"num_frames": 3}, 3, "0.3"),
            ({"seconds": "2"}, 20, "2"),
            ({"seconds": 0.5, "fps": 24}, 12, "0.5"),
            ({"seconds": 0.001}, 1, "0.1"),
        ):
            video = await made(client, **fields)
            assert (video["num_frames"], video["seconds"]) == (frames, seconds)


async def test_a_form_can_bring_a_picture_to_start_from():
    async with open_engine(filming("uni")) as engine, working(engine) as client:
        files = {"input_reference": ("a.png", png(color=(77, 77, 77)), "image/png")}
        data = {"prompt": "x", "seconds": "0.25", "seed": "5"}
        answer = await client.post(VIDEOS, data=data, files=files)
        assert answer.status_code == 200, answer.text
        video = await told(client, answer.json(), "completed")
        frames = frames_of((await client.get(f"{VIDEOS}/{video['id']}/content")).content)
        assert len(frames) == 4
        assert np.abs(frames[0].astype(int) - 77).max() <= 3
        answer = await client.post(VIDEOS, data=data)  # a form without a file
        assert (await told(client, answer.json(), "completed"))["num_frames"] == 4


async def test_a_job_tells_how_far_it_is():
    config = filming("uni", options={"forward_ms": 60_000, "steps": LONG}, dispatch_depth=1)
    async with open_engine(config) as engine, working(engine) as client:
        first = await create(client, request_id="mine")
        assert first["request_id"] == "mine"
        others = [await create(client) for _ in range(2)]
        first = await told(client, first, "in_progress")
        assert first["queue_position"] is None
        last = (await client.get(f"{VIDEOS}/{others[1]['id']}")).json()
        assert (last["status"], last["queue_position"], last["progress"]) == ("queued", 1, 0)
        while first["step"] is None:
            first = await told(client, first, "in_progress")
        assert first["total"] == LONG
        assert first["progress"] == 99 * first["step"] // LONG
        assert (await client.get("/v1/requests/mine")).json()["state"] == "running"
        for video in (others[1], first, others[0]):
            await client.delete(f"{VIDEOS}/{video['id']}")
        await assert_idle(engine)


async def test_a_list_has_pages():
    async with open_engine(filming("uni")) as engine, working(engine) as client:
        assert (await client.get(VIDEOS)).json() == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }
        videos = [(await made(client))["id"] for _ in range(3)]
        page = (await client.get(VIDEOS, params={"limit": 2, "order": "asc"})).json()
        assert [video["id"] for video in page["data"]] == videos[:2]
        assert (page["first_id"], page["last_id"]) == (videos[0], videos[1])
        assert page["has_more"]
        page = (await client.get(VIDEOS, params={"after": videos[1], "order": "asc"})).json()
        assert [video["id"] for video in page["data"]] == videos[2:]
        assert not page["has_more"]
        assert await ids(client) == videos[::-1]
        assert_error(await client.get(VIDEOS, params={"after": "video_0"}), 404)
        assert_error(await client.get(VIDEOS, params={"limit": 101}), 400, param="limit")


# -- how they end


@pytest.mark.parametrize("mode", ["request", "step"])
@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_a_delete_ends_the_request_on_the_device(executor, mode):
    async with (
        open_engine(filming(executor, options=SLOW, mode=mode)) as engine,
        working(engine) as client,
    ):
        video = await told(client, await create(client, request_id="a"), "in_progress")
        answer = await client.delete(f"{VIDEOS}/{video['id']}")
        assert answer.json() == {"id": video["id"], "object": "video.deleted", "deleted": True}
        assert engine.statistics().claims == 0, "the answer comes when the worker has let go"
        assert engine.statistics().aborted == 1
        assert_error(await client.get(f"{VIDEOS}/{video['id']}"), 404, code="video_not_found")
        assert_error(await client.delete(f"{VIDEOS}/{video['id']}"), 404)
        assert (await client.get("/v1/requests/a")).json()["state"] == "cancelled"
        await assert_idle(engine)


async def test_a_finished_video_can_be_deleted():
    async with open_engine(filming("uni")) as engine, working(engine) as client:
        video = await made(client)
        assert (await client.delete(f"{VIDEOS}/{video['id']}")).status_code == 200
        assert_error(await client.get(f"{VIDEOS}/{video['id']}/content"), 404)
        assert await ids(client) == []


async def test_a_job_outlives_the_client_that_made_it():
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(filming("uni", options={"forward_ms": 300, "steps": 30})) as engine,
            served(engine) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            connection = await server.post(VIDEOS, {"prompt": "x", "request_id": "a"})
            await settled(lambda: len(list(server.app.state.videos)) == 1)
            await connection.aclose()
            (video,) = (await client.get(VIDEOS)).json()["data"]
            assert video["request_id"] == "a"
            await told(client, video, "completed")
            await assert_idle(engine)


async def test_who_leaves_while_a_job_is_made_leaves_a_whole_one_or_none():
    async with open_engine(filming("uni", options=SLOW)) as engine, trio.open_nursery() as nursery:
        app = create_app(engine)
        videos = app.state.videos
        await nursery.start(videos.run)

        def job():
            params = VideoParams(prompt="x")
            config, capabilities = ServerConfig(), engine.capabilities
            request = make_video_request(params, "a", config, capabilities, None)
            return VideoJob(request, "movies", "auto", None)

        async def check():
            for left in list(videos):
                assert left.ended is None
                await videos.delete(left.id)
            assert list(videos) == []
            await assert_idle(engine)
            assert not app.state.service.requests.is_live("a")

        steps = await cancel_at_every_step(lambda: videos.start(job()), check, counts=family)
        assert steps >= 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("grace", [0.0, 10 * PATIENCE])
async def test_stopping_the_server_ends_jobs(grace):
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(filming("uni", options=SLOW)) as engine,
            nothing_left(at_once=False),
            served(engine, shutdown_grace_s=grace) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            await told(client, await create(client), "in_progress")
            server.stop.set()
            await server.ended.wait()
            assert list(server.app.state.videos) == []
            await assert_idle(engine)


async def test_a_cancelled_server_ends_jobs():
    with trio.fail_after(PATIENCE):
        async with open_engine(filming("uni", options=SLOW)) as engine:
            async with (
                trio.open_nursery() as nursery,
                served(engine) as server,
                httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
            ):
                await told(client, await create(client), "in_progress")
                nursery.cancel_scope.cancel()
            await assert_idle(engine)


async def test_without_a_server_there_is_nobody_to_run_jobs():
    async with open_engine(filming("uni")) as engine, client_of(create_app(engine)) as client:
        answer = await client.post(VIDEOS, json={"prompt": "x"})
        assert_error(answer, 503, code="unavailable", word="`serve`")
        assert await ids(client) == []
        await assert_idle(engine)


# -- what fails


async def test_a_failed_job_says_why(caplog):
    options = {"steps": 3, "fail_at_step": 1}
    async with open_engine(filming("uni", options=options)) as engine, working(engine) as client:
        for fields, code, word in (
            ({"prompt": "fail"}, "failed", "the pipeline failed"),
            ({"prompt": "flat"}, "failed", "could not be made"),
            ({"size": "64x63"}, "unsupported", "divisible by 8"),
        ):
            video = await told(client, await create(client, **fields), "completed", "failed")
            assert video["status"] == "failed"
            assert video["error"]["code"] == code
            assert word in video["error"]["message"]
            assert video["completed_at"] is None
            answer = await client.get(f"{VIDEOS}/{video['id']}/content")
            assert_error(answer, 409, code="not_completed", word="failed")
        await made(client)
        assert "no video (F, H, W, C)" in caplog.text, "for those who run the server"
        await assert_idle(engine)


async def test_a_job_can_be_cancelled_by_its_request_or_by_a_deadline():
    async with open_engine(filming("uni", options=SLOW)) as engine, working(engine) as client:
        video = await told(client, await create(client, request_id="a"), "in_progress")
        assert_error(await client.get(f"{VIDEOS}/{video['id']}/content"), 409)
        again = await client.post(VIDEOS, json={"prompt": "x", "request_id": "a"})
        assert_error(again, 409, param="request_id")
        await client.post("/v1/requests/a/cancel")
        video = await told(client, video, "failed")
        assert video["error"]["code"] == "cancelled"
        video = await told(client, await create(client, timeout_s=0.2), "failed")
        assert video["error"]["code"] == "deadline_exceeded"
        await assert_idle(engine)


async def test_jobs_fail_with_the_engine():
    async with open_engine(filming("uni", options=SLOW)) as engine, working(engine) as client:
        video = await told(client, await create(client), "in_progress")
        await engine.close()
        video = await told(client, video, "failed")
        assert video["error"]["code"] == "unavailable"
        assert_error(await client.post(VIDEOS, json={"prompt": "x"}), 503)
        assert await ids(client) == [video["id"]]


# -- limits

INVALID = [
    ({}, "prompt", "required"),
    ({"prompt": "x" * 101}, "prompt", "100"),
    ({"prompt": "x", "seconds": 0}, "seconds", "0"),
    ({"prompt": "x", "seconds": "long"}, "seconds", "number"),
    ({"prompt": "x", "seconds": 1.3}, "seconds", "20 frames"),
    ({"prompt": "x", "num_frames": 21}, "num_frames", "20 frames"),
    ({"prompt": "x", "seconds": 1, "num_frames": 4}, "num_frames", "seconds"),
    ({"prompt": "x", "num_frames": 0}, "num_frames", "1"),
    ({"prompt": "x", "fps": 0}, "fps", "1"),
    ({"prompt": "x", "fps": 121}, "fps", "120"),
    ({"prompt": "x", "size": "64"}, "size", "pattern"),
    ({"prompt": "x", "size": "264x64"}, "size", "256"),
    ({"prompt": "x", "size": "128x128", "num_frames": 20}, "size", "262144"),
    ({"prompt": "x", "num_inference_steps": 11}, "num_inference_steps", "10"),
    ({"prompt": "x", "priority": 1}, "priority", "0"),
    ({"prompt": "x", "seed": -1}, "seed", "0"),
    ({"prompt": "x", "timeout_s": 0}, "timeout_s", "0"),
    ({"prompt": "x", "request_id": "a/b"}, "request_id", "pattern"),
    ({"prompt": "x", "num_frame": 3}, "num_frame", "'num_frames'"),
    ({"prompt": "x", "n": 3}, "n", "no such field"),
    ({"prompt": "x", "input_reference": "http://localhost/"}, "input_reference", ""),
    ({"prompt": "x", "guidance_scale": "NaN"}, "guidance_scale", "finite"),
]


async def test_a_wrong_field_is_named():
    limits = {
        "max_frames": 20,
        "max_side": 256,
        "max_video_pixels": 1 << 18,
        "max_steps": 10,
        "max_prompt_chars": 100,
    }
    async with open_engine(filming("uni")) as engine, working(engine, **limits) as client:
        for body, param, word in INVALID:
            for kind in ("json", "data") if body else ("json",):
                answer = await client.post(VIDEOS, **{kind: body})
                assert_error(answer, 400, param=param, code="invalid_value", word=word)
        assert engine.statistics().completed == 1, "nothing but the warm-up ran"
        assert await ids(client) == []


async def test_odd_bodies_are_the_fault_of_the_client():
    async with open_engine(filming("uni")) as engine, working(engine) as client:
        surrogate = rb'{"prompt": "\ud800"}'
        for content in (b"{", b"\xff", b"", b"[1]", b"null", b"[" * 100_000, surrogate):
            assert_error(await client.post(VIDEOS, content=content), 400)
        headers = {"Content-Type": "multipart/form-data; boundary=a"}
        assert_error(await client.post(VIDEOS, content=b"--b\r\n", headers=headers), 400)
        headers = {"Content-Type": "multipart/form-data"}
        assert_error(await client.post(VIDEOS, content=b"x", headers=headers), 400)
        files = {"input_reference": ("a.png", b"no picture")}
        answer = await client.post(VIDEOS, data={"prompt": "x"}, files=files)
        assert_error(answer, 400, param="input_reference", code="invalid_image")
        files = [("input_reference", ("a.png", png()))] * 2
        assert_error(await client.post(VIDEOS, data={"prompt": "x"}, files=files), 400)


async def test_what_the_model_cannot_do_is_told_at_once():
    async with open_engine(painting("uni")) as engine, working(engine) as client:
        answer = await client.post(VIDEOS, json={"prompt": "x"})
        assert_error(answer, 422, code="unsupported", word="makes image, not video")
    async with (
        open_engine(model="random:wan", device="cpu", warmup=False) as engine,
        working(engine) as client,
    ):
        answer = await client.post(VIDEOS, json={"prompt": "x", "model": "sora-2"})
        assert_error(answer, 404, param="model", code="model_not_found")
        files = {"input_reference": ("a.png", png())}
        answer = await client.post(VIDEOS, data={"prompt": "x"}, files=files)
        assert_error(answer, 422, param="input_reference", code="unsupported")
        await assert_idle(engine)


async def test_too_many_jobs_are_refused_before_their_bodies_are_read():
    async with (
        open_engine(filming("uni", options=SLOW)) as engine,
        working(engine, max_videos=2) as client,
    ):
        videos = [await create(client) for _ in range(2)]
        answer = await client.post(VIDEOS, content=b"not looked at")
        assert_error(answer, 429, code="busy", word="max_videos")
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        await client.delete(f"{VIDEOS}/{videos[0]['id']}")
        third = await create(client)
        assert await ids(client) == [third["id"], videos[1]["id"]]


async def test_a_full_queue_is_told():
    config = filming("uni", options=SLOW, max_queued_requests=1, dispatch_depth=1)
    async with open_engine(config) as engine, working(engine) as client:
        await told(client, await create(client), "in_progress")
        await create(client)
        answer = await client.post(VIDEOS, content=b"not looked at")
        assert_error(answer, 429, code="busy", word="max_queued_requests")
        assert len(await ids(client)) == 2


async def test_the_oldest_videos_make_room_for_new_ones():
    async with open_engine(filming("uni")) as engine, working(engine, max_videos=2) as client:
        first, second, third = [(await made(client))["id"] for _ in range(3)]
        assert await ids(client) == [third, second]
        assert_error(await client.get(f"{VIDEOS}/{first}/content"), 404)
        refused = await client.post(VIDEOS, json={"prompt": "x", "num_frames": 0})
        assert refused.status_code == 400
        assert await ids(client) == [third, second], "what is refused costs nobody a video"


async def test_videos_have_so_many_bytes_together():
    async with open_engine(filming("uni")) as engine:
        async with working(engine) as client:
            video = await made(client)
            size = len((await client.get(f"{VIDEOS}/{video['id']}/content")).content)
        async with working(engine, max_video_bytes=2 * size + size // 2) as client:
            _, second, third = [(await made(client))["id"] for _ in range(3)]
            assert await ids(client) == [third, second]
        async with working(engine, max_video_bytes=size // 2) as client:
            video = await told(client, await create(client), "completed", "failed")
            assert video["error"]["code"] == "too_large"
        await assert_idle(engine)


async def test_videos_are_kept_for_some_time():
    async with open_engine(filming("uni")) as engine, working(engine, video_ttl_s=0.01) as client:
        await create(client)
        with trio.fail_after(PATIENCE):
            while await ids(client):
                pass
        await assert_idle(engine)


async def test_videos_need_a_key_where_all_else_does():
    app = create_app(None, ServerConfig(api_keys=("key",)))
    async with client_of(app) as client:
        for method, path in (
            ("POST", VIDEOS),
            ("GET", VIDEOS),
            ("GET", f"{VIDEOS}/a"),
            ("GET", f"{VIDEOS}/a/content"),
            ("DELETE", f"{VIDEOS}/a"),
        ):
            assert_error(await client.request(method, path), 401)
