"""Remembering which components of a pipeline are not offloaded in groups.

Whoever asks diffusers for the device of a component or of a pipeline has it look for a hook at
every part of every component. In SDXL these are some 5,000 parts, several times for each request,
and the device waits meanwhile. Only `HookRegistry` makes the answer another one.
"""

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from torch import nn

from .proxy import unwrap

_plain: "WeakSet[nn.Module]" = WeakSet()
"""Modules without such a hook. The others are found soon, and refer to what keeps them alive."""


def remember_offloading() -> None:
    """Have diffusers look only once; harmless if it is not there, and if it was told before."""
    try:
        from diffusers.hooks import HookRegistry, group_offloading
    except ImportError:
        return
    find = getattr(group_offloading, "_get_top_level_group_offload_hook", None)
    if find is None or hasattr(find, "__wrapped__"):
        return
    group_offloading._get_top_level_group_offload_hook = _remembering(find)
    for name in ("register_hook", "remove_hook"):
        setattr(HookRegistry, name, _forgetting(getattr(HookRegistry, name)))


def forget_offloading() -> None:
    """Have it look again: modules may have got other parts."""
    _plain.clear()


def _remembering(find: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    @functools.wraps(find)
    def remembering(module: nn.Module) -> Any:
        module = unwrap(module)  # who only looks may look at what all lanes share
        if module in _plain:
            return None
        found = find(module)
        if found is None:
            _plain.add(module)
        return found

    return remembering


def _forgetting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def forgetting(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        finally:
            forget_offloading()

    return forgetting
