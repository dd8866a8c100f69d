"""Videos that are refused or fail, and the limits within which they are kept."""

from __future__ import annotations

import pytest
import trio

from sidestream.engine import open_engine
from sidestream.server import ServerConfig, create_app

from ..harness.engines import LONG, filming, offer_pipelines, painting
from ..harness.http import client_of, png
from ..harness.surroundings import PATIENCE, assert_idle
from ..harness.videos import VIDEOS, assert_error, create, ids, made, told, working

SLOW = {"forward_ms": 60_000, "steps": LONG}


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


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
    ({"prompt": " "}, "prompt", "empty"),
    ({"prompt": "x" * 101}, "prompt", "100"),
    ({"prompt": "x", "seconds": 0}, "seconds", "0"),
    ({"prompt": "x", "seconds": "long"}, "seconds", "number"),
    ({"prompt": "x", "seconds": 1.3}, "seconds", "20 frames"),
    ({"prompt": "x", "num_frames": 21}, "num_frames", "20 frames"),
    ({"prompt": "x", "seconds": 1, "num_frames": 4}, "num_frames", "seconds"),
    ({"prompt": "x", "num_frames": 0}, "num_frames", "1"),
    ({"prompt": "x", "fps": 0}, "fps", "1"),
    ({"prompt": "x", "fps": 121}, "fps", "120"),
    ({"prompt": "x", "size": "64"}, "size", "WIDTHxHEIGHT"),
    ({"prompt": "x", "size": "264x64"}, "size", "256"),
    ({"prompt": "x", "size": "128x128", "num_frames": 20}, "size", "262144"),
    ({"prompt": "x", "num_inference_steps": 11}, "num_inference_steps", "10"),
    ({"prompt": "x", "priority": 1}, "priority", "0"),
    ({"prompt": "x", "seed": -1}, "seed", "0"),
    ({"prompt": "x", "timeout_s": 0}, "timeout_s", "0"),
    ({"prompt": "x", "request_id": "a/b"}, "request_id", "pattern"),
    ({"prompt": "x", "num_frame": 3}, "num_frame", "'num_frames'"),
    ({"prompt": "x", "n": 3}, "n", "no such field"),
    ({"prompt": "x", "input_reference": "a.png"}, "input_reference", "=@picture.png"),
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
        assert_error(answer, 422, param="model", code="unsupported", word="makes image, not video")
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
