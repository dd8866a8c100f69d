"""The watchdog thread of a worker process: it shows that the worker lives, and ends it when the
engine does not.

The lifeline is a socket whose other end only the engine holds. Its end of file means that the
engine's process has gone, however it went. Nothing can be cleaned up for anybody then, so the
process exits at once; its memory has no name, and the kernel takes it back.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading

from ..ipc_ext import ControlBlock, RingShutDown

BEAT_MS = 100
ORPHANED = 70
"""Exit status of a worker whose engine has gone."""


class Watchdog(threading.Thread):
    """Beats every `BEAT_MS`; a thread of its own, so that long kernels and compilations do not look
    like a stall."""

    def __init__(self, lifeline: socket.socket, control: ControlBlock) -> None:
        super().__init__(name="sidestream-watchdog", daemon=True)
        self._lifeline = lifeline
        self._control = control

    def run(self) -> None:
        poller = select.poll()
        poller.register(self._lifeline, select.POLLIN | select.POLLHUP)
        while not poller.poll(BEAT_MS):
            with contextlib.suppress(RingShutDown):  # the worker is leaving by itself
                self._control.beat()
        os._exit(ORPHANED)
