"""A Wan pipeline that makes a video window by window, and tells each window when it is done."""

from collections.abc import Callable, Sequence
from typing import Any

import diffusers
import torch
from diffusers.pipelines.wan.pipeline_output import WanPipelineOutput

SHARE = 0.5
"""How much of the noise all windows of a video have in common, which keeps them alike."""


class WanChunksPipeline(diffusers.WanPipeline):  # type: ignore[misc]
    """Text to video of any length: each window of frames has its own denoising and decoding.

    All windows start from noise that they partly share. Memory and time to the first frames depend
    on the window, not on the length of the video.
    """

    _windows = 1
    _window_timesteps = 0

    @property
    def _num_timesteps(self) -> int:
        """Steps of the whole call. `WanPipeline` sets it to those of one window."""
        return self._window_timesteps * self._windows

    @_num_timesteps.setter
    def _num_timesteps(self, count: int) -> None:
        self._window_timesteps = count

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | list[str] | None = None,
        negative_prompt: str | list[str] | None = None,
        height: int = 480,
        width: int = 832,
        num_frames: int = 81,
        chunk_frames: int = 21,
        num_inference_steps: int = 50,
        guidance_scale: float = 5.0,
        num_videos_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        output_type: str = "np",
        return_dict: bool = True,
        max_sequence_length: int = 512,
        on_chunk: Callable[[Any], None] | None = None,
    ) -> WanPipelineOutput | tuple[Any]:
        """Make a video.

        Args:
            prompt: What it shows.
            negative_prompt: What to keep away from.
            height: Pixels.
            width: Pixels.
            num_frames: Frames of the video.
            chunk_frames: Frames of a window: 1 more than a multiple of 4. The last window is cut.
            num_inference_steps: Denoising steps of each window.
            guidance_scale: Classifier-free guidance.
            num_videos_per_prompt: Videos for each prompt.
            generator: Where noise comes from.
            output_type: "pt", or "latent": then windows of latents, joined in time.
            return_dict: Whether to return an object or a tuple.
            max_sequence_length: Tokens of the prompt.
            on_chunk: Called with each window as soon as it is done: (n, F, C, H, W) in [0, 1], or
                latents.

        Raises:
            ValueError: No windows can be made that way.
        """
        if output_type not in ("pt", "latent"):
            raise ValueError(f"output_type must be 'pt' or 'latent', not {output_type!r}")
        if num_frames < 1 or chunk_frames < 1 or chunk_frames % self.vae_scale_factor_temporal != 1:
            raise ValueError(
                f"num_frames must be at least 1, and chunk_frames 1 more than a multiple of"
                f" {self.vae_scale_factor_temporal}, not {num_frames} and {chunk_frames}"
            )
        self._windows = -(-num_frames // chunk_frames)
        self._guidance_scale = guidance_scale
        embeds, negative_embeds = self.encode_prompt(
            prompt=prompt,
            negative_prompt=negative_prompt,
            do_classifier_free_guidance=self.do_classifier_free_guidance,
            num_videos_per_prompt=num_videos_per_prompt,
            max_sequence_length=max_sequence_length,
            device=self._execution_device,
        )
        base: torch.Tensor | None = None
        chunks: list[torch.Tensor] = []
        for index in range(self._windows):
            noise = self.prepare_latents(
                len(embeds),
                self.transformer.config.in_channels,
                height,
                width,
                chunk_frames,
                torch.float32,
                self._execution_device,
                generator,
            )
            base = noise if base is None else base
            mixed = noise if index == 0 else SHARE**0.5 * base + (1 - SHARE) ** 0.5 * noise
            frames = super().__call__(
                prompt_embeds=embeds,
                negative_prompt_embeds=negative_embeds,
                height=height,
                width=width,
                num_frames=chunk_frames,
                num_inference_steps=num_inference_steps,
                guidance_scale=guidance_scale,
                latents=mixed,
                output_type=output_type,
                return_dict=False,
            )[0]
            if output_type == "pt":
                frames = frames[:, : num_frames - index * chunk_frames]
            if on_chunk is not None:
                on_chunk(frames)
            chunks.append(frames)
        video = torch.cat(chunks, dim=1 if output_type == "pt" else 2)
        return WanPipelineOutput(frames=video) if return_dict else (video,)
