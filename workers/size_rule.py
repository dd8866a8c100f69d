"""Which sizes a pipeline refuses, found out by asking it."""

import copy
import inspect
import math
import re
from typing import Any

from torch import nn

from .models.quiet import quiet

_PRIME = 1021
"""A side that is a multiple of nothing that matters."""
_ROUNDS = 4
_RULE = re.compile(r"(?:height|width)\b[^.]*\bdivisible by (\d+)", re.IGNORECASE)


def size_multiple(pipeline: Any) -> int:
    """Return what height and width have to be multiples of, 1 where that is not known.

    Neither the VAE's scale factor nor a signature tells: patches count too, and many pipelines
    round what they are given. But most of diffusers' check it before anything else, and say in
    their error what would be right. So they are called, and left when they have checked.

    Args:
        pipeline: Not changed, and none of its components is called. One that is not of diffusers is
            not called either.
    """
    if not type(pipeline).__module__.startswith("diffusers."):
        return 1
    multiple = 1
    with quiet(diffusers=True):
        for _ in range(_ROUNDS):
            rule = _RULE.search(_refusal(pipeline, _PRIME * multiple))
            if rule is None:
                break
            multiple = math.lcm(multiple, int(rule[1]))
    return multiple


class _Left(Exception):
    """The pipeline has come as far as it is wanted to."""


class _Uncalled:
    """Stands for a component, or a pipeline within, that is looked at and not called."""

    def __init__(self, component: Any) -> None:
        self._component = component

    def __getattr__(self, name: str) -> Any:
        return getattr(self._component, name)

    def _leave(self, *_: Any, **__: Any) -> Any:
        raise _Left

    __call__ = encode = decode = forward = _leave


def _refusal(pipeline: Any, side: int) -> str:
    """Return what a pipeline says against a square of this side before it calls a component."""
    names = inspect.signature(type(pipeline).__call__).parameters
    if not {"prompt", "height", "width"} <= names.keys() or not hasattr(pipeline, "check_inputs"):
        return ""

    def check_inputs(*args: Any, **kwargs: Any) -> None:
        pipeline.check_inputs(*args, **kwargs)
        raise _Left

    probe = copy.copy(pipeline)
    for name, part in vars(pipeline).items():
        if isinstance(part, nn.Module) or hasattr(part, "components"):
            vars(probe)[name] = _Uncalled(part)
    vars(probe)["check_inputs"] = check_inputs
    try:
        probe(prompt="a", height=side, width=side)
    except Exception as refusal:  # of any class: what counts is what it says
        return str(refusal)
    return ""
