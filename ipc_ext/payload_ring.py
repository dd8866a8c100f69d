"""Payload ring: room for tensors, filled and read in place, released in any order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ._ring import ffi, lib
from .errors import PayloadTooLarge, RingShutDown, StaleHandle, failure
from .waiting import slices

if TYPE_CHECKING:
    from ._ring import CData, Reservation

Lease: TypeAlias = memoryview
"""A read-only view whose last reference releases the payload (see `PayloadRing.lease`)."""


class Handle(NamedTuple):
    """The name of one payload: where it is, which reservation it is, how long it is.

    Attributes:
        offset: Bytes from the start of the ring's region.
        generation: Unique for each reservation of a ring's life.
        nbytes: As reserved.
    """

    offset: int
    generation: int
    nbytes: int


class PayloadRing:
    """One direction of tensors between the engine and a worker.

    The producing process reserves, fills and commits; a payload is contiguous and page-aligned. The
    consuming process reads it and releases it. Every method may be called from any thread.

    Attributes:
        limit: Bytes that the ring may come to use; see `Segment.open_outputs`.
        capacity: Bytes that it uses now.
        chunk_bytes: The largest payload that travels in one piece: a quarter of the ring.
        address: Of the region, in this process.
    """

    def __init__(self, ring: CData) -> None:
        self._ring = ring
        self.limit = self.capacity = lib.ss_payload_size(ring)
        self.chunk_bytes = lib.ss_payload_chunk(ring)
        data = ffi.gc(lib.ss_payload_data(ring), partial(_hold, ring))
        self.address = int(ffi.cast("uintptr_t", data))
        self._region: memoryview | None = memoryview(ffi.buffer(data, self.limit))

    def reserve(self, nbytes: int) -> Handle | None:
        """Take room for one payload.

        Returns:
            A handle, or None when there is no room now.

        Raises:
            PayloadTooLarge: More than `chunk_bytes`.
            RingShutDown: The segment is closed.
        """
        return self._handle(lib.ss_payload_reserve(self._ring, nbytes), nbytes)

    def reserve_wait(self, nbytes: int, timeout: float | None = None) -> Handle:
        """Take room for one payload, and block the thread until there is some (worker side).

        Args:
            nbytes: At most `chunk_bytes`.
            timeout: Seconds; None waits for ever.

        Raises:
            TimeoutError: There was no room in time.
            RingShutDown: The segment was shut down, before or meanwhile.
            PayloadTooLarge: More than `chunk_bytes`.
        """
        for nanoseconds in slices(timeout):
            reservation = lib.ss_payload_reserve_wait(self._ring, nbytes, nanoseconds)
            if handle := self._handle(reservation, nbytes):
                return handle
        raise TimeoutError("no room in the payload ring")

    def view(self, handle: Handle) -> memoryview:
        """Return the bytes of a payload, writable, without taking it over.

        The view stays mapped for as long as it lives, but what it shows is the payload's only until
        the release.

        Raises:
            StaleHandle: Released, or forged.
            RingShutDown: The segment is closed.
        """
        self._apply(lib.ss_payload_check, handle)
        return self._mapped()[handle.offset : handle.offset + handle.nbytes]

    def commit(self, handle: Handle) -> None:
        """Declare a reserved payload filled.

        Raises:
            StaleHandle: Committed already, released, or forged.
            RingShutDown: The segment is closed.
        """
        self._apply(lib.ss_payload_commit, handle)

    def release(self, handle: Handle) -> None:
        """Give a payload back, as its consumer, or as its producer that has no use for it.

        Raises:
            StaleHandle: Released already, under a lease, or forged.
            RingShutDown: The segment is closed.
        """
        self._apply(lib.ss_payload_release, handle)

    def lease(self, handle: Handle) -> Lease:
        """Take a committed payload over, to be released by whoever lets go of it last.

        The payload is released when nothing refers to the view any more, nor to anything that was
        built on it (slices, `numpy.frombuffer`), in whatever thread that happens, and also after
        the segment was closed, whose mapping lives that long.

        Returns:
            A read-only view of `handle.nbytes` bytes.

        Raises:
            StaleHandle: Not committed, under a lease already, released, or forged.
            RingShutDown: The segment is closed.
        """
        ring = self._ring
        self._apply(lib.ss_payload_lease, handle)
        release = partial(lib.ss_payload_unlease, ring, *handle)
        data = ffi.gc(lib.ss_payload_data(ring) + handle.offset, release)
        return memoryview(ffi.buffer(data, handle.nbytes)).toreadonly()

    def arm_space(self) -> None:
        """Ask for a ring of the doorbell at the next release (engine as producer); then try again.

        Raises:
            RingShutDown: The segment was shut down.
        """
        status = lib.ss_payload_arm_space(self._ring)
        if status < 0:
            raise failure(status)

    def region(self) -> memoryview:
        """Return the whole ring, writable: for registration with a device.

        Raises:
            RingShutDown: The segment is closed.
        """
        return self._mapped()[: self.capacity]

    @property
    def used_bytes(self) -> int:
        """Bytes that are reserved and not released, in whole granules; 0 once closed."""
        return lib.ss_payload_used(self._ring)

    @property
    def free_bytes(self) -> int:
        """Bytes that are not used. A payload needs its room in one piece, in whole granules."""
        return self.capacity - self.used_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes under live leases of this process; 0 once closed."""
        return lib.ss_payload_held(self._ring)

    @property
    def has_gap(self) -> bool:
        """Whether the leases of this process leave one gap of `chunk_bytes` between them.

        While they do, the largest payload finds room once everything else is released, even if they
        are kept for ever. True once closed.
        """
        return bool(lib.ss_payload_has_gap(self._ring))  # SS_SHUT counts as true

    def _handle(self, reservation: Reservation, nbytes: int) -> Handle | None:
        status = reservation.status
        if status == lib.SS_TOO_LARGE:
            raise PayloadTooLarge(f"{nbytes} bytes; at most {self.chunk_bytes} in one piece")
        if status < 0:
            raise failure(status)
        return Handle(reservation.offset, reservation.generation, nbytes) if status else None

    def _mapped(self) -> memoryview:
        if self._region is None:
            raise RingShutDown("the segment is closed")
        return self._region

    def _resize(self, nbytes: int) -> None:
        """Use so many bytes of the region from now on; see `Segment.open_outputs`."""
        status = lib.ss_payload_resize(self._ring, nbytes)
        if status == lib.SS_SHUT:
            raise failure(status)
        if status <= 0:
            raise ValueError(f"the ring cannot have {nbytes} bytes: it is in use, or ends before")
        self.capacity = lib.ss_payload_size(self._ring)
        self.chunk_bytes = lib.ss_payload_chunk(self._ring)

    def _apply(self, call: Callable[[CData, int, int, int], int], handle: Handle) -> None:
        try:
            status = call(self._ring, *handle)
        except OverflowError:  # negative, or more than 64 bits
            raise StaleHandle(f"no handle: {handle}") from None
        if status < 0:
            raise failure(status)

    def _detach(self) -> None:
        """Let go of the mapping; the C core answers a null ring with "shut down"."""
        self._ring = ffi.NULL
        self._region = None


def _hold(ring: CData, data: CData) -> None:
    """Finalise the region: nothing to do, but as its finaliser this held the ring mapped."""
