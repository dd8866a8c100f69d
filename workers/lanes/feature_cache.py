"""Feature caches of diffusers (FirstBlockCache and its kin): their state belongs to one request."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from .slots import Slot

_REGISTRY = "_diffusers_hook"


class FeatureCaches:
    """Knows which components have a feature cache, and where its state is.

    Caches are hooks on parts of a component. There are two kinds: those with state managers, which
    keep one state for each cache context, and those with a single `state` object.
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self._parts = [[vars(part) for part in module.modules()] for module in modules]
        self._modules = modules
        self._cached: set[int] = set()
        self._hooks: set[int] = set()

    def find(self) -> list[Slot]:
        """Look for caches that were enabled or disabled; return the state of new ones."""
        slots: list[Slot] = []
        self._cached.clear()
        for module, parts in zip(self._modules, self._parts, strict=True):
            hooks = [hook for part in parts if _REGISTRY in part for hook in _stateful(part)]
            if hooks:
                self._cached.update(map(id, module.modules()))
            for hook in hooks:
                if id(hook) not in self._hooks:
                    self._hooks.add(id(hook))
                    slots += _slots(hook)
        return slots

    def concern(self, module: nn.Module) -> bool:
        """Whether a component, or the component that it is a part of, has a cache."""
        return id(module) in self._cached


def _stateful(part: dict[str, Any]) -> Iterator[Any]:
    hooks = getattr(part[_REGISTRY], "hooks", {}).values()
    return (hook for hook in hooks if getattr(hook, "_is_stateful", False))


def _slots(hook: Any) -> Iterator[Slot]:
    for name, value in vars(hook).items():
        if hasattr(value, "_state_cache"):
            yield Slot(value, "_state_cache", dict)
        elif name in ("state", "shared_state") and not isinstance(value, nn.Module):
            yield Slot(hook, name, partial(copy.deepcopy, copy.deepcopy(value)))
