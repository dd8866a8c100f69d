"""An endless stream of drawn pictures with prompts: sampled by CPU workers, painted on the GPU."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from sidestream.workers.models.shapes import drawing, grammar

CANVASES = ((128, 128),) * 5 + ((128, 160), (160, 128), (160, 160))
"""Width and height of a batch, chosen at random: others beside the default, so that all work."""

PROMPT_DROPOUT = 0.1
"""Share of pictures trained with the empty prompt, for classifier-free guidance."""

_TABLE_SPAN, _TABLE_SIDE = 2.0, 513  # distance tables cover [-2, 2] radii on each axis
_NOWHERE = drawing.Placed("circle", "black", -1000.0, -1000.0, 1.0)


@dataclass
class Batch:
    """Scenes as tensors.

    `ids` is (n, length); `things` (n, 2, 4) of shape index, x, y, radius; `colours` (n, 2, 3) and
    `grounds` (n, 3) are RGB in [-1, 1].
    """

    size: tuple[int, int]
    ids: torch.Tensor
    things: torch.Tensor
    colours: torch.Tensor
    grounds: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        tensors = {k: v for k, v in vars(self).items() if k != "size"}
        return replace(self, **{k: v.to(device, non_blocking=True) for k, v in tensors.items()})

    def fill(self, other: "Batch") -> None:
        """Take the values of another batch of the same size."""
        for name, tensor in vars(other).items():
            if name != "size":
                vars(self)[name].copy_(tensor, non_blocking=True)


class Scenes(IterableDataset[Batch]):
    """Batches of random scenes outside the held-out set."""

    def __init__(self, tokenizer: Any, batch: int, seed: int) -> None:
        self.ids = tokenizer.get_vocab()
        self.length = tokenizer.model_max_length
        self.batch, self.seed = batch, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = random.Random(self.seed * 1000 + (worker.id if worker else 0))
        while True:
            size = rng.choice(CANVASES)
            rows = [self._row(rng, size) for _ in range(self.batch)]
            ids, things, colours, grounds = (np.array(column) for column in zip(*rows, strict=True))
            yield Batch(
                size,
                torch.from_numpy(ids),
                torch.from_numpy(things).float(),
                torch.from_numpy(colours).float() / 127.5 - 1,
                torch.from_numpy(grounds).float() / 127.5 - 1,
            )

    def _row(self, rng: random.Random, size: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
        scene = grammar.sample(rng)
        placed = drawing.place(scene, rng, width=size[0], height=size[1])
        placed += [_NOWHERE] * (2 - len(placed))
        return (
            self._tokens(wording(scene, rng)),
            [(grammar.SHAPES.index(p.shape), p.x, p.y, p.radius) for p in placed],
            [drawing.PALETTE[p.colour] for p in placed],
            drawing.PALETTE[scene.background or ""],
        )

    def _tokens(self, prompt: str) -> list[int]:
        ids = [self.ids.get(word, self.ids["<unk>"]) for word in prompt.split()]
        ids = [self.ids["<s>"], *ids, self.ids["</s>"]]
        return ids + [self.ids["<pad>"]] * (self.length - len(ids))


def wording(scene: grammar.Scene, rng: random.Random) -> str:
    """Say a scene in one of many ways: parts left out, other forms, an unknown word, nothing."""
    if rng.random() < PROMPT_DROPOUT:
        return ""

    def loosen(thing: grammar.Thing) -> grammar.Thing:
        return replace(
            thing,
            size=None if rng.random() < 0.1 else thing.size,
            colour=None if rng.random() < 0.05 else thing.colour,
        )

    said = replace(
        scene,
        first=loosen(scene.first),
        second=scene.second and loosen(scene.second),
        background=None if rng.random() < 0.15 else scene.background,
    )
    words = said.prompt
    if rng.random() < 0.3:
        words = re.sub(" (left|right) of", r" to the \1 of", words)
    if rng.random() < 0.2:
        words = words.replace("an orange", "a orange")
    if rng.random() < 0.05:
        parts = words.split()
        parts.insert(rng.randrange(len(parts) + 1), "<unk>")
        words = " ".join(parts)
    return words


def stream(tokenizer: Any, batch: int, seed: int, workers: int) -> Iterator[Batch]:
    """Yield batches for ever, sampled by `workers` processes."""
    return iter(DataLoader(Scenes(tokenizer, batch, seed), batch_size=None, num_workers=workers))


class Painter:
    """Paints batches on a device, by sampling tables of the distance functions of `drawing`."""

    def __init__(self, device: torch.device) -> None:
        axis = np.linspace(-_TABLE_SPAN, _TABLE_SPAN, _TABLE_SIDE)
        tables = [drawing.DISTANCE[s](axis[None, :], axis[:, None]) for s in grammar.SHAPES]
        self.tables = torch.tensor(np.stack(tables), dtype=torch.float32, device=device)[None, None]

    def paint(self, batch: Batch) -> torch.Tensor:
        """Paint a batch as (n, 3, height, width), float32 in [-1, 1]."""
        width, height = batch.size
        device = batch.things.device
        columns = (torch.arange(width, device=device) + 0.5).view(1, 1, -1)
        rows = (torch.arange(height, device=device) + 0.5).view(1, -1, 1)
        pictures = batch.grounds[:, :, None, None].expand(-1, -1, height, width)
        for i in range(2):
            shape, x, y, radius = batch.things[:, i, :, None, None].unbind(1)
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
            pictures = torch.lerp(pictures, batch.colours[:, i, :, None, None], alpha)
        return pictures
