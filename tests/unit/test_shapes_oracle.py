"""The oracle against drawn pictures, whose truth is known."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from sidestream.workers.models.shapes import drawing, grammar
from sidestream.workers.models.shapes.grammar import Scene, Thing
from sidestream.workers.models.shapes.oracle import judge, look

TWO = Scene(Thing("circle", "red", "large"), "above", Thing("star", "blue", "small"), "white")


def draw(scene, seed=0, **canvas):
    return drawing.draw(scene, random.Random(seed), **canvas)


def test_it_accepts_what_was_drawn_and_nothing_else():
    rng = random.Random(7)
    scenes = [grammar.sample(rng) for _ in range(120)]
    pictures = [drawing.draw(scene, rng) for scene in scenes]
    for scene, picture, other in zip(scenes, pictures, pictures[1:] + pictures[:1], strict=True):
        assert judge(picture, scene.prompt).ok
        assert not judge(other, scene.prompt).ok


@pytest.mark.parametrize(
    ("wrong", "faults"),
    [
        (replace(TWO, background="green"), {"background"}),
        (replace(TWO, relation="below"), {"relation"}),
        (replace(TWO, relation="left of"), {"relation"}),
        (replace(TWO, first=Thing("square", "red", "large")), {"shape"}),
        (replace(TWO, first=Thing("circle", "orange", "large")), {"colour"}),
        (replace(TWO, second=Thing("star", "blue", "large")), {"size"}),
        (replace(TWO, relation=None, second=None), {"count"}),
    ],
)
def test_it_names_the_one_thing_that_is_wrong(wrong, faults):
    assert set(judge(draw(TWO), wrong).faults) == faults


def test_it_sees_swapped_attributes():
    swapped = replace(
        TWO, first=replace(TWO.first, colour="blue"), second=replace(TWO.second, colour="red")
    )
    assert "colour" in judge(draw(swapped), TWO).faults


def test_what_a_prompt_leaves_out_may_be_anything():
    picture = draw(TWO)
    assert judge(picture, "a circle above a star").ok
    assert judge(picture, "a star to the left of a circle").faults == ("relation",)


@pytest.mark.parametrize("shape", grammar.SHAPES)
@pytest.mark.parametrize("size", grammar.SIZES)
def test_every_shape_at_the_ends_of_its_size(shape, size):
    for radius, offset in itertools.product(drawing.RADII[size], (0.0, 0.37)):
        placed = drawing.Placed(shape, "green", 60 + offset, 70 - offset, radius)
        background, things = look(drawing.render([placed], "black"))
        assert background == "black"
        assert [(t.shape, t.colour, t.size) for t in things] == [(shape, "green", size)]


@pytest.mark.parametrize("first", grammar.COLOURS)
def test_every_pair_of_colours(first):
    for ground in set(grammar.COLOURS) - {first}:
        scene = Scene(Thing("heart", first, "small"), background=ground)
        assert judge(draw(scene), scene).ok


def test_it_forgives_what_an_autoencoder_does():
    noise = np.random.default_rng(0).normal(0, 4, (128, 128, 3))
    for seed in range(20):
        scene = grammar.sample(random.Random(seed))
        soft = np.asarray(draw(scene, seed).filter(ImageFilter.GaussianBlur(0.6)), float)
        assert judge(np.clip(soft + noise, 0, 255).astype(np.uint8), scene).ok


def test_it_works_at_other_picture_sizes():
    assert judge(draw(TWO, width=192, height=144), TWO).ok


def test_it_refuses_bad_drawing():
    melted = draw(TWO).filter(ImageFilter.GaussianBlur(5))
    assert not judge(melted, TWO).ok
    extra = draw(TWO)
    ImageDraw.Draw(extra).rectangle((2, 2, 7, 7), fill=drawing.PALETTE["black"])
    assert judge(extra, TWO).faults == ("count",)
    assert not judge(Image.new("RGB", (128, 128), drawing.PALETTE["white"]), TWO).ok
    assert not judge(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8), TWO).ok


def test_two_colours_in_one_shape_are_no_colour():
    circle = drawing.Placed("circle", "red", 64, 64, 20)
    picture = np.asarray(drawing.render([circle], "white")).copy()
    half = np.asarray(drawing.render([replace(circle, colour="blue")], "white"))
    picture[:, 64:] = half[:, 64:]
    assert "colour" in judge(picture, "a large red circle").faults
