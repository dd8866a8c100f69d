"""Shared memory between an engine and its workers: message rings, tensor rings, and wake-ups."""

from .control import ControlBlock, WorkerState
from .envelope_ring import EnvelopeRing
from .errors import (
    CorruptSegment,
    FrameTooLarge,
    PayloadTooLarge,
    RingShutDown,
    SegmentError,
    StaleHandle,
)
from .payload_ring import Handle, Lease, PayloadRing
from .segment import Segment, SegmentLayout
from .stack_end import call_at_stack_end

__all__ = [
    "ControlBlock",
    "CorruptSegment",
    "EnvelopeRing",
    "FrameTooLarge",
    "Handle",
    "Lease",
    "PayloadRing",
    "PayloadTooLarge",
    "RingShutDown",
    "Segment",
    "SegmentError",
    "SegmentLayout",
    "StaleHandle",
    "WorkerState",
    "call_at_stack_end",
]
