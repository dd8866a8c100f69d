"""The language of the embedded model: which scenes exist and how a prompt says them.

A scene is one thing, or two things and the relation between them, on a background. Size, colour
and background may be left out of a prompt; the picture is then free in that attribute.
"""

import random
import re
import zlib
from dataclasses import dataclass, replace
from typing import Final

COLOURS: Final = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
SHAPES: Final = ("circle", "square", "triangle", "star", "heart", "diamond")
SIZES: Final = ("small", "large")
RELATIONS: Final = ("above", "below", "left of", "right of")

WORDS: Final = (
    *("a", "an", "the", "on", "to", "of", "left", "right", "above", "below", "background"),
    *SIZES,
    *COLOURS,
    *SHAPES,
)

HELD_OUT_SHARE: Final = 20
"""One full scene in this many is never shown in training."""

_THING = (
    rf"(?:an?|the) (?:(?P<size{{0}}>{'|'.join(SIZES)}) )?"
    rf"(?:(?P<colour{{0}}>{'|'.join(COLOURS)}) )?(?P<shape{{0}}>{'|'.join(SHAPES)})"
)
_PROMPT = re.compile(
    _THING.format(1)
    + r"(?: (?:to the )?(?P<relation>"
    + "|".join(RELATIONS)
    + ") "
    + _THING.format(2)
    + ")?"
    + rf"(?: on (?:an?|the) (?P<background>{'|'.join(COLOURS)}) background)?"
)


def _a(words: str) -> str:
    return ("an " if words.startswith("o") else "a ") + words


@dataclass(frozen=True)
class Thing:
    """One shape; None leaves an attribute free."""

    shape: str
    colour: str | None = None
    size: str | None = None

    def __str__(self) -> str:
        return _a(" ".join(word for word in (self.size, self.colour, self.shape) if word))


@dataclass(frozen=True)
class Scene:
    """What a prompt asks for; `relation` and `second` are both given or both None."""

    first: Thing
    relation: str | None = None
    second: Thing | None = None
    background: str | None = None

    @property
    def things(self) -> tuple[Thing, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def prompt(self) -> str:
        """The scene in words: "a small red star above a large heart on a blue background"."""
        words = str(self.first)
        if self.second is not None:
            words += f" {self.relation} {self.second}"
        if self.background is not None:
            words += f" on {_a(self.background)} background"
        return words


def parse(prompt: str) -> Scene:
    """Read a prompt of the model's language.

    Raises:
        ValueError: the prompt is not in the language, or a thing has the background's colour.
    """
    match = _PROMPT.fullmatch(" ".join(prompt.lower().split()))
    if match is None:
        raise ValueError(
            f"not a prompt of the shapes model: {prompt!r} (try 'a large red circle above a small "
            "blue square on a green background')"
        )
    said = match.groupdict()
    first, second = (Thing(*(said[part + i] for part in ("shape", "colour", "size"))) for i in "12")
    scene = Scene(first, said["relation"], second if second.shape else None, said["background"])
    if scene.background and scene.background in {thing.colour for thing in scene.things}:
        raise ValueError(f"invisible on a {scene.background} background: {prompt!r}")
    return scene


def complete(scene: Scene, rng: random.Random) -> Scene:
    """Fill every free attribute of a scene at random, so that it can be drawn."""
    taken = {thing.colour for thing in scene.things}
    background = scene.background or rng.choice([c for c in COLOURS if c not in taken])
    visible = [c for c in COLOURS if c != background]

    def fill(thing: Thing) -> Thing:
        return Thing(
            thing.shape, thing.colour or rng.choice(visible), thing.size or rng.choice(SIZES)
        )

    second = scene.second and fill(scene.second)
    return replace(scene, first=fill(scene.first), second=second, background=background)


def sample(rng: random.Random, *, held_out: bool = False, single_share: float = 0.15) -> Scene:
    """Draw a random full scene.

    Args:
        held_out: draw from the scenes that training never shows, instead of the others.
        single_share: how often the scene has one thing only.
    """
    while True:
        first, second = Thing(rng.choice(SHAPES)), Thing(rng.choice(SHAPES))
        if rng.random() < single_share:
            scene = complete(Scene(first), rng)
        else:
            scene = complete(Scene(first, rng.choice(RELATIONS), second), rng)
        if is_held_out(scene) == held_out:
            return scene


def is_held_out(scene: Scene) -> bool:
    """Tell whether training leaves out this full scene (a fixed choice by hash)."""
    return zlib.crc32(scene.prompt.encode()) % HELD_OUT_SHARE == 0
