"""How a batch of requests comes to its end, and what the command says of it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn

import click
import trio

from ..errors import ExecutionError, SidestreamError
from .meter import Meter

FAILURE = 1
FATAL = (SidestreamError, OSError, ValueError)
"""What ends a whole batch; an `ExecutionError` ends its own request only."""


PATIENCE_S = 1.0
"""A stop that takes longer is explained."""
STOPPING = (
    "stopping; what the model does just now cannot be interrupted"
    " (Ctrl-C again ends it all the same)"
)


@dataclass
class Outcome:
    """What has become of a batch so far.

    Args:
      count: of the requests.
    """

    count: int
    completed: int = 0
    failed: list[ExecutionError] = field(default_factory=list)
    fatal: Exception | None = None
    signal: signal.Signals | None = None

    async def run(self, work: Callable[[], Awaitable[None]], meter: Meter) -> None:
        """Work until all is done, or SIGINT or SIGTERM comes, or something fatal happens.

        A second signal ends the process on the spot: a worker's thread may be in a call that
        nothing else ends.
        """
        scope = trio.CancelScope()
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_at, signals, scope, meter)
                with scope:
                    try:
                        await work()
                    except* FATAL as group:
                        self.fatal = _first(group)
                nursery.cancel_scope.cancel()

    async def _stop_at(
        self, signals: AsyncIterator[int], scope: trio.CancelScope, meter: Meter
    ) -> None:
        self.signal = signal.Signals(await anext(signals))
        scope.cancel()
        with trio.move_on_after(PATIENCE_S) as patience:
            await anext(signals)
        if patience.cancelled_caught:
            meter.print(one_line(STOPPING), sys.stderr)
            await anext(signals)
        meter.close()
        self.leave(self.signal)

    def leave(self, number: int) -> NoReturn:
        """Say how far it has come, and end the process as one that a signal has ended.

        Without Python's own end, which would wait for a worker's thread, and which aborts when it
        comes while that thread is in C++.
        """
        line = f"interrupted; {self.completed} of {self.count} outputs are complete"
        click.echo(one_line(line), err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + number)


def report(outcome: Outcome, *, verbose: bool) -> int:
    """Tell what went wrong, unless that has been done already, and return the exit status.

    Does not return if it was a signal.

    Raises:
      Exception: what ended the batch.
    """
    if verbose:
        for error in (*outcome.failed, outcome.fatal):
            if error is not None:
                click.echo("\n".join((str(error), *getattr(error, "__notes__", ()))), err=True)
    if outcome.signal is not None:
        outcome.leave(outcome.signal)
    if outcome.fatal is not None:
        raise outcome.fatal
    return FAILURE if outcome.failed else 0


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong in one line and exit."""
    click.echo(one_line(message), err=True)
    sys.exit(code)


def one_line(message: str) -> str:
    """Return a message as this program's line on stderr; of a traceback in it, only the end."""
    head, traceback, rest = message.partition("Traceback (most recent call last):")
    if traceback:
        message = head + rest.strip().rpartition("\n")[2]
    return f"sidestream: {' '.join(message.split())}"


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
