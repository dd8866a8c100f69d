"""How a batch of requests comes to its end, and what the command says of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn

import click
import trio

from ..errors import ExecutionError, SidestreamError

FAILURE = 1
FATAL = (SidestreamError, OSError, ValueError)
"""What ends a whole batch; an `ExecutionError` ends its own request only."""


@dataclass
class Outcome:
    """What has become of a batch so far."""

    completed: int = 0
    failed: list[ExecutionError] = field(default_factory=list)
    fatal: Exception | None = None
    signal: signal.Signals | None = None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Work until all is done, or SIGINT or SIGTERM comes, or something fatal happens."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_at, signals, nursery.cancel_scope)
                try:
                    await work()
                except* FATAL as group:
                    self.fatal = _first(group)
                nursery.cancel_scope.cancel()

    async def _stop_at(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for number in signals:
            self.signal = signal.Signals(number)
            scope.cancel()


def report(outcome: Outcome, count: int, *, verbose: bool) -> int:
    """Tell what went wrong, unless that has been done already, and return the exit status.

    Raises:
      Exception: what ended the batch.
    """
    if verbose:
        for error in (*outcome.failed, outcome.fatal):
            if error is not None:
                click.echo("\n".join((str(error), *getattr(error, "__notes__", ()))), err=True)
    if outcome.signal is not None:
        code = 128 + outcome.signal
        fail(f"interrupted; {outcome.completed} of {count} outputs are complete", code)
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
