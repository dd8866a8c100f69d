"""Attributes of shared modules that every lane sees its own values of."""

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from .adapters import Adapters

_PLAIN = (bool, int, float, str, type(None))
ABSENT: Any = object()  # the value of an attribute that does not exist


@dataclass(frozen=True, slots=True)
class Slot:
    """One attribute of a shared object.

    Attributes:
        owner: The shared object.
        name: The attribute.
        fresh: Makes the value that a lane starts with; None: it starts with the shared value.
    """

    owner: Any
    name: str
    fresh: Callable[[], Any] | None = None

    def kind(self, value: Any) -> Any:
        """Return what stands for a value where it is told apart from others."""
        return value

    def read(self) -> Any:
        """Return the attribute's present value."""
        return getattr(self.owner, self.name, ABSENT)

    def write(self, value: Any) -> None:
        """Set the attribute, or delete it where it did not exist."""
        if value is not ABSENT:
            setattr(self.owner, self.name, value)
        elif hasattr(self.owner, self.name):
            delattr(self.owner, self.name)


class Slots:
    """The attributes that are swapped when another owner's turn comes.

    Attention processors are always among them: some pipelines replace them for the length of a
    call, on submodules that no proxy sees. Others join when a pipeline writes an attribute of a
    component (`watch`), or when a feature cache keeps its state in an object. Where requests choose
    adapters, which of them are at work is one of them.
    """

    def __init__(self, modules: Iterable[nn.Module], adapters: "Adapters") -> None:
        self._attentions = list(_with_processors(modules))
        self._adapters = adapters
        self._watched: dict[tuple[int, str], tuple[Slot, Any]] = {}
        for slot in adapters.slots():  # first: what an owner has changed beyond that comes on top
            self.watch(slot, slot.read())
        self._known: deque[tuple[int, list[Any]]] = deque(maxlen=64)
        self._tokens = 0

    def read(self) -> list[Any]:
        """Return the present values: the processors, then the watched attributes."""
        values: list[Any] = [module.processor for module in self._attentions]
        values += [slot.read() for slot, _ in self._watched.values()]
        return values

    def write(self, values: list[Any]) -> None:
        """Give every attribute its value, touching only what differs.

        Args:
            values: From `read`; completed here.
        """
        self.complete(values)
        for module, processor in zip(self._attentions, values, strict=False):
            if module.processor is not processor:
                _set_processor(module, processor)
        watched = values[len(self._attentions) :]
        for (slot, _), value in zip(self._watched.values(), watched, strict=True):
            if slot.read() is not value:
                slot.write(value)

    def complete(self, values: list[Any]) -> None:
        """Add what a lane starts with for attributes that are watched since `values` were read."""
        known = len(values) - len(self._attentions)
        if known < len(self._watched):
            for slot, shared in list(self._watched.values())[known:]:
                values.append(shared if slot.fresh is None else slot.fresh())

    def fresh(self, shared: list[Any]) -> list[Any]:
        """Return the values that a new lane starts with.

        Args:
            shared: The values outside of all lanes.
        """
        values = list(shared)
        self.complete(values)
        for index, (slot, _) in enumerate(self._watched.values(), len(self._attentions)):
            if slot.fresh is not None:
                values[index] = slot.fresh()
        return values

    def watch(self, slot: Slot, shared: Any = None) -> None:
        """Make an attribute private to each lane from now on.

        Args:
            slot: The attribute.
            shared: Its value outside of all lanes.
        """
        own = self._adapters.own(slot, shared)
        self._watched.setdefault((id(slot.owner), slot.name), own)

    def kept(self) -> list[tuple[Any, dict[str, Any]]]:
        """Return the processors with what each holds, to see what a call leaves in them."""
        processors = (module.processor for module in self._attentions)
        return [(one, dict(vars(one))) for one in processors if hasattr(one, "__dict__")]

    def token(self, values: list[Any]) -> int:
        """Return a number that is the same for values under which a component computes the same.

        Processors of one type with the same plain settings count as the same. The state of caches
        does not count.

        Args:
            values: From `read`.
        """
        split = len(self._attentions)
        watched = zip(self._watched.values(), values[split:], strict=True)
        # dicts by what is in them now: hooks come and go
        kinds = [_settled(slot.kind(value)) for (slot, _), value in watched if slot.fresh is None]
        values = values[:split] + kinds
        for number, known in self._known:
            if len(known) == len(values) and all(map(operator.is_, known, values)):
                return number
        for number, known in self._known:
            if len(known) == len(values) and all(map(_alike, known, values)):
                return number
        self._tokens += 1
        self._known.append((self._tokens, list(values)))
        return self._tokens


def _settled(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


def _with_processors(modules: Iterable[nn.Module]) -> Iterator[Any]:
    seen: set[int] = set()
    for module in modules:
        for part in module.modules():
            if id(part) not in seen and hasattr(part, "processor"):
                seen.add(id(part))
                yield part


def _set_processor(module: Any, processor: Any) -> None:
    if hasattr(module, "set_processor"):
        module.set_processor(processor)
    else:
        module.processor = processor


def _alike(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, nn.Module):
        return False
    if is_plain(a):
        return bool(a == b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(
            a[key] is b[key] or (is_plain(a[key]) and a[key] == b[key]) for key in a
        )
    ours, theirs = getattr(a, "__dict__", None), getattr(b, "__dict__", None)
    if ours is None or theirs is None:
        return False
    # what is not plain may not even be comparable: tensors are not
    return all(is_plain(v) for one in (ours, theirs) for v in one.values()) and bool(ours == theirs)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a text or nothing, which is all that it says."""
    return isinstance(value, _PLAIN)
