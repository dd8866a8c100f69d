"""What is refused: with which status, naming which field, and in the shape of OpenAI's errors."""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib

import pytest
import trio
from PIL import Image

from sidestream.engine import ConfigError, EngineClosedError, open_engine
from sidestream.server import ServerConfig

from ..harness.engines import LONG, offer_pipelines, painting, synthetic
from ..harness.http import EDITS, GENERATIONS, asgi_client, events_of, png
from ..harness.surroundings import assert_idle, settled
from ..harness.videos import VIDEOS


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


def assert_error(answer, status, *, param=None, code=None, word=""):
    """Check that an answer is an error in the right shape."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert word in error["message"]
    assert answer.headers["x-request-id"]


INVALID = [
    ({}, "prompt", "required"),
    ({"prompt": 3}, "prompt", "string"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": " \n\u2003"}, "prompt", "empty"),
    ({"prompt": "x" * 101}, "prompt", "100"),
    ({"prompt": "x", "negative_prompt": "x" * 101}, "negative_prompt", "100"),
    ({"prompt": "x", "n": 0}, "n", "1"),
    ({"prompt": "x", "n": 4}, "n", "3"),
    ({"prompt": "x", "size": "64"}, "size", "WIDTHxHEIGHT"),
    ({"prompt": "x", "size": "64x-1"}, "size", "WIDTHxHEIGHT"),
    ({"prompt": "x", "size": "large"}, "size", "WIDTHxHEIGHT"),
    ({"prompt": "x", "size": 64}, "size", "WIDTHxHEIGHT"),
    ({"prompt": "x", "size": "264x64"}, "size", "256"),
    ({"prompt": "x", "size": "256x256", "n": 2}, "size", "65536"),
    ({"prompt": "x", "num_inference_steps": 11}, "num_inference_steps", "10"),
    ({"prompt": "x", "priority": 1}, "priority", "0"),
    ({"prompt": "x", "seed": -1}, "seed", "0"),
    ({"prompt": "x", "seed": 2**63}, "seed", ""),
    ({"prompt": "x", "output_format": "gif"}, "output_format", "png"),
    ({"prompt": "x", "output_compression": 50}, "output_compression", "jpeg"),
    ({"prompt": "x", "response_format": "url"}, "response_format", "b64_json"),
    ({"prompt": "x", "background": "transparent"}, "background", "opaque"),
    ({"prompt": "x", "partial_images": 2}, "partial_images", "stream"),
    ({"prompt": "x", "stream": True, "partial_images": 4}, "partial_images", "3"),
    ({"prompt": "x", "timeout_s": 0}, "timeout_s", "0"),
    ({"prompt": "x", "request_id": "a/b"}, "request_id", "pattern"),
    ({"prompt": "x", "num_inferense_steps": 3}, "num_inferense_steps", "'num_inference_steps'"),
    ({"prompt": "x", "images": []}, "images", "here; did you mean"),
    ({"prompt": "x", "strength": 0.3}, "strength", "here; it belongs to POST /v1/images/edits"),
]
LIMITS = {"max_n": 3, "max_side": 256, "max_pixels": 65536, "max_steps": 10}


async def test_a_wrong_field_is_named():
    limits = {**LIMITS, "max_prompt_chars": 100}
    async with open_engine(painting("uni")) as engine, asgi_client(engine, **limits) as client:
        for body, param, word in INVALID:
            answer = await client.post(GENERATIONS, json=body)
            assert_error(answer, 400, param=param, word=word)
        assert engine.statistics().completed == 1, "nothing but the warm-up ran"


async def test_what_is_no_json_is_refused():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        headers = {"Content-Type": "application/json"}
        for content in (b"{", b"\xff", b"", b"[1]", b"null", b"[" * 100_000):
            answer = await client.post(GENERATIONS, content=content, headers=headers)
            assert_error(answer, 400)
        surrogate = rb'{"prompt": "x", "size": "\ud800"}'
        answer = await client.post(GENERATIONS, content=surrogate, headers=headers)
        assert_error(answer, 400, param="size", word="WIDTHxHEIGHT")
        headers = {"Content-Type": "multipart/form-data; boundary=a"}
        assert_error(await client.post(EDITS, content=b"--b\r\n", headers=headers), 400)


ODD = (
    r'{"prompt": "x", "\ud800": 1}',
    r'{"prompt": "\ud800"}',
    r'{"prompt": "x", "model": "\ud800"}',
    '{"prompt": "x", "guidance_scale": NaN}',
    '{"prompt": "x", "guidance_scale": 1e999}',
    '{"prompt": "x", "n": 1e30}',
    '{"prompt": "x", "n": ' + "9" * 5000 + "}",
    '{"prompt": "x", "a": ' + '{"a":' * 2000 + "1" + "}" * 2001,
    '{"prompt": "x", "' + "k" * 100_000 + '": 1}',
    '{"prompt": "x", "seed": 9223372036854775807, "n": 2}',
)


async def test_odd_json_is_the_fault_of_the_client():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        headers = {"Content-Type": "application/json"}
        for content in ODD:
            answer = await client.post(GENERATIONS, content=content.encode(), headers=headers)
            assert answer.status_code in (400, 404, 422), answer.text
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_odd_names_are_not_found():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        for name in ("%ff", "%ED%A0%80", "%00", "..%2f..%2fetc%2fpasswd"):
            for kind in ("requests", "models"):
                assert_error(await client.get(f"/v1/{kind}/{name}"), 404)


async def test_there_is_no_other_route_or_method():
    async with asgi_client(None) as client:
        assert_error(await client.get("/v1/nothing"), 404)
        assert_error(await client.get(GENERATIONS), 405)


async def test_what_the_model_cannot_do_is_no_fault_of_the_server():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        for size in ("64x63", "8x4"):
            answer = await client.post(GENERATIONS, json={"prompt": "x", "size": size})
            assert_error(answer, 422, param="size", code="unsupported", word="divisible by 8")
        wrong = await client.post(GENERATIONS, json={"prompt": "x", "model": "dall-e-3"})
        assert_error(wrong, 404, param="model", code="model_not_found")
        files = {"image": ("a.png", png()), "mask": ("m.png", png())}
        answer = await client.post(EDITS, data={"prompt": "x"}, files=files)
        assert_error(answer, 422, param="mask")
        data = {"prompt": "x", "strength": "0.5"}
        answer = await client.post(EDITS, data=data, files={"image": ("a.png", png())})
        assert_error(answer, 422, param="strength")


@pytest.mark.parametrize(
    ("model", "path", "size", "word"),
    [
        ("random:sd15", GENERATIONS, "60x3", "multiples of 8, such as 64x8"),
        ("random:sd15-img2img", EDITS, "64x64", "as large as its picture"),
        ("random:sd15-inpaint", EDITS, "60x3", "multiples of 8, such as 64x8"),
    ],
)
async def test_a_size_that_the_model_does_not_make_is_named_as_size(model, path, size, word):
    config = {"model": model, "device": "cpu", "warmup": False}
    body = {"prompt": "x", "size": size}
    form = {"data": body, "files": {name: ("a.png", png()) for name in ("image", "mask")}}
    if "img2img" in model:
        del form["files"]["mask"]
    async with open_engine(config) as engine, asgi_client(engine) as client:
        sent = {"json": body} if path == GENERATIONS else form
        answer = await client.post(path, **sent)
        assert_error(answer, 422, param="size", code="unsupported", word=word)
        assert "'width'" not in answer.text
        assert engine.statistics().completed == 0
        body |= {"size": "auto", "num_inference_steps": "2"}
        assert (await client.post(path, **sent)).status_code == 200


async def test_a_pipeline_without_prompts_gets_none():
    config = dataclasses.replace(
        painting("uni"), model="pictures:PromptlessPipeline", model_options={}
    )
    async with open_engine(config) as engine, asgi_client(engine) as client:
        (model,) = (await client.get("/v1/models")).json()["data"]
        assert "prompt" not in model["parameters"]
        assert (await client.post(GENERATIONS, json={"prompt": " "})).status_code == 200
        answer = await client.post(GENERATIONS, json={"prompt": "x"})
        assert_error(answer, 422, param="prompt", code="unsupported")


async def test_a_model_that_makes_no_pictures_says_so():
    async with open_engine(synthetic("uni")) as engine, asgi_client(engine) as client:
        assert_error(await client.post(GENERATIONS, json={"prompt": "x"}), 422)
    video = painting("uni", options={"shape": (1, 3, 3, 64, 64)})
    async with open_engine(video) as engine, asgi_client(engine) as client:
        assert_error(await client.post(GENERATIONS, json={"prompt": "x"}), 422)


@pytest.mark.parametrize("stream", [False, True])
async def test_who_asks_at_the_wrong_route_is_told_the_right_one(stream):
    config = {"device": "cpu", "warmup": False}
    body = {"prompt": "x", "num_inference_steps": 1, "stream": stream}
    form = {name: str(value) for name, value in body.items()}
    files = {"image": ("a.png", png())}

    def error_of(answer):
        if answer.status_code == 200:
            ((name, data),) = events_of(answer.text)
            assert name == "error"
            return data["error"]
        assert answer.status_code == 422, answer.text
        return answer.json()["error"]

    for model, path, param, route in (
        ("random:sd15-img2img", GENERATIONS, "image", EDITS),
        ("random:sd15-inpaint", GENERATIONS, "image", EDITS),
        ("random:sd15-inpaint", EDITS, "mask", EDITS),
        ("random:sd15", EDITS, "image", GENERATIONS),
        ("random:wan", GENERATIONS, "model", VIDEOS),
    ):
        async with open_engine(config, model=model) as engine, asgi_client(engine) as client:
            sent = {"json": body} if path == GENERATIONS else {"data": form, "files": files}
            error = error_of(await client.post(path, **sent))
            assert error["code"] == "unsupported"
            assert error["param"] == param
            assert error["message"].startswith(f"{param}: ")
            assert f"POST {route}" in error["message"]
            await assert_idle(engine)


async def test_a_failing_pipeline_is_not_to_be_tried_again(caplog):
    config = painting("uni", options={"steps": 3, "fail_at_step": 1})
    async with open_engine(config) as engine, asgi_client(engine) as client:
        answer = await client.post(GENERATIONS, json={"prompt": "fail", "request_id": "a"})
        assert_error(answer, 500, code="failed")
        assert answer.headers["x-should-retry"] == "false"
        assert "synthetic" not in answer.text
        assert "RuntimeError: synthetic failure at step 1" in caplog.text, "the worker's traceback"
        assert (await client.get("/v1/requests/a")).json()["state"] == "failed"


async def test_a_deadline_passes():
    config = painting("uni", options={"forward_ms": 60_000, "steps": LONG})
    async with open_engine(config) as engine:
        for settings, fields in (
            ({}, {"timeout_s": 0.05}),
            ({"request_timeout_s": 0.05}, {}),
            ({"request_timeout_s": 0.05}, {"timeout_s": 1000}),
        ):
            async with asgi_client(engine, **settings) as client:
                answer = await client.post(GENERATIONS, json={"prompt": "x", **fields})
                assert_error(answer, 504, code="deadline_exceeded")
        await assert_idle(engine)


async def test_a_full_queue_is_told_before_anything_is_read():
    config = painting("uni", options={"forward_ms": 60_000, "steps": LONG}, max_queued_requests=1)
    async with open_engine(config) as engine, asgi_client(engine) as client:
        async with trio.open_nursery() as nursery:
            for count in (1, 2, 3):  # one runs, one lies in the worker's ring, one waits
                nursery.start_soon(lambda: client.post(GENERATIONS, json={"prompt": "x"}))
                await settled(lambda count=count: engine.statistics().claims == count)
                await settled(lambda count=count: engine.statistics().waiting == max(0, count - 2))
            for path in (GENERATIONS, EDITS):
                headers = {"Content-Type": "application/json"}
                answer = await client.post(path, content=b"not looked at", headers=headers)
                assert_error(answer, 429, code="busy")
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            nursery.cancel_scope.cancel()
        await assert_idle(engine)


async def test_without_an_engine_there_is_503():
    async with asgi_client(None) as client:
        assert_error(await client.post(GENERATIONS, json={"prompt": "x"}), 503, word="starting")
        assert_error(await client.get("/v1/models"), 503)
        assert_error(await client.post("/v1/requests/a/cancel"), 503)
        assert (await client.get("/readyz")).json() == {"status": "starting"}
    async with open_engine(painting("uni")) as engine:
        pass
    with pytest.raises(EngineClosedError):
        engine.check_health()
    async with asgi_client(engine) as client:
        assert_error(await client.post(GENERATIONS, json={"prompt": "x"}), 503, word="stopping")
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"status": "stopping"})
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"max_stepz": 3}, "'max_steps'"),
        ({"port": 70_000}, "65535"),
        ({"api_keys": ("",)}, "non-empty"),
        ({"api_keys": ("a b",)}, "visible"),
        ({"cors_origins": ("example.org",)}, "https://example.org"),
        ({"cors_origins": ("https://example.org/",)}, "https://example.org"),
        ({"cors_origins": (None,)}, "https://example.org"),
        ({"api_keys": ("schlüssel",)}, "ASCII"),
    ],
)
def test_a_wrong_setting_is_named(settings, word):
    with pytest.raises(ConfigError, match=word):
        ServerConfig(**settings)


# -- pictures that are sent


def bomb(width: int, height: int) -> bytes:
    """Make a PNG whose header promises more than there is."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def as_gif() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "gif")
    return file.getvalue()


async def test_hostile_pictures_are_refused():
    async with (
        open_engine(painting("uni")) as engine,
        asgi_client(engine, max_image_pixels=64 * 64, max_images=2) as client,
    ):

        async def edit(*pictures, **data):
            files = [("image", ("a.png", picture)) for picture in pictures]
            return await client.post(EDITS, data={"prompt": "x", **data}, files=files)

        assert (await edit(png())).status_code == 200
        assert_error(await edit(png((65, 64))), 413, param="image", code="too_large")
        for side in (10_000, 20_000, 65_000):  # Pillow warns of these, and refuses the largest
            assert_error(await edit(bomb(side, side)), 413, param="image")
        for damaged in (b"", b"x", png()[:60], as_gif(), bomb(8, 8), b"<svg/>", b"%!PS-Adobe"):
            assert_error(await edit(damaged), 400, param="image", code="invalid_image")
        assert_error(await edit(), 400, param="image")
        assert_error(await edit(png(), png(), png()), 400, param="image")
        assert_error(await edit(png(), n="x"), 400, param="n")
        await assert_idle(engine)


async def test_what_is_no_form_is_told_how_to_send_one():
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        for sent, word in (
            ({"json": {"prompt": "x", "image": "cat.png"}}, "not 'application/json'"),
            ({"content": png(), "headers": {"Content-Type": "image/png"}}, "not 'image/png'"),
            ({"content": b"x"}, "Content-Type is missing"),
        ):
            answer = await client.post(EDITS, **sent)
            assert_error(answer, 400, code="unsupported_media_type", word=word)
            message = answer.json()["error"]["message"]
            assert "multipart/form-data" in message
            assert f"-F image=@picture.png http://test{EDITS}" in message


@pytest.mark.parametrize("field", ["image", "image[]", "mask"])
async def test_a_name_in_place_of_a_file_is_told_how_to_send_it(field):
    async with open_engine(painting("uni")) as engine, asgi_client(engine) as client:
        for files in ({}, {"image": ("a.png", png())}):  # the first is a form without files
            answer = await client.post(EDITS, data={"prompt": "x", field: "cat.png"}, files=files)
            word = f"{field}: must be a file"
            assert_error(answer, 400, param=field, code="invalid_value", word=word)
            assert f"-F {field}=@picture.png" in answer.json()["error"]["message"]
