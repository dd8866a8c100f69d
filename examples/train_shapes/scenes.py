"""Scenes as tensors: sampled once by CPU processes, painted on the device in any order."""

import random
import re
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from sidestream.workers.models.shapes import drawing, grammar

Size = tuple[int, int]

CANVASES: dict[Size, float] = {(128, 128): 0.7, (128, 160): 0.1, (160, 128): 0.1, (160, 160): 0.1}
"""How often each width and height is trained: others beside the default, so that all work."""

PROMPT_DROPOUT = 0.1
"""Share of pictures trained with the empty prompt, for classifier-free guidance."""

SLOTS = (*grammar.RELATIONS, "alone")
"""Places of a thing relative to the other one; the text encoder learns who is where."""

SLOT_CLASSES = (grammar.SHAPES, grammar.COLOURS, grammar.SIZES)
"""What it learns of the thing in a slot; class 0 is "no thing there", class 1 "left open"."""

_CHUNK = 1000  # scenes that one process samples at a time
_TABLE_SPAN, _TABLE_SIDE = 2.0, 513  # distance tables cover [-2, 2] radii on each axis
_NOWHERE = drawing.Placed("circle", "black", -1000.0, -1000.0, 1.0)


@dataclass(frozen=True)
class Scenes:
    """Scenes of one picture size.

    `ids` is (n, length); `slots` (n, slots, 3) of classes; `things` (n, 2, 4) of shape index, x,
    y, radius; `colours` (n, 2, 3) and `grounds` (n, 3) are RGB in [-1, 1].
    """

    size: Size
    ids: torch.Tensor
    slots: torch.Tensor
    things: torch.Tensor
    colours: torch.Tensor
    grounds: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: torch.Tensor | slice) -> "Scenes":
        tensors = {k: v[rows] for k, v in vars(self).items() if k != "size"}
        return replace(self, **tensors)


def sample(tokenizer: Any, count: int, size: Size, seed: int, pool: ProcessPoolExecutor) -> Scenes:
    """Sample scenes outside the held-out set, with prompts."""
    chunks = -(-count // _CHUNK)
    vocabulary = tokenizer.get_vocab(), tokenizer.model_max_length
    parts = pool.map(_sample, repeat(vocabulary), repeat(size), range(seed, seed + chunks))
    columns = (np.concatenate(column)[:count] for column in zip(*parts, strict=True))
    ids, slots, things, colours, grounds = map(torch.from_numpy, columns)
    return Scenes(size, ids, slots, things.float(), colours / 127.5 - 1, grounds / 127.5 - 1)


def to(scenes: Scenes, device: torch.device) -> Scenes:
    """Move scenes to a device."""
    tensors = {k: v.to(device) for k, v in vars(scenes).items() if k != "size"}
    return replace(scenes, **tensors)


def _sample(vocabulary: tuple[Mapping[str, int], int], size: Size, seed: int) -> list[np.ndarray]:
    rng = random.Random(seed)
    rows = [_row(rng, vocabulary, size) for _ in range(_CHUNK)]
    return [np.array(column) for column in zip(*rows, strict=True)]


def _row(
    rng: random.Random, vocabulary: tuple[Mapping[str, int], int], size: Size
) -> tuple[Any, ...]:
    scene = grammar.sample(rng)
    placed = drawing.place(scene, rng, width=size[0], height=size[1])
    placed += [_NOWHERE] * (2 - len(placed))
    said = None if rng.random() < PROMPT_DROPOUT else leave_open(scene, rng)
    return (
        tokens("" if said is None else reword(said.prompt, rng), *vocabulary),
        slot_classes(said),
        [(grammar.SHAPES.index(p.shape), p.x, p.y, p.radius) for p in placed],
        [drawing.PALETTE[p.colour] for p in placed],
        drawing.PALETTE[scene.background or ""],
    )


def leave_open(scene: grammar.Scene, rng: random.Random) -> grammar.Scene:
    """Forget some attributes of a full scene: what a prompt may leave out."""

    def loosen(thing: grammar.Thing) -> grammar.Thing:
        return replace(
            thing,
            size=None if rng.random() < 0.1 else thing.size,
            colour=None if rng.random() < 0.05 else thing.colour,
        )

    return replace(
        scene,
        first=loosen(scene.first),
        second=scene.second and loosen(scene.second),
        background=None if rng.random() < 0.15 else scene.background,
    )


def reword(prompt: str, rng: random.Random) -> str:
    """Say a prompt in other words: another form, a slip, an unknown word."""
    if rng.random() < 0.3:
        prompt = re.sub(" (left|right) of", r" to the \1 of", prompt)
    if rng.random() < 0.2:
        prompt = prompt.replace("an orange", "a orange")
    if rng.random() < 0.05:
        words = prompt.split()
        words.insert(rng.randrange(len(words) + 1), "<unk>")
        prompt = " ".join(words)
    return prompt


def tokens(prompt: str, ids: Mapping[str, int], length: int) -> list[int]:
    """Encode a prompt as the pipeline's tokenizer does, padded."""
    row = [ids["<s>"], *(ids.get(word, ids["<unk>"]) for word in prompt.split()), ids["</s>"]]
    return row + [ids["<pad>"]] * (length - len(row))


def slot_classes(said: grammar.Scene | None) -> list[list[int]]:
    """Say which thing is in which slot: a row of shape, colour and size class for each of SLOTS."""
    slots = [[0] * len(SLOT_CLASSES) for _ in SLOTS]
    if said is None:
        return slots
    if said.relation is None:
        places = ("alone",)
    else:
        opposite = grammar.RELATIONS[grammar.RELATIONS.index(said.relation) ^ 1]
        places = (said.relation, opposite)
    for thing, place in zip(said.things, places, strict=True):
        values = (thing.shape, thing.colour, thing.size)
        slots[SLOTS.index(place)] = [
            1 if value is None else 2 + words.index(value)
            for value, words in zip(values, SLOT_CLASSES, strict=True)
        ]
    return slots


class Painter:
    """Paints scenes on a device, by sampling tables of the distance functions of `drawing`."""

    def __init__(self, device: torch.device) -> None:
        axis = np.linspace(-_TABLE_SPAN, _TABLE_SPAN, _TABLE_SIDE)
        tables = [drawing.DISTANCE[s](axis[None, :], axis[:, None]) for s in grammar.SHAPES]
        self.tables = torch.tensor(np.stack(tables), dtype=torch.float32, device=device)[None, None]

    def paint(self, scenes: Scenes) -> tuple[torch.Tensor, torch.Tensor]:
        """Paint scenes.

        Returns:
            Pictures, (n, 3, height, width), float32 in [-1, 1]; and where a thing is at least in
            part, (n, 1, height, width), float32 of 0 or 1.
        """
        width, height = scenes.size
        device = scenes.things.device
        columns = (torch.arange(width, device=device) + 0.5).view(1, 1, -1)
        rows = (torch.arange(height, device=device) + 0.5).view(1, -1, 1)
        pictures = scenes.grounds[:, :, None, None].expand(-1, -1, height, width)
        covered = torch.zeros(len(scenes), 1, height, width, device=device)
        for i in range(2):
            shape, x, y, radius = scenes.things[:, i, :, None, None].unbind(1)
            grid = torch.stack(
                torch.broadcast_tensors(
                    (columns - x) / radius / _TABLE_SPAN,
                    (rows - y) / radius / _TABLE_SPAN,
                    shape / (len(grammar.SHAPES) - 1) * 2 - 1,
                ),
                dim=-1,
            )
            distance = functional.grid_sample(
                self.tables, grid[None], padding_mode="border", align_corners=True
            )[0, 0]
            alpha = (0.5 - distance * radius).clamp(0, 1)[:, None]
            pictures = torch.lerp(pictures, scenes.colours[:, i, :, None, None], alpha)
            covered = torch.maximum(covered, (alpha > 0).float())
        return pictures, covered
