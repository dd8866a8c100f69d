"""From latents to pictures without the decoder: a linear map, fitted once to what the decoder does.

A decoder's picture, averaged over the area of one latent, is close to a linear function of that
latent. That is good enough for a preview, and takes microseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from .latent_space import LatentSpace

_GRID = 16
"""Latents along a side of the pictures that the map is fitted to."""
_COUNT = 6
"""Pictures of each kind."""
_RIDGE = 1e-4


class LatentMap(NamedTuple):
    """A linear map from what a decoder takes to colours.

    Attributes:
        matrix: (C, 3), float32, on the device.
        bias: (3,), likewise.
        scale: How many pixels of a picture a latent is wide.
    """

    matrix: torch.Tensor
    bias: torch.Tensor
    scale: int

    def __call__(self, encoded: torch.Tensor) -> torch.Tensor:
        """Map (1, C, h, w), float32, to (1, 3, h, w) in [0, 1]."""
        colours = torch.einsum("nchw,cr->nrhw", encoded, self.matrix)
        return (colours + self.bias.view(1, 3, 1, 1)).clamp(0, 1)


def fit_latent_map(space: LatentSpace) -> LatentMap:
    """Fit a map to the decoder, by least squares over a few random pictures.

    It decodes latents of random pictures, which lie where those of real pictures do, or random
    latents if the VAE cannot encode.

    Raises:
        Exception: Whatever the VAE raises that cannot decode latents one picture at a time.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), space.precise():
        latents = _patterns(space.channels, _GRID, generator) * 2.0 - 1.0
        samples = space.to_decoder(latents.to(space.device))
        scale = scale_of(space, samples)
        encoded = _encoded(space, _patterns(3, _GRID * scale, generator))
        # Random latents are no substitute for latents of pictures, and would only blur the fit.
        samples = samples if encoded is None else encoded
        height, width = samples.shape[-2:]
        colours = F.adaptive_avg_pool2d(space.decode(samples), (height, width))
    matrix, bias = _solve(_rows(samples), _rows(colours))
    return LatentMap(matrix.float().to(space.device), bias.float().to(space.device), scale)


def scale_of(space: LatentSpace, encoded: torch.Tensor) -> int:
    """Return how many pixels wide a latent is, by decoding the first of some."""
    return space.decode(encoded[:1]).shape[-1] // encoded.shape[-1]


def _rows(pixels: torch.Tensor) -> torch.Tensor:
    """Lay (n, C, h, w) out as (n * h * w, C), in double precision on the host."""
    return pixels.movedim(1, -1).flatten(0, 2).double().cpu()


def _solve(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Solve inputs @ matrix + bias = targets, with a little reluctance to use a channel at all."""
    if not inputs.isfinite().all() or not targets.isfinite().all():
        raise ValueError("the VAE returned numbers that are not finite")
    centre, middle = inputs.mean(0), targets.mean(0)
    inputs, targets = inputs - centre, targets - middle
    square = inputs.T @ inputs
    ridge = _RIDGE * square.diagonal().mean().clamp(min=1e-12)
    square += ridge * torch.eye(len(square), dtype=square.dtype)
    matrix = torch.linalg.solve(square, inputs.T @ targets)
    return matrix, middle - centre @ matrix


def _patterns(channels: int, side: int, generator: torch.Generator) -> torch.Tensor:
    """Make random pictures in [0, 1] of few colours: patches with edges, and gradients."""
    made = []
    for index in range(_COUNT):
        cells = torch.rand(1, channels, 2 + index, 2 + index, generator=generator)
        made.append(F.interpolate(cells, (side, side), mode="nearest"))
        made.append(F.interpolate(cells, (side, side), mode="bilinear"))
    return torch.cat(made)


def _encoded(space: LatentSpace, pictures: torch.Tensor) -> torch.Tensor | None:
    try:
        return space.encode(pictures)
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None  # a decoder without an encoder, or one that wants more than a picture
