"""How a pipeline lays out its latents: unpacked, the middle frame of a video, one picture left."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

Call = Mapping[str, Any]
"""Arguments of a pipeline's call, by name; `height`, `width` and `num_frames` count here."""


class LatentLayout:
    """Finds the picture in what a pipeline's scheduler works on.

    Args:
        pipeline: Its static methods for unpacking and its factors are used.
        channels: Of the latents, once unpacked.
    """

    def __init__(self, pipeline: Any, channels: int) -> None:
        self._pipeline = pipeline
        self._channels = channels

    def picture(self, latents: torch.Tensor, call: Call) -> torch.Tensor | None:
        """Return the latents of one picture.

        Args:
            latents: (1, ...): a picture (C, h, w), a video (C, F, h, w) or (F, C, h, w), or either
                packed into tokens (L, D).
            call: What the pipeline is called with, its defaults included.

        Returns:
            (1, C, h, w); None if these are no latents of pictures.
        """
        if latents.ndim == 3:
            latents = self._unpacked(latents, call)
        if latents.ndim == 5:
            axis = 2 if latents.shape[1] == self._channels else 1
            latents = latents.select(axis, latents.shape[axis] // 2)
        whole = latents.ndim == 4 and latents.shape[1] == self._channels
        return latents if whole else None

    def _unpacked(self, tokens: torch.Tensor, call: Call) -> torch.Tensor:
        unpack = getattr(self._pipeline, "_unpack_latents", None)
        if unpack is None:
            return self._by_rows(tokens, call)
        names = inspect.signature(unpack).parameters
        known = self._video(call) if "num_frames" in names else self._image(call)
        given = {name: known[name] for name in names if known.get(name) is not None}
        unpacked: torch.Tensor = unpack(tokens, **given)
        return unpacked

    def _image(self, call: Call) -> dict[str, Any]:
        return {
            "height": call.get("height"),
            "width": call.get("width"),
            "layers": call.get("layers"),
            "vae_scale_factor": getattr(self._pipeline, "vae_scale_factor", None),
            "patch_size": self._patch_size("patch_size"),
        }

    def _video(self, call: Call) -> dict[str, Any]:
        """Return sizes in latents, which is how video pipelines unpack."""
        space: int = self._pipeline.vae_spatial_compression_ratio
        time: int = self._pipeline.vae_temporal_compression_ratio
        return {
            "height": call["height"] // space,
            "width": call["width"] // space,
            "num_frames": (call["num_frames"] - 1) // time + 1,
            "patch_size": self._patch_size("patch_size"),
            "patch_size_t": self._patch_size("patch_size_t"),
        }

    def _patch_size(self, name: str) -> Any:
        config = getattr(getattr(self._pipeline, "transformer", None), "config", None)
        return getattr(config, name, None)

    def _by_rows(self, tokens: torch.Tensor, call: Call) -> torch.Tensor:
        """Unpack tokens that are whole pixels of the latents, row by row."""
        height, width = call.get("height"), call.get("width")
        if not height or not width:
            return tokens
        rows = round(math.sqrt(tokens.shape[1] * height / width))
        if rows == 0 or tokens.shape[1] % rows:
            return tokens
        count, length, channels = tokens.shape
        return tokens.transpose(1, 2).reshape(count, channels, rows, length // rows)
