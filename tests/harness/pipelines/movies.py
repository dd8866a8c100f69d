"""The synthetic pipeline with videos for outputs: grey frames, each brighter than the last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from painters import PaintingPipeline

from sidestream.workers.models import synthetic
from sidestream.workers.step_protocol import InputBatch, StepRequestState

BRIGHTER = 10


class FilmingPipeline(PaintingPipeline):
    """Called like `SyntheticPipeline`; the first frame is as bright as its fill says.

    A prompt with "flat" in it brings a picture instead, which no pipeline of videos should return.
    """

    def __call__(
        self,
        prompt: Any = None,
        negative_prompt: Any = None,
        height: int | None = None,
        width: int | None = None,
        num_frames: int = 5,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        generator: Any = None,
        image: Any = None,
        output_type: str = "pt",
    ) -> Any:
        """Make a video."""
        arguments = {name: value for name, value in locals().items() if name in _ARGUMENTS}
        state = StepRequestState(arguments)
        self.prepare_encode(state)
        self._num_timesteps = state.total or 0
        for state.step in range(self._num_timesteps):
            self.step_scheduler(state, self.denoise_step(InputBatch([state]))[0])
        return self.post_decode(state)

    def prepare_encode(self, state: StepRequestState) -> None:
        frames = state.kwargs.pop("num_frames", 5)
        super().prepare_encode(state)
        state.data.frames = frames

    def post_decode(self, state: StepRequestState) -> Any:
        picture = super().post_decode(state).images  # type: ignore[union-attr]
        if any("flat" in (prompt or "") for prompt in state.data.prompts):
            return SimpleNamespace(images=picture)
        steps = torch.arange(state.data.frames).view(1, -1, 1, 1, 1) * BRIGHTER / 255
        return SimpleNamespace(frames=(picture.unsqueeze(1) + steps).clamp(0, 1))


_ARGUMENTS = (
    *("prompt", "negative_prompt", "height", "width", "num_frames", "num_inference_steps"),
    *("guidance_scale", "generator", "image", "output_type"),
)


def filmer(device: str, **options: Any) -> FilmingPipeline:
    """Make one; options are those of ``synthetic``."""
    pipeline = synthetic.load(options, device=device, dtype=None)
    pipeline.__class__ = FilmingPipeline
    return pipeline  # type: ignore[return-value]
