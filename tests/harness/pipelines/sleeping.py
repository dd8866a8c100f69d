"""A pipeline whose steps are one long kernel each: a host that did not hold itself back would give
all of them to the device in a moment."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn


class Sleeper(nn.Module):
    """Keeps the device busy, and adds one.

    Args:
      cycles: of the device, for each call.
    """

    def __init__(self, cycles: int) -> None:
        super().__init__()
        self._cycles = cycles

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(self._cycles)
        return sample + 1


class Sleeping:
    """Counts its steps; its output holds their number."""

    def __init__(self, device: str, cycles: int) -> None:
        self.unet = Sleeper(cycles)
        self._device = device

    def __call__(self, prompt: str, num_inference_steps: int = 1) -> SimpleNamespace:
        sample = torch.zeros(1, 3, 8, 8, device=self._device)
        for _ in range(num_inference_steps):
            sample = self.unet(sample)
        return SimpleNamespace(images=sample)
