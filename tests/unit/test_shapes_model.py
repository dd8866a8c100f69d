"""The embedded weights: in the package, small, the same every time, and able to draw."""

import numpy as np
import pytest
import torch

from sidestream.workers.models import load_pipeline, shapes
from sidestream.workers.models.shapes.oracle import judge

PROMPTS = (
    "a large red heart on a black background",
    "a large blue diamond on a purple background",
    "a large black circle on a red background",
    "a large yellow square on an orange background",
)


@pytest.fixture(scope="module")
def pictures():
    return draw()


def draw():
    pipeline = load_pipeline("shapes", {}, device="cpu", dtype=None)
    generators = [torch.Generator().manual_seed(1) for _ in PROMPTS]
    call = dict(shapes.DEFAULTS) | {"generator": generators, "output_type": "np"}
    images = pipeline(list(PROMPTS), **call).images
    return np.rint(images * 255).astype(np.uint8)


def test_the_weights_are_few_and_hold_no_code():
    files = [path for path in shapes.WEIGHTS.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    weights = [path for path in files if path.suffix == ".safetensors"]
    assert len(weights) == 3
    assert sum(path.stat().st_size for path in weights) <= 12_000_000


def test_pictures_show_what_the_prompts_say(pictures):
    assert pictures.shape == (len(PROMPTS), 128, 128, 3)
    faults = {
        prompt: judge(picture, prompt).faults
        for prompt, picture in zip(PROMPTS, pictures, strict=True)
    }
    assert not any(faults.values()), faults


def test_pictures_show_what_their_own_prompts_say_and_no_other(pictures):
    neighbours = PROMPTS[1:] + PROMPTS[:1]
    for prompt, picture in zip(neighbours, pictures, strict=True):
        assert {"shape", "colour", "background"} & set(judge(picture, prompt).faults)


def test_a_seed_is_the_same_picture_after_loading_again(pictures):
    assert np.array_equal(draw(), pictures)


def test_loading_asks_the_network_nothing(monkeypatch):
    def connect(*_):
        pytest.fail("loading the embedded model used the network")

    monkeypatch.setattr("socket.socket.connect", connect)
    shapes.load()
