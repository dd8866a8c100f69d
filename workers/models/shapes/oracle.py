"""Judge whether a picture shows what a prompt asks for, by measuring the picture.

It looks at pixels alone: it finds the background, the connected things on it, and for each thing
its colour, its shape (which drawn shape of the same area and centroid covers it best) and radius.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .drawing import PALETTE, RADII, Placed, coverage
from .grammar import COLOURS, SHAPES, Scene, parse

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_COLOUR_TOLERANCE: Final = 45.0  # sRGB distance; the closest palette colours are 98 apart
_CONTRAST: Final = 24.0  # a pixel further than this from the background belongs to a thing
_SPECK: Final = 8.0  # covered pixels below which a blot is noise, not a thing
_OVERLAP: Final = 0.86  # soft intersection over union that makes a blot a shape
_SIZE_LIMIT: Final = (RADII["small"][1] + RADII["large"][0]) / 2
_IMPURE: Final = 0.08  # share of a thing's pixels, or of the background's, that may be off-colour


@dataclass(frozen=True)
class Blot:
    """One connected thing as measured; None for what is no known colour or shape."""

    shape: str | None
    colour: str | None
    size: str
    overlap: float
    """Soft intersection over union with the best matching drawn shape."""
    box: tuple[float, float, float, float]
    """Left, top, right, bottom, in pixels."""


@dataclass(frozen=True)
class Verdict:
    """What the oracle saw and what is wrong with it."""

    background: str | None
    things: tuple[Blot, ...]
    faults: tuple[str, ...]
    """What is wrong: "background", "count", "shape", "colour", "size", "relation"."""

    @property
    def ok(self) -> bool:
        return not self.faults


def judge(picture: Image.Image | NDArray[np.uint8], prompt: str | Scene) -> Verdict:
    """Compare a picture with a prompt.

    Args:
        picture: an RGB picture, or its pixels of shape (height, width, 3), uint8.
        prompt: a prompt of the model's language; what it leaves out may be anything.

    Raises:
        ValueError: the prompt is not in the language.
    """
    scene = parse(prompt) if isinstance(prompt, str) else prompt
    background, things = look(picture)
    faults = () if scene.background in (None, background) and background else ("background",)
    if len(things) != len(scene.things):
        return Verdict(background, things, (*faults, "count"))
    orders = [things] if len(things) == 1 else [things, things[::-1]]
    best = min((_faults(scene, order) for order in orders), key=len)
    return Verdict(background, things, (*faults, *best))


def look(picture: Image.Image | NDArray[np.uint8]) -> tuple[str | None, tuple[Blot, ...]]:
    """Find the background's colour and the things on it."""
    pixels = np.asarray(picture, dtype=np.float64)
    palette = np.array([PALETTE[colour] for colour in COLOURS], dtype=np.float64)
    nearest = np.square(pixels[:, :, None, :] - palette).sum(-1).argmin(-1)
    ground = np.median(pixels[nearest == np.bincount(nearest.ravel()).argmax()], axis=0)
    labels, count = _components(np.linalg.norm(pixels - ground, axis=-1) > _CONTRAST)
    blots = (_measure(pixels, ground, labels == label) for label in range(1, count + 1))
    return _name(ground), tuple(blot for blot in blots if blot is not None)


def _faults(scene: Scene, blots: tuple[Blot, ...]) -> list[str]:
    faults = []
    for attribute in ("shape", "colour", "size"):
        wrong = any(
            getattr(blot, attribute) is None
            or getattr(thing, attribute) not in (None, getattr(blot, attribute))
            for thing, blot in zip(scene.things, blots, strict=True)
        )
        faults += [attribute] * wrong
    if scene.relation is not None and not _related(scene.relation, blots[0], blots[1]):
        faults.append("relation")
    return faults


def _related(relation: str, first: Blot, second: Blot) -> bool:
    if relation in ("below", "right of"):
        first, second = second, first
    axis = 1 if relation in ("above", "below") else 0
    clear = first.box[axis + 2] <= second.box[axis]
    near, far = (np.add(blot.box[:2], blot.box[2:]) / 2 for blot in (first, second))
    offset = np.abs(far - near)
    return bool(clear and offset[axis] > offset[1 - axis])


def _measure(pixels: Floats, ground: Floats, mask: Mask) -> Blot | None:
    contrast = np.linalg.norm(pixels - ground, axis=-1)
    core = mask & (contrast > 0.7 * np.quantile(contrast[mask], 0.9))
    colour = np.median(pixels[core], axis=0)
    axis = colour - ground
    alpha = np.where(_grow(mask), np.clip((pixels - ground) @ axis / (axis @ axis), 0, 1), 0)
    if alpha.sum() < _SPECK:
        return None
    off = np.linalg.norm(pixels - ground - alpha[..., None] * axis, axis=-1) > _COLOUR_TOLERANCE
    pure = (off & mask).sum() <= _IMPURE * mask.sum()
    overlap, radius, shape = max(_match(alpha, shape) for shape in SHAPES)
    columns, rows = np.flatnonzero((alpha > 0.5).any(0)), np.flatnonzero((alpha > 0.5).any(1))
    if not columns.size:
        return None
    return Blot(
        shape=shape if overlap >= _OVERLAP else None,
        colour=_name(colour) if pure else None,
        size="large" if radius > _SIZE_LIMIT else "small",
        overlap=overlap,
        box=(float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)),
    )


def _match(alpha: Floats, shape: str) -> tuple[float, float, str]:
    """Lay the drawn shape of the same area and centroid over a blot: (overlap, radius, shape)."""
    area, drop = _MOMENTS[shape]
    radius = float(np.sqrt(alpha.sum() / area))
    height, width = alpha.shape
    x = float((alpha.sum(0) @ (np.arange(width) + 0.5)) / alpha.sum())
    y = float((alpha.sum(1) @ (np.arange(height) + 0.5)) / alpha.sum())
    drawn = coverage(Placed(shape, "", x, y - drop * radius, radius), width, height)
    return float(np.minimum(alpha, drawn).sum() / np.maximum(alpha, drawn).sum()), radius, shape


def _moments(shape: str) -> tuple[float, float]:
    """Measure a shape of radius 1: its area and how far its centroid lies below its centre."""
    radius, side = 100.0, 300
    alpha = coverage(Placed(shape, "", side / 2, side / 2, radius), side, side)
    centroid = alpha.sum(1) @ (np.arange(side) + 0.5) / alpha.sum()
    return float(alpha.sum() / radius**2), float((centroid - side / 2) / radius)


_MOMENTS: Final = {shape: _moments(shape) for shape in SHAPES}


def _name(colour: Floats) -> str | None:
    distance = {word: float(np.linalg.norm(colour - rgb)) for word, rgb in PALETTE.items()}
    best = min(distance, key=distance.__getitem__)
    return best if distance[best] <= _COLOUR_TOLERANCE else None


def _grow(mask: Mask) -> Mask:
    padded = np.pad(mask, 1)
    height, width = mask.shape
    around = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)]
    grown: Mask = np.any(around, axis=0)
    return grown


def _components(mask: Mask) -> tuple[NDArray[np.intp], int]:
    """Label 8-connected regions 1..count, 0 outside, by spreading the largest index."""
    height, width = mask.shape
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(labels, 1)
        spread = np.max(
            [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)], axis=0
        )
        spread = np.where(mask, spread, 0)
        if np.array_equal(spread, labels):
            break
        labels = spread
    names, flat = np.unique(np.append(0, labels), return_inverse=True)
    return flat[1:].reshape(mask.shape), len(names) - 1
