"""Compiling the denoisers of a pipeline with `torch.compile`."""

from typing import Any, Literal

from torch import nn

from ..lanes.call import is_denoiser

Compile = Literal["off", "blocks", "whole"]


def compile_denoisers(pipeline: Any, how: Compile) -> None:
    """Have the components compiled that run in each denoising step; at their first call, in fact.

    Args:
        pipeline: Changed in place.
        how: "blocks" compiles the blocks that a component repeats, which takes far less time than
            all of it, "whole" all of it.

    Raises:
        ValueError: There is no such component, or it does not say which blocks it repeats.
    """
    if how == "off":
        return
    parts = getattr(pipeline, "components", {}).items()
    denoisers: list[Any] = [
        part for name, part in parts if isinstance(part, nn.Module) and is_denoiser(name)
    ]
    if not denoisers:
        raise ValueError(f"compile: a {type(pipeline).__name__} has no denoiser to compile")
    for denoiser in denoisers:
        if how == "whole":
            denoiser.compile()  # in place, unlike `torch.compile`
        elif getattr(denoiser, "_repeated_blocks", None):
            denoiser.compile_repeated_blocks()
        else:
            kind = type(denoiser).__name__
            raise ValueError(f"compile: {kind} does not say which blocks it repeats; use 'whole'")
