"""The process-wide random generators (torch, NumPy, Python), one set for each request.

Pipelines get a generator of their own, yet some of them and some of their components also draw from
the global ones. Each owner therefore has its own state of these, seeded with the request's seed,
put in place when the owner runs. Only a switch between owners costs anything.
"""

import ctypes
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

_numpy: Any = np.random  # its type stubs lack the two functions that exchange bit generators
_MT19937_BYTES = 4 * (624 + 1)  # NumPy's mt19937_state: the key and the position in it


class Snapshot(NamedTuple):
    """The exact state of every global generator."""

    torch: tuple[torch.Tensor, ...]
    numpy: Any
    python: Any

    def same(self, other: "Snapshot") -> bool:
        """Whether nothing was drawn between the two."""
        if self.python != other.python or not _same_legacy_state(self.numpy, other.numpy):
            return False
        return all(torch.equal(a, b) for a, b in zip(self.torch, other.torch, strict=True))


def take_snapshot(generators: Sequence[torch.Generator]) -> Snapshot:
    """Read every global generator; exact and slow (tens of microseconds), for probes only."""
    states = tuple(generator.get_state() for generator in generators)
    return Snapshot(states, np.random.get_state(), random.getstate())


def restore_snapshot(snapshot: Snapshot, generators: Sequence[torch.Generator]) -> None:
    """Put every global generator back."""
    for generator, state in zip(generators, snapshot.torch, strict=True):
        generator.set_state(state)
    np.random.set_state(snapshot.numpy)
    random.setstate(snapshot.python)


class Entropy:
    """One owner's state of the global generators.

    NumPy's and Python's states take 30 and 6 us to read. NumPy's global generator can run on any
    bit generator, so each owner has one and switching is a pointer swap; only what NumPy keeps
    beside the bit generator (half of the last pair of normals) has to be read, and only if the
    owner drew.

    The list of torch's generators is shared by all owners; it shrinks when a device is lost.
    """

    __slots__ = ("_address", "_bits", "_generators", "_mark", "_numpy", "_python", "_torch")

    def __init__(self, generators: Sequence[torch.Generator], bits: Any) -> None:
        """Own `bits`, a NumPy bit generator that nobody else uses."""
        self._generators = generators
        self._bits = bits
        self._address: int = bits.ctypes.state_address
        self._mark = b""  # the bits as they were put in place; equal ones: nothing was drawn
        self._numpy: Any = None  # the whole state, where a normal is left over
        self._torch: list[torch.Tensor] = []
        self._python: Any = None

    def seed(self, seed: int) -> None:
        """Take the global generators over and seed them, as `torch.manual_seed` does."""
        for generator in self._generators:
            generator.manual_seed(seed)
        _numpy.set_bit_generator(self._bits)
        np.random.seed(seed & 0xFFFF_FFFF)
        random.seed(seed)
        self._numpy = None
        self._mark = self._read_bits()

    def capture(self) -> None:
        """Keep the state that the global generators have now."""
        self._torch = [generator.get_state() for generator in self._generators]
        self._python = random.getstate()
        if self._numpy is not None or self._read_bits() != self._mark:
            state: Any = np.random.get_state()
            self._numpy = state if state[3] else None

    def apply(self) -> None:
        """Give the global generators the state that was kept."""
        for generator, state in zip(self._generators, self._torch, strict=False):
            generator.set_state(state)
        random.setstate(self._python)
        _numpy.set_bit_generator(self._bits)
        if self._numpy is not None:
            np.random.set_state(self._numpy)
        self._mark = self._read_bits()

    def runs_on(self, bits: Any) -> bool:
        """Whether this is the owner of a NumPy bit generator."""
        return self._bits is bits

    def _read_bits(self) -> bytes:
        return ctypes.string_at(self._address, _MT19937_BYTES)


def current_bits() -> Any:
    """Return the bit generator that NumPy's global generator runs on."""
    return _numpy.get_bit_generator()


class BitGenerators:
    """A pool of NumPy bit generators; making one takes 70 us, as it asks the system for entropy."""

    def __init__(self) -> None:
        self._free: list[Any] = []

    def take(self) -> Any:
        """Return a bit generator that nobody uses."""
        return self._free.pop() if self._free else np.random.MT19937(0)

    def give_back(self, bits: Any) -> None:
        """Allow others to use `bits`."""
        self._free.append(bits)


def _same_legacy_state(a: Any, b: Any) -> bool:
    return a[0] == b[0] and a[2:] == b[2:] and bool(np.array_equal(a[1], b[1]))
