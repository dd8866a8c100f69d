"""Pipelines that have one buffer, or free theirs and take it again: what they return is written to
as soon as the next request begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch

POISON = 0.75
"""What the buffer holds while a request runs; no output has it."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Reusing:
    """Fills its output with the seed, or with seed / 255, in a time that the device takes.

    Args:
      shape: of the output.
      element: type of the elements of the output.
      scale: what seeds are multiplied with.
      keep: whether the buffer is the same for all requests, else it is freed with its output.
      cycles: how long the device works before it writes the output.
      several: whether there are a sound and latents, too.
    """

    components: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        device: str,
        shape: list[int],
        element: str = "bf16",
        scale: float = 1.0,
        keep: bool = True,
        cycles: int = 0,
        several: bool = False,
    ) -> None:
        self._new = lambda: torch.empty(shape, dtype=DTYPES[element], device=device)
        self._buffer = self._new() if keep else None
        self._device = torch.device(device)
        self._scale = scale
        self._cycles = cycles
        self._several = several

    def __call__(self, prompt: str, generator: torch.Generator) -> SimpleNamespace:
        images = self._new() if self._buffer is None else self._buffer
        images.fill_(POISON * self._scale)  # at once: the last output may not be copied yet
        if self._device.type == "cuda":
            torch.cuda._sleep(self._cycles)
        value = generator.initial_seed() * self._scale
        images.fill_(value)
        if not self._several:
            return SimpleNamespace(images=images)
        audio = torch.full((1, 2, 48_000), value, device=self._device)
        latents = images[..., ::8, ::8]
        return SimpleNamespace(images=images, audio=audio, latents=latents)
