"""Envelope ring: small frames in order, from the threads of one process to one consumer."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ._ring import ffi, lib
from .errors import FrameTooLarge, failure
from .waiting import slices

if TYPE_CHECKING:
    from ._ring import CData

DRAIN_LIMIT = 256  # frames in one C call; 256 of 200 bytes still fit into a level-1 cache

# Bound once: these run for every message.
_push = lib.ss_envelope_push
_drain = lib.ss_envelope_drain
_unpack = ffi.unpack


class EnvelopeRing:
    """One direction of messages between the engine and a worker.

    Any thread of the producing process may push; only one thread at a time of the consuming process
    may drain, arm or wait.

    Attributes:
        capacity: Bytes, a power of two. A frame takes its length, rounded up to 8, and 8 more.
    """

    def __init__(self, ring: CData) -> None:
        self._ring = ring
        self.capacity = lib.ss_envelope_capacity(ring)
        self._frames = ffi.new("char[]", self.capacity)
        self._bytes = ffi.buffer(self._frames)
        self._ends = ffi.new("uint32_t[]", DRAIN_LIMIT + 1)

    def push(self, frame: bytes) -> bool:
        """Append one frame and wake the consumer if it sleeps.

        Returns:
            False when there is no room now.

        Raises:
            FrameTooLarge: The frame does not even fit into an empty ring.
            RingShutDown: The segment is closed.
            CorruptSegment: The peer's cursor is impossible.
        """
        status = _push(self._ring, frame, len(frame))
        if status > 0:
            return True
        if status < 0:
            raise self._failure(status, frame)
        return False

    def push_wait(self, frame: bytes, timeout: float | None = None) -> None:
        """Append one frame, and block the thread until there is room for it (worker side).

        Args:
            frame: The bytes.
            timeout: Seconds; None waits for ever.

        Raises:
            TimeoutError: There was no room in time.
            RingShutDown: The segment was shut down, before or meanwhile.
            FrameTooLarge: The frame does not even fit into an empty ring.
            CorruptSegment: The peer's cursor is impossible.
        """
        for nanoseconds in slices(timeout):
            status = lib.ss_envelope_push_wait(self._ring, frame, len(frame), nanoseconds)
            if status < 0:
                raise self._failure(status, frame)
            if status:
                return
        raise TimeoutError("no room in the envelope ring")

    def drain(self, limit: int = DRAIN_LIMIT) -> list[bytes]:
        """Take the frames that are there, at most `limit` (or 256) of them.

        Raises:
            RingShutDown: The segment is closed. (One that is only shut down can still be drained.)
            CorruptSegment: A length or the peer's cursor is impossible.
        """
        count = _drain(self._ring, self._frames, self._ends, min(limit, DRAIN_LIMIT))
        if count < 0:
            raise failure(count)
        frames = self._bytes
        return [frames[start:end] for start, end in pairwise(_unpack(self._ends, count + 1))]

    def arm(self) -> bool:
        """Ask for a ring of the doorbell at the next push.

        Returns:
            True: nothing is there, the consumer may sleep. False: drain again.

        Raises:
            RingShutDown: The segment was shut down.
        """
        return self._settled(lib.ss_envelope_arm(self._ring))

    def wait(self, timeout: float | None = None, spin: int = 0) -> bool:
        """Block the thread until there is something to drain (worker side).

        Args:
            timeout: Seconds; None waits for ever.
            spin: Pauses to spin before sleeping. It answers sooner if the producer runs on another
                core, and takes that core away from it if not.

        Returns:
            False when nothing came in time.

        Raises:
            RingShutDown: The segment was shut down, before or meanwhile.
        """
        for nanoseconds in slices(timeout):
            if self._settled(lib.ss_envelope_wait(self._ring, spin, nanoseconds)):
                return True
        return False

    def arm_space(self) -> None:
        """Ask for a ring of the doorbell at the next drain (engine as producer); then push again.

        Raises:
            RingShutDown: The segment was shut down.
        """
        self._settled(lib.ss_envelope_arm_space(self._ring))

    @property
    def used_bytes(self) -> int:
        """Bytes pushed and not yet drained; 0 once closed."""
        return lib.ss_envelope_used(self._ring)

    @property
    def free_bytes(self) -> int:
        """Bytes that frames and their lengths may still take."""
        return self.capacity - self.used_bytes

    def _failure(self, status: int, frame: bytes) -> Exception:
        if status == lib.SS_TOO_LARGE:
            return FrameTooLarge(f"{len(frame)} bytes in a ring of {self.capacity}")
        return failure(status)

    def _settled(self, status: int) -> bool:
        if status < 0:
            raise failure(status)
        return status > 0

    def _detach(self) -> None:
        """Let go of the mapping; the C core answers a null ring with "shut down"."""
        self._ring = ffi.NULL
