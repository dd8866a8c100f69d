"""`MultiprocDiffusionExecutor`: each worker in a process of its own.

A worker gets four file descriptors: its memfd, the doorbell, its end of a lifeline socket, and a
pipe for what it prints. When the engine's process dies, however it dies, the lifeline ends and the
worker exits. When a worker dies, the task that awaits its process (a pidfd) tells so; its process
group is killed, so that nothing it started is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque

import trio

from ...ipc_ext import WorkerState
from ..config import EngineConfig
from ..errors import WorkerDiedError
from .link import WorkerLink
from .ring_executor import RingExecutor

STDERR_LINES = 40
"""Of what a worker printed last, so many lines go into the error at its death."""
LINE_LIMIT = 4096
_LAST_WORDS_S = 0.05
"""How long a dead worker's pipe is read on: its children may hold it open."""

logger = logging.getLogger("sidestream.worker")


class _Worker:
    """A worker process, and what is held for it."""

    def __init__(self, link: WorkerLink, process: trio.Process, lifeline: socket.socket) -> None:
        self.link = link
        self.process = process
        self.lifeline = lifeline
        self.last_lines: deque[str] = deque(maxlen=STDERR_LINES)
        self.read_all = trio.Event()
        self.gone = trio.Event()
        self.stalled = False

    def kill(self) -> None:
        """Kill the process group; the worker leads it, since it was started in a session of its
        own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class MultiprocDiffusionExecutor(RingExecutor):
    """Runs workers as processes (``python -m sidestream.workers``)."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._workers: list[_Worker] = []

    def _pid(self, link: WorkerLink) -> int | None:
        launched = link.index < len(self._workers)  # a cancelled start may come short of it
        return self._workers[link.index].process.pid if launched else None

    async def _launch(self, link: WorkerLink, services: trio.Nursery) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            fds = (link.segment.fd, self._doorbell, theirs.fileno())
            try:
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-P", "-m", "sidestream.workers", *map(str, fds)],
                    env=os.environ | {"PYTHONPATH": _import_path()},
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        worker = _Worker(link, process, ours)
        self._workers.append(worker)
        services.start_soon(self._listen, worker)
        services.start_soon(self._supervise, worker)
        if self.config.worker_stall_timeout is not None:
            services.start_soon(self._watch_heartbeat, worker, self.config.worker_stall_timeout)

    @trio.lowlevel.enable_ki_protection
    async def _supervise(self, worker: _Worker) -> None:
        """Wait for the process to end, tell it first, then clear up after it."""
        status = await worker.process.wait()
        with trio.move_on_after(_LAST_WORDS_S):
            await worker.read_all.wait()
        self._lost(worker.link, self._death_of(worker, status))
        worker.kill()
        worker.lifeline.close()
        worker.gone.set()

    def _death_of(self, worker: _Worker, status: int) -> WorkerDiedError:
        if worker.stalled:
            what = f"gave no heartbeat for {self.config.worker_stall_timeout:g} s and was killed"
        elif status < 0:
            what = f"(pid {worker.process.pid}) was killed by {_signal_name(-status)}"
        else:
            what = f"(pid {worker.process.pid}) exited with status {status}"
        return WorkerDiedError(worker.link.index, what, status, "\n".join(worker.last_lines))

    @trio.lowlevel.enable_ki_protection
    async def _listen(self, worker: _Worker) -> None:
        """Log what a worker prints, and keep the last of it."""
        stdout = worker.process.stdout
        assert stdout is not None
        rest = b""
        async with stdout:
            async for chunk in stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in [*lines, *([rest] if len(rest) > LINE_LIMIT else [])]:
                    self._note(worker, line)
                rest = b"" if len(rest) > LINE_LIMIT else rest
        if rest:
            self._note(worker, rest)
        worker.read_all.set()

    def _note(self, worker: _Worker, line: bytes) -> None:
        text = line[:LINE_LIMIT].decode(errors="replace").rstrip()
        worker.last_lines.append(text)
        logger.info("worker %d: %s", worker.link.index, text)

    @trio.lowlevel.enable_ki_protection
    async def _watch_heartbeat(self, worker: _Worker, limit: float) -> None:
        """Kill a worker whose heartbeat stops; its supervisor does the rest.

        Loading may hold the interpreter lock for long, so before the worker is ready there is only
        `startup_timeout`.
        """
        control = worker.link.segment.control
        while not worker.gone.is_set():
            age = control.heartbeat_age() if control.state is WorkerState.READY else 0.0
            if age >= limit:
                worker.stalled = True
                worker.kill()
                return
            with trio.move_on_after(limit - age):
                await worker.gone.wait()

    async def _end(self, grace: float) -> None:
        with trio.move_on_after(grace):
            for worker in self._workers:
                await worker.gone.wait()
        for worker in self._workers:
            if not worker.gone.is_set():
                worker.kill()
        for worker in self._workers:
            await worker.gone.wait()


def _import_path() -> str:
    """Let a worker import what this process can, a script's neighbours among it."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
