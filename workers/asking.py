"""What a pipeline refuses, found out by asking it: it is called, and left when it has checked."""

import copy
from typing import Any

from torch import nn

from .models.quiet import quiet


def refusal_of(pipeline: Any, **arguments: Any) -> str:
    """Return what a pipeline says against a call before it calls a component, "" if nothing.

    Neither a signature nor a configuration tells what a pipeline accepts, but most of diffusers'
    check it before anything else, and say in their error what would be right.

    Args:
        pipeline: Not changed, and none of its components is called. One that is not of diffusers,
            or has no check of its own, is not called either.
        arguments: Of the call.
    """
    if not is_of_diffusers(pipeline) or not hasattr(pipeline, "check_inputs"):
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
        with quiet(diffusers=True):
            probe(**arguments)
    except Exception as refusal:  # of any class: what counts is what it says
        return str(refusal)
    return ""


def is_of_diffusers(pipeline: Any) -> bool:
    """Return whether a pipeline is as diffusers has it, so that it is known how it is written."""
    return type(pipeline).__module__.startswith("diffusers.")


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
