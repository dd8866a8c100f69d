"""Remembering what diffusers looks for in every part of every component.

Whoever asks it for the device or the dtype of a component, or of a pipeline, has it look for hooks
(of offloading, of casting) at all parts, which are thousands, several times for each request, and
the device waits meanwhile.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from torch import nn

from .proxy import unwrap

_plain: "WeakSet[nn.Module]" = WeakSet()
"""Modules that are not offloaded in groups. With others the hook is found soon, and it refers to
what keeps them alive."""


class Parts:
    """The parts of modules, which stay the same while requests run."""

    def __init__(self) -> None:
        self._known: dict[nn.Module, list[tuple[str, nn.Module]]] = {}

    def with_attribute(self, module: nn.Module, attribute: str) -> Iterator[tuple[str, nn.Module]]:
        """Yield the names and parts, the module itself among them, that have an attribute."""
        known = self._known.get(module)
        if known is None:
            known = self._known[module] = list(module.named_modules())
        return (
            (name, part)
            for name, part in known
            if attribute in part.__dict__ or hasattr(type(part), attribute)
        )

    def forget(self) -> None:
        """Look at the modules again, as diffusers shall: they may have got other parts."""
        self._known.clear()
        _plain.clear()


def remember_offloading() -> None:
    """Have diffusers look only once for group offloading, until a hook is registered or removed.

    Harmless if diffusers is not there, and if it was told before.
    """
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
            _plain.clear()

    return forgetting
