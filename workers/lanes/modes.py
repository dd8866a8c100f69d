"""Torch's thread-wide modes: gradients, inference, autocast, default dtype, function modes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

_C: Any = torch._C
_CONTEXT: Any = torch._GLOBAL_DEVICE_CONTEXT


class Modes(NamedTuple):
    """A thread's modes; equal modes mean that calls may be merged."""

    grad: bool
    inference: bool
    default_dtype: torch.dtype
    autocast: tuple[tuple[str, bool, torch.dtype], ...]


def read_modes(device_types: Sequence[str]) -> Modes:
    """Return the calling thread's modes.

    Args:
        device_types: The device types whose autocast state matters, such as `("cpu", "cuda")`.
    """
    return Modes(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        tuple(
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in device_types
        ),
    )


def write_modes(modes: Modes, current: Modes) -> None:
    """Make `modes` the calling thread's modes, except for inference mode.

    Args:
        modes: The modes to have.
        current: The modes that the thread has now.
    """
    if modes == current:
        return
    torch.set_grad_enabled(modes.grad)
    torch.set_default_dtype(modes.default_dtype)
    for device, enabled, dtype in modes.autocast:
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


class InferencePause:
    """Leave a suspended owner's inference mode, and enter it again exactly where it was.

    Inference mode has no setter, only guards that restore the whole thread state they found. A
    guard that turns it off while the owner sleeps, and is dropped when it wakes, restores that
    state.
    """

    __slots__ = ("_guard",)

    def __init__(self) -> None:
        self._guard: Any = None

    def begin(self) -> None:
        """Turn inference mode off until `end`."""
        self._guard = torch.inference_mode(False)
        self._guard.__enter__()

    def end(self) -> None:
        """Restore the thread state that `begin` found, if it was called."""
        if self._guard is not None:
            self._guard.__exit__(None, None, None)
            self._guard = None


class FunctionModes:
    """The function modes that a lane has entered (`with torch.device(...)`), which concern nobody
    else while it is suspended.

    Args:
        own: One that is the lane's from its beginning, for its own code, not for components.
    """

    __slots__ = ("_default", "_entered", "_floor", "_own", "_threads")

    def __init__(self, own: Any) -> None:
        self._own = own
        self._entered = [] if own is None else [own]
        self._floor = 0
        self._default: Any = None  # what `set_default_device` has entered
        self._threads: Any = None

    def put_back(self) -> None:
        """Enter them again, on top of whatever the thread has."""
        self._floor = _C._len_torch_function_stack()
        self._threads = _exchange_default_device(self._default)
        while self._entered:
            _C._push_on_torch_function_stack(self._entered.pop())

    def put_aside(self) -> None:
        """Leave them all for a while."""
        while _C._len_torch_function_stack() > self._floor:
            self._entered.append(_C._pop_torch_function_stack())
        self._default = _exchange_default_device(self._threads)

    @contextmanager
    def for_components(self) -> Iterator[None]:
        """Enter those that count for components too, while the lane is suspended."""
        floor = _C._len_torch_function_stack()
        threads = _exchange_default_device(self._default)
        for mode in reversed(self._entered):
            if mode is not self._own:
                _C._push_on_torch_function_stack(mode)
        try:
            yield
        finally:
            while _C._len_torch_function_stack() > floor:
                _C._pop_torch_function_stack()
            _exchange_default_device(threads)


def _exchange_default_device(mode: Any) -> Any:
    """Have torch take a mode for that of `set_default_device`; return the one that it took."""
    before = getattr(_CONTEXT, "device_context", None)
    if before is not mode:
        _CONTEXT.device_context = mode
    return before
