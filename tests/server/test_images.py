"""Pictures over HTTP: what is asked for comes, and in the shape of the OpenAI API."""

from __future__ import annotations

import json

import numpy as np
import pytest
import trio

from sidestream.engine import open_engine

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.http import EDITS, GENERATIONS, asgi_client, events_of, picture_of, png
from ..harness.surroundings import assert_idle


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


async def test_a_picture_is_the_one_that_the_engine_makes():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        expected = await engine.generate("x", seed=7, output_type="pil")
        answer = await client.post(GENERATIONS, json={"prompt": "x", "seed": 7})
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert np.array_equal(picture_of(body["data"][0]["b64_json"]), expected.output)
        assert body["data"][0]["seed"] == 7
        assert body["size"] == "64x64"
        assert body["output_format"] == "png"
        assert body["request_id"] == answer.headers["x-request-id"]
        assert set(body["timings"]) == {"queued", "forward", "output", "postprocess", "total"}
        assert int(answer.headers["content-length"]) == len(answer.content)
        await assert_idle(engine)


async def test_several_pictures_have_seeds_that_count_up():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        answer = await client.post(GENERATIONS, json={"prompt": "x", "seed": 40, "n": 3})
        data = answer.json()["data"]
        assert [datum["seed"] for datum in data] == [40, 41, 42]
        assert len({datum["b64_json"] for datum in data}) == 3


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
async def test_size_and_format_are_as_asked(kind):
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        fields = {"prompt": "x", "size": "48x32", "output_format": kind}
        body = (await client.post(GENERATIONS, json=fields)).json()
        picture = picture_of(body["data"][0]["b64_json"])
        assert picture.format == kind.upper()
        assert picture.size == (48, 32)
        assert body["size"] == "48x32"


async def test_compression_decides_the_size_of_a_jpeg():
    async with open_engine(model="shapes", device="cpu") as engine, asgi_client(engine) as client:
        sizes = []
        for quality in (0, 100):
            fields = {
                "prompt": "a large red circle on a white background",
                "seed": 1,
                "output_format": "jpeg",
                "output_compression": quality,
                "num_inference_steps": 2,
            }
            answer = await client.post(GENERATIONS, json=fields)
            sizes.append(len(answer.json()["data"][0]["b64_json"]))
        assert sizes[0] < sizes[1] / 2


async def test_a_stream_shows_previews_and_then_the_picture():
    async with (
        open_engine(model="shapes", device="cpu", mode="step") as engine,
        asgi_client(engine) as client,
    ):
        prompt = "a large blue square on a white background"
        fields = {"prompt": prompt, "seed": 3, "num_inference_steps": 6}
        whole = (await client.post(GENERATIONS, json=fields)).json()
        answer = await client.post(
            GENERATIONS, json={**fields, "stream": True, "partial_images": 2}
        )
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.text)
        assert events[-1][0] == "image_generation.completed"
        assert events[-1][1]["b64_json"] == whole["data"][0]["b64_json"]
        assert events[-1][1]["seed"] == 3
        partial = [data for name, data in events if name == "image_generation.partial_image"]
        assert [data["partial_image_index"] for data in partial] == list(range(len(partial)))
        assert len(partial) >= 1
        assert all(picture_of(data["b64_json"]).size == (128, 128) for data in partial)
        assert all(name == data["type"] for name, data in events)
        await assert_idle(engine)


async def test_a_stream_needs_no_step_mode_without_previews():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        answer = await client.post(GENERATIONS, json={"prompt": "x", "stream": True, "n": 2})
        names = [name for name, _ in events_of(answer.text)]
        assert names == ["image_generation.completed"] * 2
        answer = await client.post(
            GENERATIONS, json={"prompt": "x", "stream": True, "partial_images": 1}
        )
        assert answer.status_code == 422
        assert "mode 'step'" in answer.json()["error"]["message"]


async def test_an_error_within_a_stream_is_its_last_event():
    config = painting("uni", options={"steps": 4, "fail_at_step": 2})
    async with open_engine(config) as engine, asgi_client(engine) as client:
        answer = await client.post(GENERATIONS, json={"prompt": "fail", "stream": True})
        assert answer.status_code == 200
        (name, data) = events_of(answer.text)[-1]
        assert name == data["type"] == "error"
        assert data["error"]["code"] == "failed"
        await assert_idle(engine)


async def test_an_edit_works_on_the_picture():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        for field in ("image", "image[]"):
            files = {field: ("a.png", png(color=(99, 99, 99)), "image/png")}
            answer = await client.post(EDITS, data={"prompt": "x"}, files=files)
            assert answer.status_code == 200, answer.text
            picture = picture_of(answer.json()["data"][0]["b64_json"])
            assert np.unique(picture).tolist() == [99]


async def test_an_edit_streams():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        files = {"image": ("a.png", png(), "image/png")}
        data = {"prompt": "x", "stream": "true"}
        answer = await client.post(EDITS, data=data, files=files)
        assert [name for name, _ in events_of(answer.text)] == ["image_edit.completed"]


async def test_a_mask_says_what_is_painted_anew():
    async with (
        open_engine(model="random:sd15-inpaint", device="cpu") as engine,
        asgi_client(engine) as client,
    ):
        answers = []
        for alpha in (0, 0, 255):
            files = {
                "image": ("a.png", png(), "image/png"),
                "mask": ("m.png", png(color=(0, 0, 0, alpha), mode="RGBA"), "image/png"),
            }
            data = {"prompt": "a cat", "seed": "1", "num_inference_steps": "2"}
            answer = await client.post(EDITS, data=data, files=files)
            assert answer.status_code == 200, answer.text
            answers.append(answer.json()["data"][0]["b64_json"])
        assert answers[0] == answers[1] != answers[2]


async def test_a_request_can_be_watched_and_cancelled():
    config = painting("uni", options={"forward_ms": 60_000, "steps": LONG})
    async with open_engine(config) as engine, asgi_client(engine) as client:
        answers = []

        async def generate() -> None:
            fields = {"prompt": "x", "request_id": "mine"}
            answers.append(await client.post(GENERATIONS, json=fields))

        assert (await client.get("/v1/requests/mine")).status_code == 404
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            status = {"step": None}
            while status.get("step") is None:
                status = (await client.get("/v1/requests/mine")).json()
            assert status["state"] == "running"
            assert status["total"] == LONG
            same = await client.post(GENERATIONS, json={"prompt": "x", "request_id": "mine"})
            assert same.status_code == 409
            assert same.json()["error"]["param"] == "request_id"
            cancel = "/v1/requests/mine/cancel"
            assert (await client.post(cancel)).json() == {"id": "mine", "cancelled": True}
        (answer,) = answers
        assert answer.status_code == 499
        assert answer.json()["error"]["code"] == "cancelled"
        assert answer.headers["x-request-id"] == "mine"
        assert (await client.get("/v1/requests/mine")).json()["state"] == "cancelled"
        assert (await client.post(cancel)).json() == {"id": "mine", "cancelled": False}
        await assert_idle(engine)


async def test_a_waiting_request_knows_its_place():
    config = painting("uni", options={"forward_ms": 60_000, "steps": LONG}, dispatch_depth=1)
    async with open_engine(config) as engine, asgi_client(engine) as client:
        async with trio.open_nursery() as nursery:
            for name in ("first", "second", "third"):
                fields = {"prompt": "x", "request_id": name}
                nursery.start_soon(lambda fields=fields: client.post(GENERATIONS, json=fields))
                while (await client.get(f"/v1/requests/{name}")).status_code == 404:
                    pass
            while engine.statistics().waiting < 2:
                await trio.lowlevel.checkpoint()
            status = (await client.get("/v1/requests/third")).json()
            assert status["state"] == "queued"
            assert status["queue_position"] == 1
            nursery.cancel_scope.cancel()
        await assert_idle(engine)


async def test_the_model_is_described():
    async with (
        open_engine(painting("uni")) as engine,
        asgi_client(engine, served_model_name="paint/er") as client,
    ):
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert model["id"] == "paint/er"
        assert model["accepts_image"] is True
        assert (await client.get("/v1/models/paint/er")).json() == model
        wrong = await client.get("/v1/models/else")
        assert wrong.status_code == 404
        assert (await client.post(GENERATIONS, json={"prompt": "x", "model": "paint/er"})).json()[
            "data"
        ]


async def test_a_header_names_a_request_while_its_name_is_free():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        headers = {"X-Request-Id": "from-a-proxy"}
        answer = await client.post(GENERATIONS, json={"prompt": "x"}, headers=headers)
        assert answer.headers["x-request-id"] == answer.json()["request_id"] == "from-a-proxy"
        hostile = {"X-Request-Id": "a b\x7f"}
        answer = await client.get("/livez", headers=hostile)
        assert len(answer.headers["x-request-id"]) == 32


async def test_the_description_of_the_api_is_complete():
    async with asgi_client(None) as client:
        paths = json.loads((await client.get("/openapi.json")).text)["paths"]
    assert set(paths) == {
        GENERATIONS,
        EDITS,
        "/v1/models",
        "/v1/models/{model}",
        "/v1/requests/{request_id}",
        "/v1/requests/{request_id}/cancel",
        "/v1/videos",
        "/v1/videos/{video_id}",
        "/v1/videos/{video_id}/content",
        "/v1/timeline",
        "/livez",
        "/readyz",
        "/health",
        "/metrics",
    }
    answers = {"200", "400", "401", "404", "408", "409", "413", "422", "429", "499", "500"}
    assert set(paths[GENERATIONS]["post"]["responses"]) == answers | {"503", "504"}
