"""What a component call does beside computing its result, which a replay would not do."""

from collections.abc import Hashable, Iterable, Iterator
from types import NoneType
from typing import Any

import torch
from torch import nn

from ..lanes import Hub
from ..lanes.call import Arguments
from ..lanes.entropy import take_snapshot
from ..lanes.structure import parts_of
from .recording import Unrecordable, signature_of, tensors_in

_COLLECTORS = "transformers.utils.output_capturing"
"""Where the hooks come from by which text encoders return their hidden states."""


class Watch:
    """Remembers what a call could change beside its result.

    Args:
        hub: whose lane makes the call.
        module: the component.
        arguments: of the call.
    """

    def __init__(self, hub: Hub, module: nn.Module, arguments: Arguments) -> None:
        given = (part for part in parts_of(arguments) if isinstance(part, torch.Generator))
        self._generators = [*hub.thread.generators, *given]
        self._processors = hub.thread.slots.kept()
        self._module = module
        self._arguments = arguments
        self._drawn = take_snapshot(self._generators)
        self._given = _state_of(arguments)
        self._attributes = list(_attributes(module))

    def finding(self) -> str | None:
        """Tell what the call has done since, None if nothing is known."""
        if not self._drawn.same(take_snapshot(self._generators)):
            return "it draws random numbers"
        if not all(_holds(vars(one), held) for one, held in self._processors):
            return "its attention processors keep something of each call"
        if self._given != _state_of(self._arguments):
            return "it changes its arguments"
        return None

    def has_kept_something(self) -> bool:
        """Whether attributes of the module, or of its parts, are others than before.

        That may be something which is computed once, or something which changes with each call.
        """
        return self._attributes != list(_attributes(self._module))


def check_module(module: nn.Module, device: torch.device) -> None:
    """Return if a module does the same at each call, as far as can be told from looking at it.

    Raises:
        Unrecordable: it does not.
    """
    for part in module.modules():
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        if hasattr(part, "_hf_hook") or any(map(_is_strange, hooks)):
            raise Unrecordable("it has hooks")
        registry = getattr(part, "_diffusers_hook", None)
        if registry is not None and getattr(registry, "hooks", None):
            raise Unrecordable("it has hooks")
        if hasattr(part, "_orig_mod"):
            raise Unrecordable("it is compiled")
        if part.training:
            raise Unrecordable("it is in training mode")
    if any(weight.device != device for weight in _weights(module)):
        raise Unrecordable("not all of its weights are on the device")


def _is_strange(hook: Any) -> bool:
    """Whether a hook may do more than to put what passes into the result."""
    return getattr(hook, "__module__", "") != _COLLECTORS


def addresses_of(module: nn.Module) -> tuple[int, ...]:
    """Return where a module's weights are: a recording reads them there."""
    return tuple(weight.data_ptr() for weight in _weights(module))


def _weights(module: nn.Module) -> Iterable[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _state_of(arguments: Arguments) -> Hashable:
    versions = tuple(
        -1 if tensor.is_inference() else tensor._version for tensor in tensors_in(arguments)
    )
    return signature_of(arguments), versions


def _attributes(module: nn.Module) -> Iterator[tuple[str, Hashable]]:
    """Yield what tells one state of a module's attributes from another."""
    for part in module.modules():
        for name, value in vars(part).items():
            yield name, _content(value)


def _content(value: Any, depth: int = 3) -> Hashable:
    """Return what tells one value from another: containers by what is in them, as some are made
    anew for each call and are empty after it; other objects by which they are."""
    if depth and type(value) in (list, tuple):
        return tuple(_content(part, depth - 1) for part in value)
    if depth and type(value) is dict:
        return tuple((name, _content(part, depth - 1)) for name, part in value.items())
    return value if type(value) in (bool, int, float, str, NoneType) else id(value)


def _holds(present: dict[str, Any], held: dict[str, Any]) -> bool:
    return present.keys() == held.keys() and all(present[name] is held[name] for name in held)
