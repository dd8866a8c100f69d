"""Draw scenes as flat, antialiased pictures: the ground truth of training, oracle and tests.

Every shape is a signed distance function (https://iquilezles.org/articles/distfunctions2d/) in
units of its radius, x to the right, y down, its bounding box centred on the origin.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .grammar import RELATIONS, SHAPES, Scene, complete

Array = NDArray[np.floating[Any]]

PALETTE: Final[dict[str, tuple[int, int, int]]] = {
    "red": (220, 38, 38),
    "orange": (249, 130, 22),
    "yellow": (250, 210, 40),
    "green": (34, 160, 75),
    "blue": (37, 99, 235),
    "purple": (147, 51, 190),
    "white": (250, 250, 250),
    "black": (24, 24, 27),
}
"""sRGB of each colour word; the closest two (red and orange) are 98 apart."""

RADII: Final = {"small": (10.0, 12.0), "large": (19.0, 22.0)}
"""Radius range of each size word, in pixels, whatever the picture's size."""

CANVAS: Final = 128
"""Width and height of a picture unless told otherwise, in pixels."""

_MARGIN = 4.0  # free pixels between a shape and the picture's edge
_GAP = 4.0  # and between two shapes
_SLANT = 0.6  # most that two things are offset sideways, as a share of their distance


def _circle(x: Array, y: Array) -> Array:
    return np.hypot(x, y) - 1.0


def _box(x: Array, y: Array, half: float) -> Array:
    dx, dy = np.abs(x) - half, np.abs(y) - half
    outside = np.hypot(np.maximum(dx, 0), np.maximum(dy, 0))
    return outside + np.minimum(np.maximum(dx, dy), 0)


def _square(x: Array, y: Array) -> Array:
    return _box(x, y, 0.9)


def _diamond(x: Array, y: Array) -> Array:
    return _box((x + y) * math.sqrt(0.5), (x - y) * math.sqrt(0.5), 0.86)


def _polygon(x: Array, y: Array, corners: list[tuple[float, float]]) -> Array:
    squared: Array = np.full(np.broadcast(x, y).shape, np.inf)
    sign: Array = np.ones(squared.shape)
    for (ax, ay), (bx, by) in zip(corners, corners[-1:] + corners[:-1], strict=True):
        ex, ey, wx, wy = bx - ax, by - ay, x - ax, y - ay
        along = np.clip((wx * ex + wy * ey) / (ex * ex + ey * ey), 0, 1)
        squared = np.minimum(squared, (wx - ex * along) ** 2 + (wy - ey * along) ** 2)
        above, below, left = y >= ay, y < by, ex * wy > ey * wx
        crossing = (above & below & left) | (~above & ~below & ~left)
        sign = np.where(crossing, -sign, sign)
    return sign * np.sqrt(squared)


def _ring(radii: list[float], drop: float) -> list[tuple[float, float]]:
    turn = 2 * math.pi / len(radii)
    return [(r * math.sin(i * turn), drop - r * math.cos(i * turn)) for i, r in enumerate(radii)]


def _triangle(x: Array, y: Array) -> Array:
    return _polygon(x, y, _ring([1.25] * 3, drop=1.25 / 4))


def _star(x: Array, y: Array) -> Array:
    return _polygon(x, y, _ring([1.25, 0.56] * 5, drop=1.25 * (1 - math.cos(math.pi / 5)) / 2))


def _heart(x: Array, y: Array) -> Array:
    scale, height = 1.8, 0.75 + math.sqrt(2) / 4
    x, y = np.abs(x) / scale, height / 2 - y / scale
    lobe = np.hypot(x - 0.25, y - 0.75) - math.sqrt(2) / 4
    foot = np.maximum(x + y, 0) / 2
    body = np.minimum(np.hypot(x, y - 1), np.hypot(x - foot, y - foot)) * np.sign(x - y)
    return np.where(x + y > 1, lobe, body) * scale


DISTANCE: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
    "diamond": _diamond,
}
"""Signed distance of a point to each shape, negative inside, all in units of the radius."""


def _half_extents(shape: str) -> tuple[float, float]:
    axis = np.linspace(-1.5, 1.5, 301)
    inside = DISTANCE[shape](axis[None, :], axis[:, None]) < 0
    return float(np.abs(axis[inside.any(0)]).max()), float(np.abs(axis[inside.any(1)]).max())


EXTENTS: Final = {shape: _half_extents(shape) for shape in SHAPES}
"""Half width and half height of each shape, in units of the radius."""


@dataclass(frozen=True)
class Placed:
    """A shape on the canvas: centre of its bounding box and radius, in pixels."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float


def place(
    scene: Scene, rng: random.Random, *, width: int = CANVAS, height: int = CANVAS
) -> list[Placed]:
    """Put the things of a full scene at random places that obey its relation.

    Raises:
        ValueError: the scene has free attributes, or the canvas is too small for it.
    """
    radii, halves = [], []
    for thing in scene.things:
        if thing.size is None or thing.colour is None:
            raise ValueError(f"attributes left free: {scene.prompt!r}")
        radii.append(rng.uniform(*RADII[thing.size]))
        halves.append(tuple(radii[-1] * extent for extent in EXTENTS[thing.shape]))
    if scene.relation is None:
        centres = [_anywhere(rng, half, (width, height)) for half in halves]
    else:
        centres = _related(rng, scene.relation, halves, (width, height))
    return [
        Placed(thing.shape, thing.colour or "", x, y, radius)
        for thing, (x, y), radius in zip(scene.things, centres, radii, strict=True)
    ]


def _anywhere(
    rng: random.Random, half: tuple[float, ...], canvas: tuple[int, int]
) -> tuple[float, float]:
    x, y = (
        rng.uniform(_MARGIN + h, side - _MARGIN - h) for h, side in zip(half, canvas, strict=True)
    )
    return x, y


def _related(
    rng: random.Random, relation: str, halves: list[tuple[float, ...]], canvas: tuple[int, int]
) -> list[tuple[float, float]]:
    axis = 0 if relation in RELATIONS[2:] else 1
    swapped = relation in ("below", "right of")
    near, far = halves[::-1] if swapped else halves
    middle = canvas[axis] / 2
    slack = [middle - _MARGIN - _GAP / 2 - 2 * half[axis] for half in (near, far)]
    if min(slack) < 0:
        raise ValueError(f"a canvas of {canvas[0]}x{canvas[1]} is too small for two things")
    # Each keeps to its half of the canvas: a layout that a denoiser sees in the faintest outline.
    along = (
        _MARGIN + near[axis] + rng.uniform(0, slack[0]),
        middle + _GAP / 2 + far[axis] + rng.uniform(0, slack[1]),
    )
    reach = _SLANT * (along[1] - along[0])
    side = canvas[1 - axis]
    across = rng.uniform(_MARGIN + near[1 - axis], side - _MARGIN - near[1 - axis])
    low = max(_MARGIN + far[1 - axis], across - reach)
    high = min(side - _MARGIN - far[1 - axis], across + reach)
    points = [(along[0], across), (along[1], rng.uniform(low, high))]
    points = [point if axis == 0 else point[::-1] for point in points]
    return points[::-1] if swapped else points


def coverage(placed: Placed, width: int, height: int) -> Array:
    """Compute how much of each pixel a shape covers, shape (height, width), in [0, 1]."""
    x = (np.arange(width)[None, :] + 0.5 - placed.x) / placed.radius
    y = (np.arange(height)[:, None] + 0.5 - placed.y) / placed.radius
    covered: Array = np.clip(0.5 - DISTANCE[placed.shape](x, y) * placed.radius, 0, 1)
    return covered


def render(
    things: list[Placed], background: str, *, width: int = CANVAS, height: int = CANVAS
) -> Image.Image:
    """Paint placed shapes in order on a background, as an RGB picture."""
    picture = np.broadcast_to(np.array(PALETTE[background], float), (height, width, 3))
    for thing in things:
        alpha = coverage(thing, width, height)[..., None]
        picture = picture * (1 - alpha) + np.array(PALETTE[thing.colour], float) * alpha
    return Image.fromarray(np.rint(picture).astype(np.uint8))


def draw(
    scene: Scene, rng: random.Random, *, width: int = CANVAS, height: int = CANVAS
) -> Image.Image:
    """Draw a scene as an RGB picture, its free attributes and places chosen at random."""
    full = complete(scene, rng)
    things = place(full, rng, width=width, height=height)
    return render(things, full.background or "", width=width, height=height)
