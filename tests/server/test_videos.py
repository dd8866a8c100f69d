"""Video jobs over HTTP: they outlive their clients, and end with a delete or with the server."""

from __future__ import annotations

import weakref

import httpx2
import numpy as np
import pytest
import trio

from sidestream.engine import DiffusionRequest, open_engine
from sidestream.postprocess import VideoInfo
from sidestream.server import ServerConfig, create_app
from sidestream.server.cli import announce
from sidestream.server.errors import ApiError
from sidestream.server.video_file import PIECE, VideoFile, part_of
from sidestream.server.video_jobs import VideoJob
from sidestream.server.video_requests import make_video_request
from sidestream.server.video_schemas import VideoError, VideoParams

from ..harness.checkpoints import cancel_at_every_step, family
from ..harness.engines import LONG, filming, offer_pipelines
from ..harness.http import client_of, png, served
from ..harness.surroundings import PATIENCE, assert_idle, nothing_left, settled
from ..harness.videos import VIDEOS, assert_error, create, frames_of, ids, made, told, working

SLOW = {"forward_ms": 60_000, "steps": LONG}
JSON = "-H 'Content-Type: application/json'"


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


# -- the file


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("bytes=0-", range(10)),
        ("bytes=0-0", range(1)),
        ("bytes=3-5", range(3, 6)),
        ("BYTES= 3-5 ", range(3, 6)),
        ("bytes=3-999", range(3, 10)),
        ("bytes=-3", range(7, 10)),
        ("bytes=-999", range(10)),
        ("bytes=0-1,4-5", None),
        ("bytes=5-3", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("bytes=\u0663-5", None),
        ("bytes=0-" + "9" * 5000, None),
        ("pages=1-2", None),
        ("", None),
    ],
)
def test_a_range_is_one_part_of_a_file_or_all_of_it(wanted, part):
    assert part_of(wanted, 10) == part


@pytest.mark.parametrize("wanted", ["bytes=10-", "bytes=10-12", "bytes=-0"])
def test_a_part_that_there_is_not_is_refused(wanted):
    with pytest.raises(ApiError) as refusal:
        part_of(wanted, 10)
    assert refusal.value.status_code == 416
    assert refusal.value.headers == {"Content-Range": "bytes */10"}


async def test_a_large_part_is_sent_in_pieces():
    data = bytes(range(256)) * (PIECE // 100)
    sent = []

    async def send(message):
        sent.append(message)

    answer = VideoFile(data, '"a"', f"bytes=7-{len(data) - 9}")
    await answer({"type": "http", "method": "GET"}, None, send)
    pieces = [message["body"] for message in sent[1:]]
    assert b"".join(pieces) == data[7:-8]
    assert [len(piece) for piece in pieces[:2]] == [PIECE, PIECE]


async def test_a_video_is_sent_in_the_parts_that_are_asked_for():
    async with open_engine(filming("uni")) as engine, working(engine) as client:
        content = f"{VIDEOS}/{(await made(client, num_frames=33))['id']}/content"

        async def get(method="GET", **headers):
            headers = {name.replace("_", "-"): value for name, value in headers.items()}
            return await client.request(method, content, headers=headers)

        whole = await get()
        size, tag = len(whole.content), whole.headers["etag"]
        assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "bytes")
        half = size // 2
        parts = [await get(Range=f"bytes=0-{half - 1}"), await get(Range=f"bytes={half}-")]
        assert [part.status_code for part in parts] == [206, 206]
        assert parts[1].headers["content-range"] == f"bytes {half}-{size - 1}/{size}"
        assert parts[1].headers["content-type"] == "video/mp4"
        assert int(parts[1].headers["content-length"]) == size - half
        assert parts[0].content + parts[1].content == whole.content
        assert (await get(Range="bytes=-4", If_Range=tag)).content == whole.content[-4:]
        for other in ('"another"', f"W/{tag}", "Mon, 30 Nov 2026 00:00:00 GMT"):
            assert (await get(Range="bytes=-4", If_Range=other)).content == whole.content
        beyond = await get(Range=f"bytes={size}-")
        assert_error(beyond, 416, param="Range")
        assert beyond.headers["content-range"] == f"bytes */{size}"
        head = await get("HEAD", Range="bytes=0-3")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) == size


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


async def test_a_server_of_videos_says_how_to_make_one(capsys):
    async with open_engine(filming("uni")) as engine:
        announce("http://here", create_app(engine).state.service)
    told = capsys.readouterr().out
    assert f"""curl -s http://here/v1/videos {JSON} -d '{{"prompt": "waves"}}'\n""" in told
    assert "curl -s http://here/v1/videos/ID/content -o video.mp4\n" in told


async def test_without_a_server_there_is_nobody_to_run_jobs():
    async with open_engine(filming("uni")) as engine, client_of(create_app(engine)) as client:
        answer = await client.post(VIDEOS, json={"prompt": "x"})
        assert_error(answer, 503, code="unavailable", word="`serve`")
        assert await ids(client) == []
        await assert_idle(engine)


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_a_job_that_has_ended_holds_its_video_and_no_more(end):
    picture = np.zeros((8, 8, 3), np.uint8)
    request = DiffusionRequest.make("x", request_id="a", extra_args={"image": picture})
    job = VideoJob(request, "a model", "auto", None)
    held = weakref.ref(picture)
    del request, picture
    if end == "complete":
        job.complete(1, b"video", VideoInfo(8, 8, 4, 16.0))
    else:
        job.fail(ApiError(500, "no", code="failed"))
        assert job.error == VideoError(code="failed", message="no")
    assert held() is None
