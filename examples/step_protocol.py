"""A pipeline that runs its own steps: in step mode it gets all requests of a step as one batch.

PYTHONPATH=examples sidestream generate "teal" --model step_protocol:Paint --mode step
"""

from __future__ import annotations

import torch
from PIL import ImageColor
from torch import nn

from sidestream.workers.step_protocol import InputBatch, StepRequestState


class Denoiser(nn.Module):
    """Predicts the noise in pictures that are to be of one colour each."""

    def forward(self, sample: torch.Tensor, colour: torch.Tensor) -> torch.Tensor:
        """Return the noise, (n, 3, H, W), of `sample`, for colours (n, 3)."""
        return sample - colour[:, :, None, None]


class Paint:
    """Paints a picture in the colour that the prompt names, in grey if it names none."""

    def __init__(self) -> None:
        self.denoiser = Denoiser()

    def __call__(
        self,
        prompt: str,
        height: int = 64,
        width: int = 64,
        num_inference_steps: int = 8,
        generator: torch.Generator | None = None,
    ) -> tuple[torch.Tensor]:
        """Run one request from its beginning to its end, as in request mode."""
        size = {"height": height, "width": width, "num_inference_steps": num_inference_steps}
        state = StepRequestState({"prompt": prompt, "generator": generator, **size})
        self.prepare_encode(state)
        for state.step in range(num_inference_steps):
            (noise,) = self.denoise_step(InputBatch([state]))
            self.step_scheduler(state, noise)
        return self.post_decode(state)

    def prepare_encode(self, state: StepRequestState) -> None:
        """Look the colour up and draw the noise; pictures of one size share their calls."""
        asked = state.kwargs
        shape = (1, 3, asked.get("height", 64), asked.get("width", 64))
        colour = ImageColor.getrgb(ImageColor.colormap.get(asked["prompt"], "gray"))
        state.data.colour = torch.tensor([colour], dtype=torch.float32) / 255
        state.data.sample = torch.randn(shape, generator=asked.get("generator"))
        state.total = asked.get("num_inference_steps", 8)
        state.batch_key = shape

    def denoise_step(self, batch: InputBatch) -> list[torch.Tensor]:
        """Call the denoiser once for all requests, each at a step of its own."""
        noise = self.denoiser(batch.join("sample"), batch.join("colour"))
        return batch.split(noise, "sample")

    def step_scheduler(self, state: StepRequestState, noise: torch.Tensor) -> None:
        """Take one part of the noise away, so that none is left after the last step."""
        assert state.total is not None
        state.data.sample = state.data.sample - noise / (state.total - state.step)

    def post_decode(self, state: StepRequestState) -> tuple[torch.Tensor]:
        """Return the picture, (1, 3, H, W) in [0, 1]."""
        return (state.data.sample.clamp(0, 1),)
