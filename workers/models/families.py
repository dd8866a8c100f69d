"""``random:<family>``: diffusers pipelines with random weights, tiny or full-size, by name."""

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from . import families_full, families_tiny
from .options import model_dtype, parse_options, unknown_name


class RandomOptions(msgspec.Struct, frozen=True):
    """Options of ``random:<family>``."""

    seed: int = 0


def load(family: str, options: Mapping[str, Any], *, device: str, dtype: str | None) -> Any:
    """Build a pipeline of a family with random weights.

    Tiny families draw their weights on the CPU in float32, so a seed means the same weights
    whatever the device. Full-size ones (``"sdxl-full"``) are built where and as they will run:
    on a GPU in seconds, and never held twice.

    Args:
        family: ``"sd15"``, ``"sd15-img2img"``, ``"sd15-inpaint"``, ``"sdxl"``, ``"sd3"``,
            ``"flux"``, ``"wan"`` or ``"wan-chunks"``; or, apart from the edits and the last, one of
            these with ``-full``.
        options: Fields of `RandomOptions`.
        device: Where the pipeline runs, such as ``"cpu"`` or ``"cuda:0"``.
        dtype: Data type of the weights, or None for the device's usual one.

    Returns:
        The pipeline, with `sidestream_defaults`: arguments a request gets unless it says otherwise.

    Raises:
        ValueError: No such family or option.
    """
    chosen = parse_options(RandomOptions, options, f"random:{family}")
    if family in families_tiny.FAMILIES:
        build, defaults = families_tiny.FAMILIES[family]
        pipeline = _build(build, chosen.seed, torch.device("cpu"), torch.float32)
    elif family in families_full.FAMILIES:
        build, defaults = families_full.FAMILIES[family]
        pipeline = _build(build, chosen.seed, torch.device(device), model_dtype(dtype, device))
    else:
        names = [*families_tiny.FAMILIES, *families_full.FAMILIES]
        raise unknown_name("random family", family, names)
    pipeline.sidestream_defaults = dict(defaults)
    return pipeline


def _build(build: Any, seed: int, device: torch.device, dtype: torch.dtype) -> Any:
    """Run a builder with its modules created on ``device`` in ``dtype``, from ``seed``."""
    # Building on the meta device and filling parameters afterwards would be no faster on a GPU
    # and would leave the tables that are not parameters (positions, frequencies) unset.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        with families_full.creating(device, dtype):
            return build()
