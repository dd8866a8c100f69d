"""Segment: the shared memory between the engine and one worker, without a name anywhere.

A memfd, sealed at its size, that a worker inherits together with the doorbell, an eventfd. When the
last process that has it is gone, so is the memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ._ring import ffi, lib
from .control import ControlBlock
from .envelope_ring import EnvelopeRing
from .errors import RingShutDown, SegmentError
from .payload_ring import PayloadRing

if TYPE_CHECKING:
    from ._ring import CData

# Neither side may shrink the file under the other's mapping (that would be a SIGBUS), or seal more.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True)
class SegmentLayout:
    """The sizes of a segment's parts.

    Attributes:
        submission_bytes: Envelope ring from engine to worker; a power of two.
        result_bytes: Envelope ring from worker to engine; a power of two.
        input_bytes: Payload ring from engine to worker; rounded up to whole pages (or more).
        output_bytes: Payload ring from worker to engine, at most; rounded up likewise.
        cancel_slots: Requests that can be cancelled at the same time.
    """

    submission_bytes: int = 1 << 18
    result_bytes: int = 1 << 18
    input_bytes: int = 64 << 20
    output_bytes: int = 256 << 20
    cancel_slots: int = 1024


class Segment:
    """One side's hold on the shared memory between the engine and one worker.

    Made by `create` (engine) or `attach` (worker).

    Attributes:
        fd: The memfd, for `pass_fds`; -1 once closed.
        doorbell: The non-blocking eventfd that wakes the engine, for `pass_fds`; -1 once closed.
        submissions: Messages to the worker.
        results: Messages to the engine.
        inputs: Tensors to the worker.
        outputs: Tensors to the engine.
        control: Cancel flags, heartbeat, state.
    """

    def __init__(self, fd: int, doorbell: int, segment: CData) -> None:
        self.fd = fd
        self.doorbell = doorbell
        self.submissions = EnvelopeRing(_part(lib.ss_submissions_of, segment, lib.ss_envelope_drop))
        self.results = EnvelopeRing(_part(lib.ss_results_of, segment, lib.ss_envelope_drop))
        self.inputs = PayloadRing(_part(lib.ss_inputs_of, segment, lib.ss_payload_drop))
        self.outputs = PayloadRing(_part(lib.ss_outputs_of, segment, lib.ss_payload_drop))
        self.control = ControlBlock(_part(lib.ss_control_of, segment, lib.ss_control_drop))
        self._segment: CData | None = segment
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls, layout: SegmentLayout, doorbell: int | None = None, *, outputs: bool = True
    ) -> Self:
        """Make a segment (engine side). Its pages exist when this returns.

        Args:
            layout: Its sizes.
            doorbell: A non-blocking eventfd, which the segment owns from now on, unless this
                raises; None makes one. Duplicates of one eventfd let several segments ring for one
                task.
            outputs: Whether the output ring has its memory, too. Otherwise there are only addresses
                for it, and `open_outputs` gives it some, first in the worker.

        Raises:
            ValueError: The layout is impossible.
            OSError: There is no memory for it, or no descriptor.
        """
        sizes, nbytes = _settle(layout)
        with contextlib.ExitStack() as undo:
            fd = os.memfd_create("sidestream", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            undo.callback(os.close, fd)
            os.ftruncate(fd, nbytes)
            _allocate(fd, 0, nbytes if outputs else nbytes - sizes[0].output_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            if doorbell is None:
                doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                undo.callback(os.close, doorbell)
            out = ffi.new("ss_segment **")
            _accept(lib.ss_segment_create(_map(fd, nbytes), nbytes, sizes, out))
            segment = cls(fd, doorbell, ffi.gc(out[0], lib.ss_segment_drop))
            undo.pop_all()
        return segment

    @classmethod
    def attach(cls, fd: int, doorbell: int) -> Self:
        """Take part in an existing segment (worker side).

        Args:
            fd: The memfd; the segment owns it from now on, unless this raises.
            doorbell: The eventfd; likewise.

        Raises:
            SegmentError: The file is not sealed, does not hold a segment of this version, or has
                had its worker already.
            OSError: It cannot be mapped.
        """
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise SegmentError(f"descriptor {fd} is not a memfd") from error
        if seals & _SEALS != _SEALS:
            raise SegmentError("the segment is not sealed at its size")
        nbytes = os.fstat(fd).st_size
        if nbytes == 0:
            raise SegmentError("the segment is empty")
        out = ffi.new("ss_segment **")
        _accept(lib.ss_segment_attach(_map(fd, nbytes), nbytes, doorbell, out))
        return cls(fd, doorbell, ffi.gc(out[0], lib.ss_segment_drop))

    def open_outputs(self, nbytes: int) -> None:
        """Let the output ring use so much of its addresses, with pages that exist from now on.

        Both sides call it, the worker first: its thread says by where it runs on which NUMA node
        new pages are. The ring may grow while payloads live, and shrink before the first of them.
        No other thread of this process uses the ring meanwhile.

        Args:
            nbytes: Rounded up as the layout is.

        Raises:
            ValueError: More than the layout has, or less than now for a ring that was used.
            OSError: There is no memory for it; the ring is not to be used.
            RingShutDown: The segment is closed.
        """
        with self._lock:
            if self._segment is None:
                raise RingShutDown("the segment is closed")
            outputs = self.outputs
            outputs._resize(nbytes)
            # Their data is the last part of the file.
            start = os.fstat(self.fd).st_size - outputs.limit
            _allocate(self.fd, start, outputs.capacity)
            lib.ss_segment_populate_outputs(self._segment)

    def shut_down(self) -> None:
        """Mark the segment as shut: whoever waits in it, on either side, gets `RingShutDown`.

        Idempotent, and nothing once closed. What was sent can still be drained and released.
        """
        with self._lock:
            if self._segment is not None:
                lib.ss_segment_shut_down(self._segment)
                with contextlib.suppress(BlockingIOError):  # saturated, so it rings already
                    os.eventfd_write(self.doorbell, 1)

    def close(self) -> None:
        """Let go of the segment and close both descriptors.

        Idempotent. The memory stays mapped until the last view and the last lease are gone. Every
        later use of a ring raises `RingShutDown`.
        """
        with self._lock:
            if self._segment is None:
                return
            self._segment = None
            for ring in (self.submissions, self.results, self.inputs, self.outputs, self.control):
                ring._detach()
            os.close(self.fd)
            os.close(self.doorbell)
            self.fd = self.doorbell = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _settle(layout: SegmentLayout) -> tuple[CData, int]:
    """Return the layout as the C core wants it, and the bytes of the whole segment."""
    nbytes = ffi.new("uint64_t *")
    try:
        sizes = ffi.new("ss_layout *", astuple(layout))
    except OverflowError:
        raise ValueError(f"a size is negative or too large: {layout}") from None
    wrong = lib.ss_layout_settle(sizes, nbytes)
    if wrong:
        raise ValueError(f"{_text(wrong)}: {layout}")
    return sizes, nbytes[0]


def _allocate(fd: int, offset: int, nbytes: int) -> None:
    """Allocate a part of the file, so that running out of memory shows here, not later.

    A memfd has no limit but the machine's memory, and the kernel finds out that it is over by
    killing processes: what can never fit is refused beforehand.
    """
    if nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise OSError(errno.ENOMEM, f"{nbytes} bytes are more than the memory there is")
    os.posix_fallocate(fd, offset, nbytes)


def _map(fd: int, nbytes: int) -> CData:
    base = lib.ss_map(fd, nbytes)
    if not base:
        raise OSError(ffi.errno, os.strerror(ffi.errno))
    return base


def _accept(wrong: CData) -> None:
    if wrong:
        raise SegmentError(_text(wrong))


def _text(message: CData) -> str:
    return ffi.string(message).decode()


def _part(take: Callable[[CData], CData], segment: CData, drop: Callable[[CData], None]) -> CData:
    """Return a part of the segment that holds a reference on the mapping for its own life."""
    return ffi.gc(take(segment), drop)
