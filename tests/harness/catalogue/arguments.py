"""What requests bring along: each function makes the index-th request's own value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image

PROMPTS = ("a cat", "a big red dog", "the sky in a photo", "small blue birds")


def prompt(index: int) -> str:
    """Return the request's prompt."""
    return PROMPTS[index]


def generator(index: int) -> torch.Generator:
    """Return the request's generator."""
    return torch.Generator().manual_seed(index)


def pictures(width: int = 32, height: int | None = None) -> Callable[[int], Image.Image]:
    """Return a function that makes pictures of random colours in large squares."""

    def picture(index: int) -> Image.Image:
        pixels = np.random.RandomState(index).randint(0, 256, (4, 4, 3), dtype=np.uint8)
        return Image.fromarray(pixels).resize((width, height or width))

    return picture


def masks(width: int = 32, height: int | None = None) -> Callable[[int], Image.Image]:
    """Return a function that makes masks: white where a picture is to be repainted."""

    def mask(index: int) -> Image.Image:
        pixels = np.zeros((8, 8), np.uint8)
        pixels[: 4 + index, 2:6] = 255
        return Image.fromarray(pixels).resize((width, height or width), Image.Resampling.NEAREST)

    return mask


def videos(
    frames: int, width: int = 32, height: int | None = None
) -> Callable[[int], list[Image.Image]]:
    """Return a function that makes videos as lists of pictures."""
    picture = pictures(width, height)
    return lambda index: [picture(100 * index + frame) for frame in range(frames)]


def tensors(*shape: int) -> Callable[[int], torch.Tensor]:
    """Return a function that makes tensors of normal numbers."""
    return lambda index: torch.randn(shape, generator=generator(index))


def unit_tensors(*shape: int) -> Callable[[int], torch.Tensor]:
    """Return a function that makes tensors of numbers in [0, 1)."""
    return lambda index: torch.rand(shape, generator=generator(index))
