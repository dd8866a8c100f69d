"""The space that a pipeline denoises in: latents of its own VAE, or pictures themselves."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class LatentSpace:
    """Turns latents into what the decoder takes, as the pipeline does, and that into pictures.

    Attributes:
        channels: Of the latents as the scheduler has them, once unpacked.
        device: Where the VAE is.
    """

    def __init__(self, pipeline: Any, vae: Any) -> None:
        """Read the conventions of a pipeline and a VAE.

        Args:
            pipeline: The pipeline.
            vae: Its VAE, or another one for the same latents.

        Raises:
            ValueError: It is a VAE of a kind that is not known.
        """
        self._vae = vae
        self._dtype = next(vae.parameters()).dtype
        self.device = next(vae.parameters()).device
        self._video = _is_video(vae)
        self._unpatchify = getattr(pipeline, "_unpatchify_latents", None)
        factor, offset = _scales(vae)
        scheduler = getattr(getattr(pipeline, "scheduler", None), "config", None) or {}
        factor = factor / (scheduler.get("sigma_data") or 1.0)
        if factor.numel() == 1:
            factor = factor.expand(_latent_channels(vae))
        self.channels = factor.numel()
        self._factor = factor.view(1, -1, 1, 1).to(self.device)
        self._offset = offset.view(1, -1, 1, 1).to(self.device)

    def to_decoder(self, latents: torch.Tensor) -> torch.Tensor:
        """Undo the pipeline's scaling of latents.

        Args:
            latents: (n, channels, h, w).

        Returns:
            (n, C, h', w'), float32, C being the channels of the decoder.
        """
        scaled = latents.float() * self._factor + self._offset
        if self._unpatchify is None or scaled.shape[1] == _latent_channels(self._vae):
            return scaled
        whole: torch.Tensor = self._unpatchify(scaled)
        return whole

    def decode(self, encoded: torch.Tensor) -> torch.Tensor:
        """Decode pictures.

        Args:
            encoded: (n, C, h, w), from `to_decoder` or `encode`.

        Returns:
            (n, 3, H, W), float32, in [0, 1].

        Raises:
            ValueError: The VAE makes no pictures.
        """
        names = inspect.signature(self._vae.decode).parameters
        extra: dict[str, Any] = {"return_dict": False}
        if "num_frames" in names:
            extra["num_frames"] = 1
        if "temb" in names and self._vae.config.get("timestep_conditioning"):
            extra["temb"] = torch.zeros(len(encoded), device=self.device, dtype=self._dtype)
        given = encoded.to(self._dtype)
        decoded = self._vae.decode(given.unsqueeze(2) if self._video else given, **extra)[0]
        pictures: torch.Tensor = decoded[:, :, 0] if decoded.ndim == 5 else decoded
        if pictures.ndim != 4 or pictures.shape[1] not in (3, 4):
            raise ValueError(f"the VAE makes no pictures, but {tuple(decoded.shape)}")
        return (pictures[:, :3].float() * 0.5 + 0.5).clamp(0, 1)

    def encode(self, pictures: torch.Tensor) -> torch.Tensor:
        """Encode pictures, (n, 3, H, W) in [0, 1], into what `decode` takes."""
        given = (pictures * 2 - 1).to(self.device, self._dtype)
        encoded = self._vae.encode(given.unsqueeze(2) if self._video else given, return_dict=False)
        latents = encoded[0].mode() if hasattr(encoded[0], "mode") else encoded[0]
        picture: torch.Tensor = latents[:, :, 0] if latents.ndim == 5 else latents
        return picture.float()

    @property
    def decoder_parameters(self) -> int:
        """How many parameters the decoder has."""
        decoder = getattr(self._vae, "decoder", self._vae)
        return sum(parameter.numel() for parameter in decoder.parameters())

    @contextmanager
    def precise(self) -> Iterator[None]:
        """Run a VAE that overflows in float16 in float32, as pipelines do."""
        if self._dtype != torch.float16 or not self._vae.config.get("force_upcast"):
            yield
            return
        self._vae.to(torch.float32)
        self._dtype = torch.float32
        try:
            yield
        finally:
            self._vae.to(torch.float16)
            self._dtype = torch.float16


class PixelSpace:
    """The space of pipelines that denoise pictures themselves: there is nothing to decode."""

    channels = 3

    def to_decoder(self, latents: torch.Tensor) -> torch.Tensor:
        """Return samples as they are, in float32."""
        return latents.float()

    def decode(self, encoded: torch.Tensor) -> torch.Tensor:
        """Map [-1, 1] to [0, 1]."""
        return (encoded * 0.5 + 0.5).clamp(0, 1)


def _is_video(vae: nn.Module) -> bool:
    """Whether a decoder takes (n, C, F, h, w); one that wants to know F takes flat frames."""
    if "num_frames" in inspect.signature(vae.decode).parameters:  # type: ignore[arg-type]
        return False
    return any(isinstance(module, nn.Conv3d) for module in vae.modules())


def _latent_channels(vae: Any) -> int:
    for name in ("latent_channels", "z_dim"):
        count = vae.config.get(name)
        if isinstance(count, int):
            return count
    raise ValueError(f"it is not known how many channels the latents of {type(vae).__name__} have")


def _scales(vae: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what latents are multiplied with, and what is added then, before they are decoded."""
    if hasattr(vae, "bn"):
        spread = vae.bn.running_var.float() + vae.config.get("batch_norm_eps", 1e-4)
        return spread.sqrt(), vae.bn.running_mean.float()
    config = vae.config
    scaling = torch.tensor([float(config.get("scaling_factor") or 1.0)])
    mean, std = (_numbers(vae, name) for name in ("latents_mean", "latents_std"))
    if mean is not None and std is not None:
        return std / scaling, mean
    return 1 / scaling, torch.tensor([float(config.get("shift_factor") or 0.0)])


def _numbers(vae: Any, name: str) -> torch.Tensor | None:
    """Return a constant for each channel: a buffer of some VAEs, a setting of others."""
    found = getattr(vae, name, None) if name in dict(vae.named_buffers()) else vae.config.get(name)
    return None if found is None else torch.as_tensor(found).detach().float().flatten().cpu()
