"""``python -m sidestream.workers SEGMENT_FD DOORBELL_FD LIFELINE_FD``: a worker process, started by
the engine."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import sys

SWITCH_INTERVAL_S = 0.0005
"""Ten times shorter than Python's: the output thread must not wait 5 ms for the interpreter
lock."""


def main() -> int:
    """Serve one engine until it says stop or goes away; return the exit status."""
    if len(sys.argv) != 4 or not all(argument.isdigit() for argument in sys.argv[1:]):
        print(__doc__, file=sys.stderr)
        return 2
    segment_fd, doorbell_fd, lifeline_fd = map(int, sys.argv[1:])
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine alone decides when a worker stops
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    # Before torch is imported, which takes seconds: an orphan must not live that long.
    from ..ipc_ext import Segment
    from .watchdog import Watchdog

    segment = Segment.attach(segment_fd, doorbell_fd)
    Watchdog(socket.socket(fileno=lifeline_fd), segment.control).start()

    from .worker_proc import WorkerProc

    return WorkerProc(segment, ready=_spare_what_is_loaded).run()


def _spare_what_is_loaded() -> None:
    """Keep the garbage collector away from what stays: modules and classes by the hundred thousand.
    Looking through them stops all threads for a tenth of a second, and the device with them."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the interpreter's own end takes half a second once torch is loaded
