"""What can go wrong between two processes that share memory, and the C core's word for it."""

from __future__ import annotations

from ._ring import lib


class SegmentError(Exception):
    """A segment, or something in it, cannot be used."""


class CorruptSegment(SegmentError):
    """Shared memory holds what no honest peer writes: the segment is lost."""


class RingShutDown(SegmentError):
    """The segment was shut down or closed."""


class StaleHandle(SegmentError):
    """A payload handle is of the past, forged, or not in the state that the call needs."""


class FrameTooLarge(ValueError):
    """A frame can never fit into its ring."""


class PayloadTooLarge(ValueError):
    """A payload is larger than a quarter of its ring: it travels in chunks."""


_ERRORS = {
    lib.SS_SHUT: (RingShutDown, "the segment was shut down"),
    lib.SS_CORRUPT: (CorruptSegment, "shared memory holds values that no honest peer writes"),
    lib.SS_STALE: (StaleHandle, "the payload is not there, or not in a state for this call"),
}


def failure(status: int) -> SegmentError:
    """Return the exception for a negative status of the C core."""
    kind, text = _ERRORS[status]
    return kind(text)
