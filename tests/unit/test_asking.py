"""What a pipeline needs is known before anybody asks it for something."""

import pytest
import torch

from sidestream.workers.asking import refusal_of
from sidestream.workers.capabilities import capabilities_of
from sidestream.workers.models import load_pipeline

from ..harness.catalogue.families import ENTRIES

BY_NAME = {entry.name: entry for entry in ENTRIES}

pytestmark = pytest.mark.filterwarnings("ignore")


def build(name):
    if name in BY_NAME:
        return BY_NAME[name].build()
    return load_pipeline(name, {}, device="cpu", dtype=None)


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("shapes", True),
        ("random:sd15-img2img", True),
        ("random:flux", True),
        ("WanImageToVideoPipeline", False),  # asks for its image first, and "prompt" is required
        ("DDPMPipeline", False),
        ("AmusedPipeline", False),  # takes embeddings, and has no such check
        ("synthetic", False),
    ],
)
def test_whether_a_prompt_is_needed(name, needs):
    pipeline = build(name)
    assert capabilities_of(pipeline)["needs_prompt"] is needs
    if needs:
        with pytest.raises(ValueError, match="`prompt`"):
            pipeline(prompt=None, num_inference_steps=1)


@pytest.mark.parametrize(
    ("name", "optional"),
    [
        ("LTXConditionPipeline", True),
        ("LTXImageToVideoPipeline", False),
        ("random:sd15-img2img", False),
        ("random:wan", False),
    ],
)
def test_whether_a_picture_is_optional(name, optional):
    assert capabilities_of(build(name))["image_optional"] is optional


def test_a_pipeline_is_not_changed_by_being_asked():
    pipeline = build("shapes")
    parts, random = dict(vars(pipeline)), torch.get_rng_state()
    assert "divisible by 8" in refusal_of(pipeline, prompt="a", height=9, width=8)
    assert refusal_of(pipeline, prompt="a", height=8, width=8) == ""
    assert vars(pipeline) == parts
    assert torch.equal(torch.get_rng_state(), random)
