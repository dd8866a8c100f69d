"""Previews: at chosen steps of a request, a picture of what its output may become.

The step's estimate of the clean sample is captured on the forward's thread, by a few operations on
latents; the picture is made of it on the side stream, if there is time.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..postprocess import quantize
from .clean_sample import SchedulerStep, clean_sample
from .latent_layout import Call, LatentLayout
from .latent_map import LatentMap, fit_latent_map, scale_of
from .latent_space import LatentSpace, PixelSpace

LONGEST = 512
"""Most pixels along a side of a preview."""
SMALL = 4_000_000
"""Parameters of a decoder that is small enough to decode previews itself."""
TINY_VAES = ("preview_vae", "taesd")
"""Attributes under which a pipeline can bring a small VAE for its latents, such as an
`AutoencoderTiny`."""

logger = logging.getLogger("sidestream")

Draw = Callable[[], "torch.Tensor | None"]


class Previewer:
    """Makes pictures of estimates, on the stream of the thread that calls it.

    Args:
        layout: Of the pipeline's latents.
        space: What they are, and how they are decoded.
        colours: The decoder's substitute; None: it decodes itself.
        scale: How many pixels wide a latent is.
    """

    def __init__(
        self,
        layout: LatentLayout,
        space: LatentSpace | PixelSpace,
        colours: LatentMap | None,
        scale: int,
    ) -> None:
        self._layout = layout
        self._space = space
        self._colours = colours
        self._scale = scale

    @torch.no_grad()
    def draw(self, sample: torch.Tensor, call: Call, longest: int = LONGEST) -> torch.Tensor | None:
        """Make a picture.

        Args:
            sample: (1, ...), from `clean_sample`.
            call: What the pipeline is called with, its defaults included.
            longest: Most pixels along a side.

        Returns:
            (H, W, 3), uint8, on the device; None if the sample is not of a picture's latents.
        """
        latents = self._layout.picture(sample, call)
        if latents is None:
            return None
        encoded = self._space.to_decoder(latents)
        height, width = (side * self._scale for side in encoded.shape[-2:])
        shrink = min(1.0, longest / max(height, width))
        size = (max(1, round(height * shrink)), max(1, round(width * shrink)))
        if self._colours is not None:
            picture = self._colours(encoded)
        else:
            smaller = tuple(max(1, side // self._scale) for side in size)
            picture = self._space.decode(_resized(encoded, smaller) if shrink < 1 else encoded)
        return quantize(_resized(picture, size)[0])


def previewer_of(pipeline: Any) -> Previewer:
    """Find out how to make previews for a pipeline; takes some calls of its VAE.

    Raises:
        ValueError: It has no latents of pictures that a VAE of its own decodes.
        Exception: What its VAE raises that cannot be called one picture at a time.
    """
    brought = (getattr(pipeline, name, None) for name in TINY_VAES)
    tiny: Any = next(filter(_is_vae, brought), None)
    vae = getattr(pipeline, "vae", None)
    if not _is_vae(vae):
        if _denoises_pixels(pipeline):
            pixels = PixelSpace()
            return Previewer(LatentLayout(pipeline, pixels.channels), pixels, None, 1)
        raise ValueError(f"{type(pipeline).__name__} has no VAE")
    space = LatentSpace(pipeline, vae)
    layout = LatentLayout(pipeline, space.channels)
    if tiny is None and space.decoder_parameters > SMALL:
        colours = fit_latent_map(space)
        return Previewer(layout, space, colours, colours.scale)
    # A copy of its own: the side stream's thread must not meet the forward's in one module.
    decoder: Any = copy.deepcopy(vae) if tiny is None else tiny.to(space.device)
    own = LatentSpace(pipeline, decoder.eval().requires_grad_(False))
    if own.channels != space.channels:
        raise ValueError(f"the preview VAE decodes {own.channels} channels, not {space.channels}")
    with torch.no_grad():
        blank = torch.zeros(1, own.channels, 8, 8, device=own.device)
        return Previewer(layout, own, None, scale_of(own, own.to_decoder(blank)))


def find_previewer(pipeline: Any) -> Previewer | None:
    """Return a pipeline's previewer; None, and a line in the log, if it can have none."""
    try:
        return previewer_of(pipeline)
    except Exception as error:  # whatever a pipeline's VAE says to being called otherwise
        logger.info("no previews: %s: %s", type(error).__name__, error)
        return None


def is_preview_step(step: int, total: int | None, *, steps: int = 0, every: int = 0) -> bool:
    """Whether a preview is wanted after a step. After the last one it never is: the output comes.

    Args:
        step: Steps taken, from 1.
        total: Steps to take, None if that is not known.
        steps: How many previews are wanted, evenly spaced.
        every: After every how many steps one is wanted.
    """
    if total is not None and step >= total:
        return False
    if every and step % every == 0:
        return True
    if not steps or total is None:
        return False
    return step * (steps + 1) // total > (step - 1) * (steps + 1) // total


class PreviewTap:
    """Watches the steps of one request's lane, and takes estimates where previews are wanted.

    Args:
        wanted: (step, total) -> whether a preview is wanted.
        make: Turns an estimate into what `offer` is given to draw.
        offer: (step, draw), hands a preview to the output thread; must not block.
    """

    def __init__(
        self,
        wanted: Callable[[int, int | None], bool],
        make: Callable[[torch.Tensor], torch.Tensor | None],
        offer: Callable[[int, Draw], Any],
    ) -> None:
        self._wanted = wanted
        self._make = make
        self._offer = offer
        self._broken = False

    def __call__(self, step: int, total: int | None, taken: SchedulerStep) -> None:
        """Look at a step that has been taken."""
        if self._broken or not self._wanted(step, total):
            return
        try:
            estimate = clean_sample(taken)
            if estimate is not None:
                self._offer(step, partial(self._make, estimate))
        except Exception:  # a scheduler of another kind: its request goes on without previews
            self._broken = True
            logger.warning("no previews of %s", type(taken.scheduler).__name__, exc_info=True)


def _is_vae(value: Any) -> bool:
    return isinstance(value, nn.Module) and hasattr(value, "decode")


def _denoises_pixels(pipeline: Any) -> bool:
    """Whether a pipeline works on colours: there is nothing that could decode anything else."""
    if any(_is_vae(value) for value in getattr(pipeline, "__dict__", {}).values()):
        return False
    denoisers = (getattr(pipeline, name, None) for name in ("unet", "transformer"))
    configs = (getattr(denoiser, "config", None) for denoiser in denoisers)
    return any(getattr(config, "in_channels", None) == 3 for config in configs)


def _resized(picture: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    if picture.shape[-2:] == size:
        return picture
    return F.interpolate(picture, size, mode="bilinear", antialias=True)
