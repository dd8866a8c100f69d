"""Adapters (LoRA) that were loaded beside a pipeline: which are at work belongs to a request.

PEFT keeps with each layer which of its adapters are active, and how strong each is. A large model
has hundreds of such layers among thousands of modules, too many to walk through for every component
call. So the layers are looked up once, what PEFT would set for a selection is computed once, and to
switch is to write it.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .slots import ABSENT, Slot

SELECTIONS_KEPT = 64
"""Selections whose settings are remembered."""

Selection = tuple[tuple[str, float], ...]
"""Names of adapters and their scales, in the order in which their results are added."""
Settings = dict[str, Any]
"""Attributes of a layer."""

_INHERITED: Any = object()
"""The value of a layer's attribute that is as the owner's selection has it."""


class AdapterState:
    """What the layers hold for one owner.

    Attributes:
        kind: Stands for the selection: the same object for the same selection.
        layers: The attributes of each layer. The scales are the owner's own, since components
            multiply and divide them during a call, which need not lead back to the same number.
    """

    __slots__ = ("kind", "layers")

    def __init__(self, kind: Sequence[Settings]) -> None:
        self.kind = kind
        self.layers = [{**layer, "scaling": dict(layer["scaling"])} for layer in kind]


class Adapters:
    """The layers of a pipeline's modules that have adapters, and what they are set to.

    Attributes:
        names: The adapters that can be selected. If there are none, layers are left alone.
    """

    def __init__(self, modules: Iterable[nn.Module], names: Iterable[str]) -> None:
        self.names = frozenset(names)
        found = (part for module in modules for part in adapter_layers(module))
        self._layers = list({id(part): part for part in found}.values()) if self.names else []
        self._places = {id(part): place for place, part in enumerate(self._layers)}
        self._variables = [vars(part) for part in self._layers]
        self._loaded = [dict(part.scaling) for part in self._layers]
        self._kinds: OrderedDict[Selection, list[Settings]] = OrderedDict()
        self.state = AdapterState(self._kind(()))

    @property
    def state(self) -> AdapterState:
        """What the layers are set to; to be assigned what it was for another owner."""
        return self._state

    @state.setter
    def state(self, state: AdapterState) -> None:
        for variables, settings in zip(self._variables, state.layers, strict=True):
            variables.update(settings)  # as PEFT's methods do, without asking each module about it
        self._state = state

    def select(self, chosen: Mapping[str, float]) -> None:
        """Set the layers as diffusers' `set_adapters` does; nothing chosen: as without adapters.

        Args:
            chosen: Names of adapters, and how strong each is to be.

        Raises:
            ValueError: There is no such adapter.
        """
        unknown = chosen.keys() - self.names
        if unknown:
            raise ValueError(f"there is no adapter {', '.join(sorted(unknown))}")
        if chosen:
            self.state = AdapterState(self._kind(tuple(chosen.items())))

    def slots(self) -> Iterator[Slot]:
        """Yield what has to be swapped when another owner's turn comes."""
        if self.names:
            yield _StateSlot(self, "state")

    def own(self, slot: Slot, shared: Any) -> tuple[Slot, Any]:
        """Return a slot and its shared value: an attribute of a layer is as the owner's selection
        has it, unless the owner has changed it."""
        if id(slot.owner) not in self._places or slot.name not in self._state.layers[0]:
            return slot, shared
        return _LayerSlot(slot.owner, slot.name, adapters=self), _INHERITED

    def held(self, layer: Any, name: str) -> Any:
        """Return what the present selection sets an attribute of a layer to."""
        return self._state.layers[self._places[id(layer)]][name]

    def _kind(self, selection: Selection) -> list[Settings]:
        kind = self._kinds.get(selection)
        if kind is None:
            pairs = zip(self._layers, self._loaded, strict=True)
            kind = [_settings(layer, loaded, selection) for layer, loaded in pairs]
            self._kinds[selection] = kind
            if len(self._kinds) > SELECTIONS_KEPT:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(selection)
        return kind


@dataclass(frozen=True, slots=True)
class _StateSlot(Slot):
    """What all layers are set to."""

    def kind(self, value: Any) -> Any:
        return value.kind


@dataclass(frozen=True, slots=True)
class _LayerSlot(Slot):
    """An attribute of a layer, which may differ from what the selection sets."""

    adapters: Adapters = field(kw_only=True)

    def read(self) -> Any:
        value = getattr(self.owner, self.name, ABSENT)
        return _INHERITED if value is self.adapters.held(self.owner, self.name) else value

    def write(self, value: Any) -> None:
        if value is _INHERITED:
            value = self.adapters.held(self.owner, self.name)
        setattr(self.owner, self.name, value)


def adapter_layers(module: nn.Module) -> Iterator[Any]:
    """Yield the parts of a module that adapters have been put into."""
    return filter(is_adapter_layer, module.modules())


def is_adapter_layer(part: nn.Module) -> bool:
    """Whether a part of a module is a layer with adapters, as PEFT keeps them."""
    return isinstance(getattr(part, "scaling", None), dict) and hasattr(part, "active_adapters")


def _settings(layer: Any, loaded: Mapping[str, float], selection: Selection) -> Settings:
    """Return what PEFT sets on a layer for a selection.

    Args:
        layer: Left as it is.
        loaded: Its scales as they were loaded.
        selection: What is selected.
    """
    before = layer.scaling
    layer.scaling = dict(loaded)
    try:
        for name, scale in selection:
            layer.set_scale(name, scale)
        scaling = layer.scaling
    finally:
        layer.scaling = before
    active = [name for name, _ in selection]
    return {"_active_adapter": active, "_disable_adapters": not active, "scaling": scaling}
