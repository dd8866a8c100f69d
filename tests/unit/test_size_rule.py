"""Sizes that a pipeline refuses are known before anybody asks for one."""

import pytest
import torch

from sidestream.workers.models import load_pipeline
from sidestream.workers.size_rule import size_multiple, smallest_side

from ..harness.catalogue.families import ENTRIES

BY_NAME = {entry.name: entry for entry in ENTRIES}


def load(model):
    return load_pipeline(model, {}, device="cpu", dtype=None)


@pytest.mark.parametrize(
    ("model", "multiple"),
    [
        ("shapes", 8),
        ("random:sdxl", 8),
        ("random:sd3", 4),  # a VAE that halves once, and patches of two
        ("random:wan", 16),
        ("random:sd15-inpaint", 8),
        ("random:sd15-img2img", 1),  # takes no size
        ("random:flux", 1),  # rounds
        ("synthetic", 1),  # is not of diffusers
    ],
)
def test_multiples(model, multiple):
    pipeline = load(model)
    parts = dict(vars(pipeline))
    random = torch.get_rng_state()
    assert size_multiple(pipeline) == multiple
    assert vars(pipeline) == parts
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.filterwarnings("ignore")
def test_sizes_are_not_refused_where_the_pipeline_takes_the_nearest_of_its_own():
    assert size_multiple(BY_NAME["PixArtSigmaPipeline"].build()) == 1


def test_it_is_what_the_pipeline_itself_says(capsys):
    pipeline = load("random:sd15")
    multiple = size_multiple(pipeline)
    with pytest.raises(ValueError, match="have to be divisible by 8"):
        pipeline("a", height=8 * multiple + 4, width=8 * multiple)
    pipeline("a", height=8 * multiple, width=9 * multiple, num_inference_steps=1)


@pytest.mark.parametrize(("model", "least"), [("random:flux", 4), ("shapes", 8), ("synthetic", 1)])
def test_the_smallest_side(model, least):
    assert smallest_side(load(model)) == least


def test_nothing_is_left_of_less_than_the_smallest_side():
    pipeline = load("random:flux")
    least = smallest_side(pipeline)
    pipeline("a", height=least, width=least, num_inference_steps=1)
    with pytest.raises(RuntimeError):
        pipeline("a", height=least - 1, width=least - 1, num_inference_steps=1)
