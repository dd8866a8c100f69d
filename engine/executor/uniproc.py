"""`UniProcDiffusionExecutor`: the worker on a thread of this process.

It is the same worker over the same rings, so both phases of completion, backpressure and
cancellation are the same; the
memory is simply not shared with anybody. What is lost is isolation: its Python shares this
process's interpreter lock, and a worker that hangs cannot be killed.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import threading
import traceback
from typing import Any

import trio

from ..config import EngineConfig
from ..errors import WorkerDiedError
from .link import WorkerLink
from .ring_executor import RingExecutor

SWITCH_INTERVAL_S = 0.0005
"""The worker's Python hands the interpreter lock over ten times sooner than by default, else
messages wait for 5 ms."""

logger = logging.getLogger("sidestream.worker")


class _SwitchInterval:
    """The process's one switch interval, low while any executor wants it so."""

    def __init__(self) -> None:
        self._wanted = 0
        self._usual = 0.0

    def lower(self) -> None:
        """Lower it, unless it is low already."""
        if not self._wanted:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(min(self._usual, SWITCH_INTERVAL_S))
        self._wanted += 1

    def restore(self) -> None:
        """Take one `lower` back; the last one restores what was before the first."""
        self._wanted -= 1
        if not self._wanted:
            sys.setswitchinterval(self._usual)


_switch_interval = _SwitchInterval()


class UniProcDiffusionExecutor(RingExecutor):
    """Runs one worker on a thread."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._thread_ended = trio.Event()
        self._thread_left = threading.Event()
        self._loading = False
        """Whether it was left while it loads its model, which nothing can stop."""

    async def start(self, services: trio.Nursery) -> list[dict[str, Any]]:
        """See `DiffusionExecutor.start`."""
        try:
            return await super().start(services)
        except (trio.Cancelled, KeyboardInterrupt):
            self._loading = True
            raise

    def _heartbeat_age(self, link: WorkerLink) -> float:
        return math.inf if self._thread_ended.is_set() else 0.0  # it lives as this process does

    async def _launch(self, link: WorkerLink, services: trio.Nursery) -> None:
        _switch_interval.lower()
        services.start_soon(self._supervise, link)

    @trio.lowlevel.enable_ki_protection
    async def _supervise(self, link: WorkerLink) -> None:
        """Be the worker's thread, and tell when it has ended."""
        what, text = "ended", ""
        try:
            fds = os.dup(link.segment.fd), os.dup(link.segment.doorbell)
            await trio.to_thread.run_sync(
                _run_worker,
                *fds,
                self._thread_left,
                abandon_on_cancel=True,
                limiter=trio.CapacityLimiter(1),
            )
        except Exception as error:
            what, text = f"failed: {error!r}", traceback.format_exc()
        finally:
            self._thread_ended.set()
        self._lost(link, WorkerDiedError(link.index, what, None, text))

    async def _end(self, grace: float) -> None:
        if not self.links:
            return
        _switch_interval.restore()
        # An interpreter that ends under a thread in the middle of torch's C++ is aborted. So what
        # was never ready is waited for, too: it cannot be killed, and it is on its way out.
        patience = self.config.shutdown_grace
        if not self._loading:
            with trio.move_on_after(patience):
                await self._thread_ended.wait()
        if self._thread_ended.is_set():
            return
        if self._loading:
            atexit.register(self._thread_left.wait, patience)
            return
        logger.warning(
            "the worker thread has not stopped within %g s and is left behind;"
            " this program ends after it",
            patience,
        )
        atexit.register(self._thread_left.wait)


def _run_worker(segment_fd: int, doorbell_fd: int, left: threading.Event) -> None:
    try:
        # Here, not on the event loop: it imports torch, which takes seconds.
        from ...workers.worker_proc import WorkerProc

        WorkerProc.attach(segment_fd, doorbell_fd).run()
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:  # they end a worker only
        raise RuntimeError(f"the worker was ended by {error!r}") from error
    finally:
        left.set()
