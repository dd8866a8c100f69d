"""The language of the embedded model."""

import random

import pytest

from sidestream.workers.models.shapes import grammar
from sidestream.workers.models.shapes.grammar import Scene, Thing


def test_a_prompt_says_its_scene():
    prompt = "a large red circle above a small blue square on a green background"
    scene = Scene(
        Thing("circle", "red", "large"), "above", Thing("square", "blue", "small"), "green"
    )
    assert grammar.parse(prompt) == scene
    assert scene.prompt == prompt


@pytest.mark.parametrize(
    ("prompt", "scene"),
    [
        ("a star", Scene(Thing("star"))),
        ("an orange heart", Scene(Thing("heart", "orange"))),
        ("The  small Star", Scene(Thing("star", size="small"))),
        ("a circle on a white background", Scene(Thing("circle"), background="white")),
        ("a star to the left of a heart", Scene(Thing("star"), "left of", Thing("heart"))),
        ("a star left of a heart", Scene(Thing("star"), "left of", Thing("heart"))),
    ],
)
def test_attributes_may_be_left_out(prompt, scene):
    assert grammar.parse(prompt) == scene


@pytest.mark.parametrize(
    "prompt", ["", "a cat", "a red", "a red circle above", "a red circle on a red background"]
)
def test_other_prompts_are_refused(prompt):
    with pytest.raises(ValueError, match=repr(prompt)):
        grammar.parse(prompt)


def test_sampled_scenes_survive_their_prompts():
    rng = random.Random(0)
    for _ in range(500):
        scene = grammar.sample(rng)
        assert grammar.parse(scene.prompt) == scene
        assert set(scene.prompt.split()) <= set(grammar.WORDS)


def test_sampling_keeps_the_held_out_scenes_apart():
    rng = random.Random(0)
    assert not any(grammar.is_held_out(grammar.sample(rng)) for _ in range(300))
    assert all(grammar.is_held_out(grammar.sample(rng, held_out=True)) for _ in range(30))


def test_complete_fills_only_what_is_free():
    rng = random.Random(0)
    for _ in range(200):
        scene = grammar.complete(Scene(Thing("star", "red"), "above", Thing("heart")), rng)
        assert (scene.first.shape, scene.first.colour, scene.relation) == ("star", "red", "above")
        colours = {thing.colour for thing in scene.things}
        assert None not in colours
        assert scene.background not in colours | {None}
        assert all(thing.size in grammar.SIZES for thing in scene.things)
