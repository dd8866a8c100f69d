"""What is set up on a pipeline's modules from outside: weights' dtypes, adapters, caches.

What was found out about merging holds for one configuration only. Adapters that requests choose
from belong to them instead (`adapters.py`).
"""

from collections.abc import Hashable, Iterator
from typing import Any

from torch import nn

from .adapters import is_adapter_layer


class Configurations:
    """Numbers the configurations of a pipeline's modules; equal ones have one number.

    Args:
        modules: The modules.
        adapters: Whether adapters are set up from outside, rather than chosen by requests.
    """

    def __init__(self, modules: list[nn.Module], *, adapters: bool = True) -> None:
        self._modules = modules
        self._of_adapters = adapters
        self._numbers: dict[Hashable, int] = {}

    def number(self) -> int:
        """Return the number of the present configuration."""
        present = tuple(configuration_of(module, self._of_adapters) for module in self._modules)
        return self._numbers.setdefault(present, len(self._numbers))


def configuration_of(module: nn.Module, adapters: bool = True) -> Hashable:
    """Return what a component computes with, apart from arguments and the values of weights.

    Args:
        module: A component of a pipeline.
        adapters: Whether to look at its adapters.

    Returns:
        Dtype and device of the weights, the feature cache, the adapters with their scales.
    """
    weight = next(module.parameters(), None)
    place = None if weight is None else (weight.dtype, weight.device)
    cache: Any = getattr(module, "_cache_config", None)
    adapted = adapters and getattr(module, "peft_config", None)
    return (place, repr(cache), tuple(_adapters(module)) if adapted else ())


def _adapters(module: nn.Module) -> Iterator[Hashable]:
    """Yield the state of every layer that adapters have been put into, as PEFT keeps it."""
    parts: Any = module.named_modules()
    for name, part in parts:
        if is_adapter_layer(part):
            active = tuple(part.active_adapters)
            disabled = bool(getattr(part, "disable_adapters", False))
            merged = tuple(getattr(part, "merged_adapters", ()))
            yield (name, active, disabled, merged, tuple(sorted(part.scaling.items())))
