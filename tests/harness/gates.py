"""Executors whose outputs a test can hold back, so that a request stays between its two phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import trio

from sidestream.engine.executor import BUILT_IN
from sidestream.engine.executor.link import WorkerLink
from sidestream.ipc_ext.messages import AsyncDiffusionOutput, AsyncOutputKind

Drain = Callable[[], list[AsyncDiffusionOutput]]


class OutputGate:
    """Holds OUTPUT_READY messages back while it is shut; all else passes, in order.

    Attributes:
      in_flight: set when, since it was shut, the engine has learned of the end of a forward whose
        output is held.
      links, calls: the executor's own, to look at.
    """

    def __init__(self) -> None:
        self._shut = False
        self._held: list[AsyncDiffusionOutput] = []
        self._computed = False
        self._wake: Callable[[], None] = lambda: None
        self.links: list[WorkerLink] = []
        self.calls: Mapping[object, object] = {}
        self.in_flight = trio.Event()

    def shut(self) -> None:
        """Hold back from now on."""
        self._shut = True
        self._computed = False
        self.in_flight = trio.Event()

    def open(self) -> None:
        """Let all through, what was held first."""
        self._shut = False
        self._wake()

    def pass_through(self, drain: Drain) -> list[AsyncDiffusionOutput]:
        """Take what has come, less what is held."""
        seen = self._computed  # the engine asks anew, so it has dealt with the last ones
        messages = drain()
        self._computed |= any(m.kind is AsyncOutputKind.COMPUTE_DONE for m in messages)
        if not self._shut:
            held, self._held = self._held, []
            return held + messages
        self._held += [m for m in messages if m.kind is AsyncOutputKind.OUTPUT_READY]
        if seen and self._held:
            self.in_flight.set()
        return [m for m in messages if m.kind is not AsyncOutputKind.OUTPUT_READY]


def gated(executor: str, gate: OutputGate) -> type:
    """Make a class of an executor, "uni" or "mp", with a gate."""

    base: Any = BUILT_IN[executor]

    class Gated(base):  # type: ignore[misc]
        async def _launch(self, link: WorkerLink, services: trio.Nursery) -> None:
            gate._wake = self._ring
            gate.links, gate.calls = self.links, self._calls
            link.drain = partial(gate.pass_through, link.drain)  # type: ignore[method-assign]
            await super()._launch(link, services)

    return Gated
