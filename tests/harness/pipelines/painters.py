"""The synthetic pipeline with pictures for outputs: grey ones, as bright as its fill says."""

from __future__ import annotations

from typing import Any

import torch

from sidestream.workers.models import synthetic


class PaintingPipeline(synthetic.SyntheticPipeline):
    """Called like `SyntheticPipeline`, which says what the fill is."""

    def _paint(self, sample: torch.Tensor, height: int | None, width: int | None) -> torch.Tensor:
        return super()._paint(sample, height, width) / 255

    def prepare_encode(self, state: Any) -> None:
        height = state.kwargs.get("height")
        if height is not None and height % 8:
            raise ValueError(f"`height` has to be divisible by 8 but is {height}.")
        super().prepare_encode(state)


def painter(device: str, **options: Any) -> PaintingPipeline:
    """Make one; options are those of ``synthetic``."""
    pipeline = synthetic.load(options, device=device, dtype=None)
    pipeline.__class__ = PaintingPipeline
    return pipeline  # type: ignore[return-value]


def adapted(device: str) -> PaintingPipeline:
    """Make one that says that it has an adapter."""
    pipeline: Any = painter(device)
    pipeline.sidestream_lora = ("style",)
    return pipeline  # type: ignore[no-any-return]
