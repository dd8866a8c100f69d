"""Torch's thread-wide modes: gradients, inference, autocast, default dtype."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


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
