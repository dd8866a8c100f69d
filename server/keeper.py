"""`EngineKeeper`: an engine behind a server, and another one in its place when it dies."""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ..engine import ConfigError, EngineConfig, SidestreamError, open_engine
from .service import Service

logger = logging.getLogger("sidestream.server")

STEADY = 60.0
"""An engine that has lived for so long is sound: its death is the first one in a row, s."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Before the second restart in a row and, doubling, the next ones, s; the first one is made at
once."""


class Restarts:
    """Decides whether an engine is started once more.

    Args:
      most: how often in a row.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_a_row = 0

    def may_follow(self, lived: float) -> bool:
        """Return whether there is to be another start, without counting it; see `next_pause`."""
        return (0 if lived >= STEADY else self.in_a_row) < self.most

    def next_pause(self, lived: float) -> float | None:
        """Return how many seconds to wait before the next start, None if there is to be none.

        Args:
          lived: how long the last engine could take requests, s.
        """
        if not self.may_follow(lived):
            return None
        if lived >= STEADY:
            self.in_a_row = 0
        self.in_a_row += 1
        doublings = min(self.in_a_row - 2, 30)
        return min(SHORTEST_PAUSE * 2.0**doublings, LONGEST_PAUSE) if doublings >= 0 else 0.0


class EngineKeeper:
    """Holds an engine open for a service, and opens another one whenever it dies, as often as the
    server's `max_engine_restarts` allows.

    Meanwhile the service has none. It keeps the last one, dead.

    Args:
      config: of the engine.
      service: is given it.
      on_ready: called when the first one can take requests.
    """

    def __init__(
        self, config: EngineConfig, service: Service, on_ready: Callable[[], None]
    ) -> None:
        self._config = config
        self._service = service
        self._on_ready = on_ready
        self._restarts = Restarts(service.config.max_engine_restarts)
        self._pause: float | None = None

    async def run(self) -> SidestreamError | OSError:
        """Do so, and return why there is no engine any more."""
        while True:
            failure = await self._run_one()
            if self._pause is None:
                return failure
            logger.warning(
                "%s; restart %d, of at most %d in a row, in %g s",
                *(failure, self._restarts.in_a_row, self._restarts.most, self._pause),
            )
            del failure  # its traceback may hold what the engine held
            await trio.sleep(self._pause)
            self._service.metrics.note_restart(self._config.num_workers)

    async def _run_one(self) -> SidestreamError | OSError:
        """Run one engine until it dies, and settle what comes then; a function of its own, so that
        nothing holds its memory while the next one starts."""
        service, began = self._service, trio.current_time()
        failure: SidestreamError | OSError | None = None
        try:
            async with open_engine(self._config) as engine:
                ready, first = trio.current_time(), not service.has_begun
                service.take_engine(
                    engine,
                    ready - began,
                    lambda: self._restarts.may_follow(trio.current_time() - ready),
                )
                if first:
                    self._on_ready()
                else:
                    logger.warning("the engine is back after %.1f s", ready - began)
                failure = await engine.wait_dead()
                self._lose(trio.current_time() - ready)
        except (SidestreamError, OSError) as error:
            if failure is None:  # it could not be started, for want of file descriptors, say
                failure = error
                self._lose(0.0, may_return=service.has_begun and type(error) is not ConfigError)
        assert failure is not None, "the block ends with one"
        return failure

    def _lose(self, lived: float, *, may_return: bool = True) -> None:
        """Decide whether another engine follows; if so, nobody is led to this one any more."""
        self._pause = self._restarts.next_pause(lived) if may_return else None
        if self._pause is not None:
            self._service.lose_engine(self._pause)
