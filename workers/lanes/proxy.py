"""A module as one lane sees it: its calls become component calls, all else is the real module's."""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from .lane import Lane

_LIBRARY = (  # methods that these define describe, move or configure a module; they do not compute
    "torch.",
    "diffusers.models.modeling_utils",
    "diffusers.models.cache_utils",
    "diffusers.configuration_utils",
    "diffusers.loaders",
    "transformers.modeling_utils",
    "transformers.integrations",
    "huggingface_hub.",
)
_CONFIGURING = ("_set", "add_", "delete_", "disable_", "enable_", "fuse_", "set_", "unfuse_")
_DESCRIBING = ("get_input_embeddings", "get_output_embeddings", "get_decoder", "get_encoder")
_WALKING = ("modules", "named_modules", "children", "named_children")
_LOOKED_FOR = {  # what functions that go through all parts, and write nothing on them, look for
    ("diffusers.models.modeling_utils", "get_parameter_dtype"): "_diffusers_hook",
    ("diffusers.pipelines.pipeline_utils", "_execution_device"): "_hf_hook",
    ("diffusers.utils.torch_utils", "get_module_execution_device"): "_hf_hook",
}
_PRIVATE_COMPUTE = frozenset(("_encode", "_decode"))
_MOVING = frozenset(("to", "half", "float", "double", "bfloat16", "cuda", "cpu"))
_HOOKING = frozenset(("register_forward_hook", "register_forward_pre_hook"))
_SWITCHING = frozenset(("eval", "train", "requires_grad_", "apply"))


def unwrap(value: Any) -> Any:
    """Return the real module behind a proxy, anything else as it is."""
    return object.__getattribute__(value, "_real") if type(value) is ModuleProxy else value


class ModuleProxy:
    """Stands in for a component (or a part of one) in one lane's copy of the pipeline."""

    __slots__ = ("_lane", "_path", "_real")
    _lane: "Lane"
    _path: str
    _real: Any

    def __init__(self, lane: "Lane", real: nn.Module, path: str) -> None:
        object.__setattr__(self, "_lane", lane)
        object.__setattr__(self, "_real", real)
        object.__setattr__(self, "_path", path)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._lane.call(self._real, self._path, "__call__", args, kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance() believes this
        return type(self._real)

    def __getattr__(self, name: str) -> Any:
        real = self._real
        value = getattr(real, name)
        if callable(value) and not isinstance(value, nn.Module):
            return self._method(name, value)  # also one that was put in place of the class's own
        return self._wrap(value, name)

    def _wrap(self, value: Any, name: object) -> Any:
        if isinstance(value, nn.Module):
            return self._lane.proxy(value, f"{self._path}.{name}")
        return value

    def _method(self, name: str, method: Callable[..., Any]) -> Any:
        real, path, lane = self._real, self._path, self._lane
        role = _role(_class_with(name, real, method), name)
        if role is None:
            return method
        if role == "context":
            return functools.partial(lane.cache_context, real)

        @functools.wraps(method)
        def intercepted(*args: Any, **kwargs: Any) -> Any:
            if role == "compute":
                return lane.call(real, path, name, args, kwargs)
            if role == "recast":
                result = lane.changes.recast(lane, real, name, args, kwargs)
            elif role == "configure":
                result = lane.changes.reconfigure(real, method, args, kwargs)
            elif role == "walk":
                caller = sys._getframe(1)
                wanted = _LOOKED_FOR.get(
                    (caller.f_globals.get("__name__", ""), caller.f_code.co_name)
                )
                if wanted is not None and name in ("modules", "named_modules"):
                    found = lane.parts.with_attribute(real, wanted)
                    return found if name == "named_modules" else (part for _, part in found)
                lane.changes.suspect(real)
                result = method(*args, **kwargs)
            elif role == "hook":
                result = lane.changes.hook(real, name, method, args, kwargs)
            else:
                result = method(*args, **kwargs)
            return self if result is real else self._wrap(result, f"{name}()")

        return intercepted

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Module):
            self._lane.parts.forget()
        self._lane.changes.write(self._real, name, unwrap(value))

    def __delattr__(self, name: str) -> None:
        delattr(self._real, name)

    def __iter__(self) -> Iterator[Any]:
        return (self._wrap(value, index) for index, value in enumerate(self._real))

    def __getitem__(self, key: Any) -> Any:
        return self._wrap(self._real[key], key)

    def __len__(self) -> int:
        return len(self._real)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, item: object) -> bool:
        return unwrap(item) in self._real

    def __eq__(self, other: object) -> bool:
        return self._real is unwrap(other)

    def __hash__(self) -> int:
        return hash(self._real)

    def __dir__(self) -> list[str]:
        return dir(self._real)

    def __repr__(self) -> str:
        return f"<{self._path} of a lane: {type(self._real).__name__}>"

    def __copy__(self) -> "ModuleProxy":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModuleProxy":
        return self


def _class_with(name: str, real: nn.Module, method: Any) -> type:
    """Return the class that says what a method is: a compiled module borrows its original's."""
    owner = getattr(method, "__self__", None)
    if isinstance(owner, nn.Module) and not hasattr(real.__class__, name):
        return owner.__class__
    return real.__class__


@functools.lru_cache(maxsize=4096)
def _role(owner: type, name: str) -> str | None:
    """Say what a method of a component is to a lane.

    Returns:
        "compute" (a component call), "recast" (moves or casts the shared weights), "configure"
        (writes attributes of the shared module), "hook" (has it call something of the lane's),
        "walk" (gives all parts away), "context", "describe" (may return parts) or None (harmless).
    """
    if name == "cache_context":
        return "context"
    if name in _MOVING or name in _SWITCHING:
        return "recast"
    if name in _HOOKING:
        return "hook"
    if name in _WALKING:
        return "walk"
    if name.startswith(_CONFIGURING):
        return "configure"
    if name.startswith(_DESCRIBING) or name == "get_submodule":
        return "describe"
    if name.startswith("_"):
        return "compute" if name in _PRIVATE_COMPUTE else None
    if name == "forward":
        return "compute"
    home = next((base.__module__ for base in owner.__mro__ if name in vars(base)), None)
    return None if home is None or home.startswith(_LIBRARY) else "compute"
