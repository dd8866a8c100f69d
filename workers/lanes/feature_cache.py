"""Feature caches of diffusers (FirstBlockCache and its kin): their state belongs to one request."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from .slots import Slot


def has_cache(module: nn.Module) -> bool:
    """Whether a feature cache is enabled on a component."""
    return bool(getattr(module, "is_cache_enabled", False))


def cache_slots(module: nn.Module) -> Iterator[Slot]:
    """Yield the attributes that hold the state of a component's feature cache.

    There are two kinds of stateful hooks: those with state managers, which keep one state for each
    cache context, and those with a single `state` object.
    """
    for part in module.modules():
        registry = getattr(part, "_diffusers_hook", None)
        for hook in getattr(registry, "hooks", {}).values():
            yield from _hook_slots(hook)


def _hook_slots(hook: Any) -> Iterator[Slot]:
    if not getattr(hook, "_is_stateful", False):
        return
    for name, value in vars(hook).items():
        if hasattr(value, "_state_cache"):
            yield Slot(value, "_state_cache", dict)
        elif name in ("state", "shared_state") and not isinstance(value, nn.Module):
            yield Slot(hook, name, partial(copy.deepcopy, copy.deepcopy(value)))


class FeatureCaches:
    """Finds the cache state of a pipeline's components, once for each configuration."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules
        self._seen: dict[int, Any] = {}

    def new_slots(self) -> list[Slot]:
        """Return the state of caches that were enabled since the last call."""
        slots: list[Slot] = []
        for module in self._modules:
            config = getattr(module, "_cache_config", None)
            if config is not None and self._seen.get(id(module)) is not config:
                self._seen[id(module)] = config
                slots += cache_slots(module)
        return slots
