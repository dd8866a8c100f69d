"""What one lane does to modules that all lanes share: casts, moves, settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from .recast import ModuleState, changes_nothing
from .slots import ABSENT, Slot, Slots, is_plain

if TYPE_CHECKING:
    from .lane import Lane


class ModuleChanges:
    """Keeps a lane's changes of shared modules from the other lanes.

    Attributes are swapped with the thread's state. Weights are too large for that: while a module
    is cast or moved, no other lane runs.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._recast: dict[int, ModuleState] = {}
        self._suspects: list[tuple[nn.Module, dict[str, Any], dict[str, Any]]] = []

    def recast(
        self,
        lane: "Lane",
        module: nn.Module,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run `to`, `half`, `eval` and their kin; where nothing would change, do nothing.

        Args:
            lane: Whose changes these are.
            module: The shared module.
            method: The method's name.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        if changes_nothing(module, method, args, kwargs):
            return module
        lane.become_exclusive()
        state = self._recast.get(id(module))
        if state is None:
            state = self._recast[id(module)] = ModuleState(module)
        result = getattr(module, method)(*args, **kwargs)
        if state.is_back():
            self._put_back(lane, id(module))
        return result

    def reconfigure(
        self,
        module: nn.Module,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a method that configures a module, and keep to the lane what it writes."""
        self.suspect(module)
        result = method(*args, **kwargs)
        self.settle()
        return result

    def suspect(self, module: nn.Module) -> None:
        """Expect attributes of a module's parts to be written, unseen by any proxy."""
        self._suspects += [(p, dict(vars(p)), _settings(p)) for p in module.modules()]

    def settle(self) -> None:
        """Keep to the lane what was written on suspects; called before another lane runs."""
        for part, old, settings in self._suspects:
            for name, before in settings.items():
                _separate(part, name, old[name], before)
            for name, value in vars(part).items():
                if name != "processor" and old.get(name, part) is not value:
                    self._slots.watch(Slot(part, name), old.get(name, ABSENT))
        self._suspects.clear()

    def hook(
        self,
        module: nn.Module,
        name: str,
        method: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run `register_forward_hook` or its kin; only this lane's calls will meet the hook.

        Args:
            module: The shared module.
            name: The method's name.
            method: The method.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        where = name.replace("register", "") + "s"
        self.write(module, where, getattr(module, where).copy())
        return method(*args, **kwargs)

    def write(self, module: nn.Module, name: str, value: Any) -> None:
        """Set an attribute of a module, for this lane only."""
        slot = Slot(module, name)
        self._slots.watch(slot, slot.read())
        slot.write(value)

    def undo_recasts(self, lane: "Lane") -> None:
        """Give the others the modules as they know them."""
        for key in reversed(list(self._recast)):
            self._put_back(lane, key)

    def _put_back(self, lane: "Lane", key: int) -> None:
        self._recast.pop(key).put_back()
        if not self._recast:
            lane.give_way()


def _settings(part: nn.Module) -> dict[str, dict[Any, Any]]:
    """Copy the dicts of plain values that a module holds, such as the scales of its adapters."""
    return {
        name: dict(value)
        for name, value in vars(part).items()
        if type(value) is dict and not name.startswith("_") and all(map(is_plain, value.values()))
    }


def _separate(part: nn.Module, name: str, shared: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Give the lane a dict of its own if it has written into a shared one, which is put back."""
    if vars(part).get(name) is shared and shared != before:
        setattr(part, name, dict(shared))
        shared.clear()
        shared.update(before)
