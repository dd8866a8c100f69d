"""What is set up on a pipeline's modules from outside: weights' dtypes, adapters, caches.

What was found out about merging holds for one configuration only.
"""

from collections.abc import Hashable, Iterator
from typing import Any

from torch import nn


class Configurations:
    """Numbers the configurations of a pipeline's modules; equal ones have one number."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules
        self._numbers: dict[Hashable, int] = {}

    def number(self) -> int:
        """Return the number of the present configuration."""
        present = tuple(map(configuration_of, self._modules))
        return self._numbers.setdefault(present, len(self._numbers))


def configuration_of(module: nn.Module) -> Hashable:
    """Return what a component computes with, apart from arguments and the values of weights.

    Args:
        module: A component of a pipeline.

    Returns:
        Dtype and device of the weights, the feature cache, the adapters with their scales.
    """
    weight = next(module.parameters(), None)
    place = None if weight is None else (weight.dtype, weight.device)
    cache: Any = getattr(module, "_cache_config", None)
    adapters: Any = getattr(module, "peft_config", None)
    return (place, repr(cache), tuple(_adapters(module)) if adapters else ())


def _adapters(module: nn.Module) -> Iterator[Hashable]:
    """Yield the state of every layer that adapters have been put into, as PEFT keeps it."""
    for name, part in module.named_modules():
        scaling = getattr(part, "scaling", None)
        if isinstance(scaling, dict) and hasattr(part, "active_adapters"):
            active = tuple(part.active_adapters)
            disabled = bool(getattr(part, "disable_adapters", False))
            merged = tuple(getattr(part, "merged_adapters", ()))
            yield (name, active, disabled, merged, tuple(sorted(scaling.items())))
