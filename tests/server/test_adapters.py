"""Adapters over HTTP: the field `lora` of every route, and what is said where it is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
import trio

from sidestream.engine import open_engine

from ..harness.adapters import save_adapters
from ..harness.engines import synthetic
from ..harness.http import EDITS, GENERATIONS, asgi_client, picture_of, png
from ..harness.videos import VIDEOS, create, frames_of, told, working

SMALL = {"prompt": "x", "seed": 3, "num_inference_steps": 2}


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    """The setting `lora` for a model that edits pictures."""
    directory = tmp_path_factory.mktemp("adapters")
    return save_adapters("sd15-img2img", directory, ["style", "detail"])


@pytest.fixture(scope="module")
def text_lora(tmp_path_factory):
    """The setting `lora` for a model that makes pictures of texts."""
    return save_adapters("sd15", tmp_path_factory.mktemp("adapters"), ["style", "detail"])


async def file_of(client, video):
    answer = await client.get(f"{VIDEOS}/{video['id']}/content")
    return answer.content


def picture(answer):
    assert answer.status_code == 200, answer.text
    return picture_of(answer.json()["data"][0]["b64_json"])


async def test_a_picture_has_the_adapters_that_were_asked_for(text_lora):
    config = {"model": "random:sd15", "lora": text_lora, "device": "cpu", "warmup": False}
    async with (
        open_engine(config, mode="step", max_num_seqs=4) as engine,
        asgi_client(engine) as client,
    ):
        fields = [
            {},
            {"lora": "style"},
            {"lora": {"style": 1}},
            {"lora": ["style", "detail"]},
            {"lora": {"style": 0.5, "detail": 1.0}},
            {"lora": {}},
        ]
        made = [None] * len(fields)

        async def make(index):
            answer = await client.post(GENERATIONS, json=SMALL | fields[index])
            made[index] = np.asarray(picture(answer), dtype=int)

        async with trio.open_nursery() as nursery:
            for index in range(len(fields)):
                nursery.start_soon(make, index)
        for index, field in enumerate(fields):
            alone = await engine.generate(
                "x", seed=3, num_inference_steps=2, lora=field.get("lora", {})
            )
            assert np.abs(made[index] - np.asarray(alone.output, dtype=int)).max() <= 1
        assert not np.array_equal(made[0], made[1])
        assert not np.array_equal(made[3], made[4])
        models = (await client.get("/v1/models")).json()["data"]
        assert models[0]["lora"] == ["style", "detail"]
        assert "lora" in models[0]["parameters"]


async def test_forms_have_it_as_a_name_or_as_json(lora):
    config = {"model": "random:sd15-img2img", "lora": lora, "device": "cpu", "warmup": False}
    async with open_engine(config) as engine, asgi_client(engine) as client:

        async def edit(**fields):
            files = {"image": ("a.png", png(), "image/png")}
            return await client.post(EDITS, data={"prompt": "x", "seed": 3} | fields, files=files)

        without, named, scaled, weaker, blank = [
            np.asarray(picture(await edit(**fields)))
            for fields in (
                {},
                {"lora": "style"},
                {"lora": json.dumps({"style": 1.0})},
                {"lora": json.dumps({"style": 0.25})},
                {"lora": " "},
            )
        ]
        assert np.array_equal(named, scaled)
        assert np.array_equal(without, blank)
        assert not np.array_equal(named, without)
        assert not np.array_equal(named, weaker)
        for wrong in ("styl", '{"style": 1', '{"style": "x"}', '{"style": 1e9}', "[" * 100_000):
            answer = await edit(lora=wrong)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"].startswith("lora")


WRONG = [
    ("styl", "lora.styl"),
    ({"styl": 1.0}, "lora.styl"),
    (["style", "no"], "lora.no"),
    ({"": 1.0}, "lora."),
    ({"a.b": 1.0}, "lora.a.b"),
    ({"x" * 1000: 1.0}, f"lora.{'x' * 64}"),
    ({"style": 101}, "lora.style"),
    ({"style": "strong"}, "lora.style"),
    ({"style": "1"}, "lora.style"),
    ({"style": True}, "lora.style"),
    ({"style": None}, "lora.style"),
    ([1], "lora"),
    (5, "lora"),
]


async def test_what_is_wrong_is_answered_with_the_field(text_lora):
    config = {"model": "random:sd15", "lora": text_lora, "device": "cpu", "warmup": False}
    async with open_engine(config) as engine, asgi_client(engine) as client:
        for wrong, param in WRONG:
            answer = await client.post(GENERATIONS, json=SMALL | {"lora": wrong})
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert (error["param"], error["code"]) == (param, "invalid_value")
        answer = await client.post(GENERATIONS, json=SMALL | {"lora": "styl"})
        assert answer.json()["error"]["message"] == (
            "lora.styl: there is no such adapter; did you mean 'style'?"
        )
        assert engine.statistics().claims == 0


async def test_videos_have_them_too(tmp_path):
    lora = save_adapters("wan", tmp_path, ["style"])
    config = {"model": "random:wan", "lora": lora, "device": "cpu", "warmup": False}
    fields = {"seed": 3, "num_inference_steps": 2}
    async with open_engine(config) as engine, working(engine) as client:
        for wrong, param in WRONG:
            answer = await client.post(VIDEOS, json={"prompt": "x", "lora": wrong})
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param
        form = {"prompt": "x", "lora": '{"style": 1.0}', **{k: str(v) for k, v in fields.items()}}
        videos = [
            await create(client, **fields),
            await create(client, **fields, lora="style"),
            (await client.post(VIDEOS, data=form)).json(),
        ]
        without, named, as_form = [
            frames_of(await file_of(client, await told(client, video, "completed")))
            for video in videos
        ]
        assert np.array_equal(named, as_form)
        assert not np.array_equal(named, without)


async def test_without_adapters_there_are_none_to_name():
    async with open_engine(synthetic("uni")) as engine, asgi_client(engine) as client:
        answer = await client.post(GENERATIONS, json={"prompt": "x", "lora": "style"})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == (
            "lora.style: there is no such adapter; there are none"
        )
        model = (await client.get("/v1/models")).json()["data"][0]
        assert model["lora"] == []
        assert "lora" not in model["parameters"]
