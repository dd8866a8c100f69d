"""A pipeline that returns pictures: grey ones, in [0, 1], as bright as the seed says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch


class PicturePipeline:
    """Called like a diffusers pipeline; output `i` is `(seed + i) / 255` all over."""

    components: ClassVar[dict[str, Any]] = {}

    def __call__(
        self,
        prompt: str,
        generator: Any,
        height: int = 32,
        width: int = 48,
        num_images_per_prompt: int = 1,
        output_type: str = "pil",
    ) -> SimpleNamespace:
        generators = generator if isinstance(generator, list) else [generator]
        assert len(generators) == num_images_per_prompt
        fill = torch.tensor([one.initial_seed() / 255 for one in generators])
        images = fill.reshape(-1, 1, 1, 1).expand(-1, 3, height, width).contiguous()
        return SimpleNamespace(images=images)


class PromptlessPipeline(PicturePipeline):
    """One that takes no prompt."""

    def __call__(self, generator: Any, output_type: str = "pil") -> SimpleNamespace:
        return super().__call__("", generator, output_type=output_type)
