"""Thread state that belongs to a request while it is suspended.

A lane runs as if the thread were its own. What it changes on the thread (modes, the global random
generators) or on shared modules (attention processors, watched attributes) is put aside when
another owner's turn comes and put back before it continues. While one owner runs, nothing is
swapped.
"""

from collections.abc import Sequence

import torch

from .entropy import BitGenerators, Entropy, current_bits
from .modes import InferencePause, Modes, read_modes, write_modes
from .slots import Slots


class Ambient:
    """One owner's share of the thread's state."""

    __slots__ = ("bits", "entropy", "modes", "pause", "values")

    def __init__(self, modes: Modes, values: list[object], entropy: Entropy, bits: object) -> None:
        self.modes = modes
        self.values = values
        self.entropy = entropy
        self.bits = bits
        self.pause = InferencePause()


class ThreadState:
    """The calling thread's state and whose it is at present.

    Attributes:
        slots: The shared modules' attributes that are swapped.
        generators: Torch's global generators, one for each device in use.
    """

    def __init__(
        self, slots: Slots, generators: Sequence[torch.Generator], device_types: Sequence[str]
    ) -> None:
        self.slots = slots
        self.generators = generators
        self._device_types = device_types
        self._bits = BitGenerators()
        self._base: Ambient | None = None
        self._current: Ambient | None = None

    def enter(self) -> None:
        """Remember the state outside of all lanes; switch gradients off for the thread."""
        torch.set_grad_enabled(False)
        bits = current_bits()
        self._base = Ambient(self.modes(), [], Entropy(self.generators, bits), bits)
        self._current = self._base

    def leave(self) -> None:
        """Restore the state that `enter` remembered."""
        assert self._base is not None
        self.activate(self._base)
        self._base = self._current = None

    def modes(self) -> Modes:
        """Return the thread's modes as they are now."""
        return read_modes(self._device_types)

    def token(self) -> int:
        """Return a number that stands for the shared modules' present configuration."""
        return self.slots.token(self.slots.read())

    def open(self, seed: int) -> Ambient:
        """Make a new owner, whose turn it is at once.

        Args:
            seed: What the global generators are seeded with.
        """
        assert self._base is not None
        current = self._put_aside()
        bits = self._bits.take()
        values = self.slots.fresh(self._base.values)
        ambient = Ambient(self._base.modes, values, Entropy(self.generators, bits), bits)
        write_modes(ambient.modes, current)
        self.slots.write(values)
        ambient.entropy.seed(seed)
        self._current = ambient
        return ambient

    def activate(self, ambient: Ambient) -> None:
        """Let `ambient` own the thread, putting aside what the present owner has."""
        if ambient is self._current:
            return
        write_modes(ambient.modes, self._put_aside())
        ambient.pause.end()
        self.slots.write(ambient.values)
        ambient.entropy.apply()
        self._current = ambient

    def close(self, ambient: Ambient) -> None:
        """Drop an owner for good; the next owner finds the thread as it needs it."""
        if ambient is self._current:
            self._current = None
        self._bits.give_back(ambient.bits)

    def _put_aside(self) -> Modes:
        """Keep what the present owner has; return the modes that the thread has then."""
        ambient = self._current
        if ambient is None:
            return self.modes()
        ambient.modes = self.modes()
        ambient.values = self.slots.read()
        ambient.entropy.capture()
        if not ambient.modes.inference:
            return ambient.modes
        ambient.pause.begin()
        return self.modes()
