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
        self.generators = list(generators)
        self._device_types = device_types
        self._bits = BitGenerators()
        self._host: Entropy | None = None
        self._base: Ambient | None = None
        self._current: Ambient | None = None
        self._owners: set[Ambient] = set()
        self._outside: list[object] = []
        self._resting = False

    @property
    def entered(self) -> bool:
        """Whether the thread is the lanes' at present."""
        return self._base is not None

    def enter(self) -> None:
        """Remember the state outside of all lanes; switch gradients off for the thread.

        What was changed on shared modules since `leave` is changed for all owners that have not
        changed it themselves.
        """
        torch.set_grad_enabled(False)
        bits = current_bits()
        if self._host is None or not self._host.runs_on(bits):
            self._host = Entropy(self.generators, bits)
        self._base = self._current = Ambient(self._modes(), [], self._host, bits)
        if self._owners:
            self._base.values = self.slots.read()
            self._carry_over(self._base.values)

    def leave(self) -> None:
        """Restore the state that `enter` remembered; owners stay as they are."""
        assert self._base is not None
        self.wake()
        self.activate(self._base)
        self._outside = self._base.values
        self._base = self._current = None

    def stand_back(self) -> None:
        """Give the thread the state that `enter` remembered, between two owners' turns."""
        assert self._base is not None
        self.activate(self._base)

    def rest(self) -> None:
        """Restore the modes that `enter` remembered, and nothing else, until `wake`.

        For a short time in which the thread does nothing that draws random numbers or looks at
        the shared modules: it takes a few microseconds, `leave` and `enter` tens of them.
        """
        assert self._base is not None
        if self._current is not self._base:
            write_modes(self._base.modes, self._put_modes_aside())
            self._resting = True

    def wake(self) -> None:
        """Undo `rest`."""
        if self._resting and self._current is not None:
            write_modes(self._current.modes, self._modes())
            self._current.pause.end()
        self._resting = False

    def modes_of(self, ambient: Ambient) -> Modes:
        """Return the modes that an owner runs under."""
        return self._modes() if ambient is self._current else ambient.modes

    def token_of(self, ambient: Ambient) -> int:
        """Return a number that stands for the shared modules as an owner has configured them."""
        if ambient is self._current:
            return self.slots.token(self.slots.read())
        self.slots.complete(ambient.values)
        return self.slots.token(ambient.values)

    def present(self) -> tuple[Modes, int]:
        """Return the modes and the token of whose turn it is."""
        return self._modes(), self.slots.token(self.slots.read())

    def forget_device(self) -> None:
        """Touch nothing on the device any more, which is lost: its generators keep their state."""
        self.generators[:] = [one for one in self.generators if one.device.type == "cpu"]

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
        self._owners.add(ambient)
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
        self._owners.discard(ambient)
        self._bits.give_back(ambient.bits)

    def _put_aside(self) -> Modes:
        """Keep what the present owner has; return the modes that the thread has then."""
        ambient = self._current
        if ambient is not None:
            ambient.values = self.slots.read()
            ambient.entropy.capture()
        return self._put_modes_aside()

    def _put_modes_aside(self) -> Modes:
        modes = self._modes()
        ambient = self._current
        if ambient is None:
            return modes
        ambient.modes = modes
        if not modes.inference:
            return modes
        ambient.pause.begin()
        return self._modes()

    def _modes(self) -> Modes:
        return read_modes(self._device_types)

    def _carry_over(self, values: list[object]) -> None:
        """Give owners what was changed outside, except where they have their own."""
        self.slots.complete(self._outside)
        for owner in self._owners:
            self.slots.complete(owner.values)
        for index, (old, new) in enumerate(zip(self._outside, values, strict=True)):
            if new is not old:
                for owner in self._owners:
                    if owner.values[index] is old:
                        owner.values[index] = new
