"""The synthetic pipeline with pictures for outputs, for servers that are measured."""

from typing import Any

import torch

from sidestream.workers.models import synthetic


class GreyPictures(synthetic.SyntheticPipeline):
    """Grey pictures, as bright as the fill of `SyntheticPipeline` says."""

    def _paint(self, sample: torch.Tensor, height: int | None, width: int | None) -> torch.Tensor:
        return super()._paint(sample, height, width) / 255


def load(device: str, **options: Any) -> synthetic.SyntheticPipeline:
    """Make one; options are those of ``synthetic``."""
    pipeline = synthetic.load(options, device=device, dtype=None)
    pipeline.__class__ = GreyPictures
    return pipeline
