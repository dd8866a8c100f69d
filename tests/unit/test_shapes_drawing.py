"""Drawn scenes: shapes inside the picture, apart from each other, where the relation says."""

import random

import numpy as np
import pytest

from sidestream.workers.models.shapes import drawing, grammar
from sidestream.workers.models.shapes.grammar import Scene, Thing


@pytest.mark.parametrize("canvas", [(128, 128), (160, 128), (128, 200)])
@pytest.mark.parametrize("relation", grammar.RELATIONS)
def test_places_obey_the_relation(relation, canvas):
    rng = random.Random(0)
    for _ in range(100):
        scene = grammar.complete(
            Scene(Thing(rng.choice(grammar.SHAPES)), relation, Thing(rng.choice(grammar.SHAPES))),
            rng,
        )
        first, second = drawing.place(scene, rng, width=canvas[0], height=canvas[1])
        boxes = [box(first), box(second)]
        for left, top, right, bottom in boxes:
            assert left > 0
            assert top > 0
            assert right < canvas[0]
            assert bottom < canvas[1]
        near, far = boxes if relation in ("above", "left of") else boxes[::-1]
        axis = 1 if relation in ("above", "below") else 0
        assert near[axis + 2] < far[axis]


def box(placed):
    half_width, half_height = (placed.radius * e for e in drawing.EXTENTS[placed.shape])
    return (
        placed.x - half_width,
        placed.y - half_height,
        placed.x + half_width,
        placed.y + half_height,
    )


@pytest.mark.parametrize("shape", grammar.SHAPES)
def test_distances_are_zero_on_the_edge_and_grow_with_slope_one(shape):
    axis = np.linspace(-1.6, 1.6, 641)
    distance = drawing.DISTANCE[shape](axis[None, :], axis[:, None])
    slope = np.hypot(*np.gradient(distance, axis[1] - axis[0]))
    near = np.abs(distance) < 0.2
    assert np.median(slope[near]) == pytest.approx(1, abs=1e-3)
    assert distance.min() < 0 < distance.max()


def test_edges_are_antialiased():
    circle = drawing.Placed("circle", "black", 64.3, 63.8, 20.4)
    covered = drawing.coverage(circle, 128, 128)
    assert covered.sum() == pytest.approx(np.pi * 20.4**2, rel=1e-3)
    assert ((covered > 0) & (covered < 1)).sum() > 100


def test_a_seed_is_one_picture_and_another_seed_another():
    scene = grammar.parse("a large red circle on a white background")
    once, again, other = (
        np.asarray(drawing.draw(scene, random.Random(seed))) for seed in (1, 1, 2)
    )
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


def test_a_scene_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="too small"):
        drawing.draw(grammar.parse("a large star above a large star"), random.Random(0), height=64)
    with pytest.raises(ValueError, match="left free"):
        drawing.place(grammar.parse("a star"), random.Random(0))
