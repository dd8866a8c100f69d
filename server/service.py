"""`Service`: the engine as the routes see it, with what they all need to know about it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from ..engine import (
    DiffusionEngine,
    DiffusionRequest,
    DiffusionResult,
    EngineBusyError,
    RequestAborted,
    SidestreamError,
)
from .config import ServerConfig
from .errors import ApiError, api_error, busy, unavailable
from .metrics import Metrics
from .tracking import NotedEvents, RequestBook

logger = logging.getLogger("sidestream.server")

LONGEST_RETRY = 60
"""Seconds; nobody is told to stay away for longer."""
ABORT_PATIENCE = 30.0
"""How long a handler waits for the worker to let go of a request that its client has left, s."""


class Service:
    """An engine that comes and may go, the requests that run on it, and what is measured.

    Args:
      config: of the server.
      engine: what runs requests; None if it starts later.
    """

    def __init__(self, config: ServerConfig, engine: DiffusionEngine | None = None) -> None:
        self.config = config
        self.engine = engine
        self.requests = RequestBook()
        self.metrics = Metrics(lambda: self.engine)
        self.draining = False
        self.started = time.time()
        self._pace = 1.0

    # -- the engine

    @property
    def state(self) -> str:
        """``"ready"``, or why it is not: ``"starting"``, ``"stopping"`` or ``"dead"``."""
        if self.draining:
            return "stopping"
        if self.engine is None:
            return "starting"
        try:
            self.engine.check_health()
        except SidestreamError:
            return "dead"
        return "ready"

    def ready_engine(self) -> DiffusionEngine:
        """Return the engine.

        Raises:
          ApiError: it cannot take requests.
        """
        state = self.state
        if state != "ready" or self.engine is None:
            raise unavailable(f"the engine is {state}")
        return self.engine

    def check_room(self) -> None:
        """Return if the engine can take one more request.

        Raises:
          ApiError: it cannot; with the seconds after which it may, if its queue is full.
        """
        engine = self.ready_engine()
        try:
            engine.check_room()
        except EngineBusyError as error:
            raise busy(error, min(max(1, math.ceil(self._pace)), LONGEST_RETRY)) from error

    @property
    def model_name(self) -> str:
        """What clients call the model: of a directory, they are told the last part."""
        if self.config.served_model_name is not None:
            return self.config.served_model_name
        model = self.ready_engine().config.model
        return Path(model).name if Path(model).is_absolute() else model

    # -- requests

    @asynccontextmanager
    async def run(self, request: DiffusionRequest) -> AsyncIterator[NotedEvents]:
        """Run a request and tell its events; leaving the block ends it.

        Raises:
          ApiError: the answer to whatever went wrong.
        """
        engine = self.ready_engine()
        try:
            record = self.requests.open(request.request_id)
        except SidestreamError as error:
            raise api_error(error) from error
        try:
            async with engine.stream(request) as events:
                yield NotedEvents(events, record)
        except SidestreamError as error:
            record.end("cancelled" if isinstance(error, RequestAborted) else "failed")
            answer = api_error(error, began=bool(record.step))
            if answer.status_code == 500:  # the client is not told what is in the traceback
                logger.error("request %s failed", request.request_id, exc_info=error)
            raise answer from error
        except trio.Cancelled:
            if record.ended:  # what is lost is only the sending
                raise
            record.end("cancelled")
            with trio.move_on_after(ABORT_PATIENCE, shield=True):
                await self._see_it_end(engine, request.request_id)
            raise
        finally:
            if not record.ended:
                record.end("failed")
            self.requests.close(record)
            self.metrics.outcomes.labels(record.state).inc()

    async def _see_it_end(self, engine: DiffusionEngine, request_id: str) -> None:
        """Measure how long the worker takes to let go of what nobody wants any more."""
        left = trio.current_time()
        await engine.abort(request_id)
        self.metrics.abort_seconds.observe(trio.current_time() - left)

    def pictures_of(self, result: DiffusionResult) -> list[bytes]:
        """Return the pictures of a result, having counted it, and learnt from it when a place may
        be free.

        Raises:
          ApiError: the model makes something else.
        """
        if not all(isinstance(output, bytes) for output in result.outputs):
            raise ApiError(422, "the model makes no pictures", code="unsupported")
        self._pace += 0.2 * (result.timings.forward - self._pace)
        self.metrics.note_result(result.timings, len(result.outputs))
        return result.outputs
