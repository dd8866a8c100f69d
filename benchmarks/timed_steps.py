"""Models for `benchmarks/step.py` that measure their own module where they are loaded.

Burning a given time is calibrated in each process, to a few percent; so what a step costs beyond
its module can only be told by the process that runs both.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from sidestream.workers.models import load_pipeline


class Plain:
    """The synthetic model without its step protocol: it goes through lanes, as any pipeline does.

    Args:
        pipeline: The synthetic model.
    """

    def __init__(self, pipeline: Any) -> None:
        self.denoiser = pipeline.denoiser
        self.device = pipeline.device

    def __call__(
        self, prompt: str | None = None, num_inference_steps: int = 1, generator: Any = None
    ) -> torch.Tensor:
        """Run the steps; returns (1, 3, 8, 8)."""
        sample = torch.zeros(1, 1, device=self.device)
        for step in range(num_inference_steps):
            sample = self.denoiser(sample, step)
        return sample.expand(3, 64).reshape(1, 3, 8, 8)


def load(step_ms: float, steps: int, report: str, protocol: bool, device: str) -> Any:
    """Load a model whose steps take `step_ms`; write seconds of one in a loop into `report`."""
    options = {"forward_ms": step_ms, "steps": 1, "shape": (1, 3, 8, 8)}
    pipeline = load_pipeline("synthetic", options, device=device, dtype=None)
    Path(report).write_text(json.dumps(_seconds_of_one(pipeline.denoiser, steps, device)))
    return pipeline if protocol else Plain(pipeline)


@torch.no_grad()
def _seconds_of_one(denoiser: Any, steps: int, device: str) -> float:
    sample = torch.zeros(1, 1, device=device)
    for count in (10, steps):  # the first ones warm up
        began = time.perf_counter()
        for step in range(count):
            sample = denoiser(sample, step)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps
