"""`Service`: the engine as the routes see it, with what they all need to know about it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import trio

from ..engine import (
    DiffusionEngine,
    DiffusionRequest,
    DiffusionResult,
    EngineBusyError,
    EngineClosedError,
    ExecutionError,
    RequestAborted,
    SidestreamError,
)
from .config import ServerConfig
from .errors import ApiError, api_error, busy, refused_field, unavailable
from .exchange import CURRENT
from .input_bytes import InputBytes
from .limits import check_model
from .log_lines import line_of, record_fields
from .metrics import Metrics
from .tracking import NotedEvents, RequestBook, RequestRecord

if TYPE_CHECKING:  # it needs what few have installed
    from .telemetry import Telemetry

logger = logging.getLogger("sidestream.server")

LONGEST_RETRY = 60
"""Seconds; nobody is told to stay away for longer."""
FIRST_RETRY = 5
"""Seconds to stay away while nobody knows how long the engine takes to start."""
ABORT_PATIENCE = 30.0
"""How long a handler waits for the worker to let go of a request that its client has left, s."""


class Service:
    """An engine that comes and may go, the requests that run on it, and what is measured.

    Args:
      config: of the server.
      engine: what runs requests; None if it starts later.
      telemetry: makes spans; None: nobody wants any.
    """

    def __init__(
        self,
        config: ServerConfig,
        engine: DiffusionEngine | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.config = config
        self.engine = engine
        """None while it starts, at first or again; so it may change with every wait."""
        self.has_begun = engine is not None
        """Whether there has been one."""
        self._engine_due: float | None = None
        self._start_seconds = 0.0
        self._may_follow: Callable[[], bool] = lambda: False
        self.telemetry = telemetry
        self.requests = RequestBook()
        self.inputs = InputBytes(config.max_input_bytes, lambda: self.retry_after)
        self.metrics = Metrics(lambda: self.engine, self.inputs)
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
        except EngineClosedError:
            return "stopping"
        except SidestreamError:
            return "starting" if self._may_follow() else "dead"
        return "ready"

    def ready_engine(self) -> DiffusionEngine:
        """Return the engine.

        Raises:
          ApiError: it cannot take requests.
        """
        state = self.state
        if state != "ready" or self.engine is None:
            raise unavailable(f"the engine is {state}", self._restart_seconds())
        return self.engine

    def take_engine(
        self, engine: DiffusionEngine, start_seconds: float, may_follow: Callable[[], bool]
    ) -> None:
        """Lead requests to an engine from now on.

        Args:
          engine: which can take them.
          start_seconds: how long its start took; the next one may take as long.
          may_follow: tells whether another one would follow if it died now.
        """
        self.engine, self.has_begun = engine, True
        self._start_seconds = start_seconds
        self._may_follow = may_follow

    def lose_engine(self, pause: float) -> None:
        """Lead requests to the engine no longer: another one is to come.

        Args:
          pause: seconds until its start.
        """
        self.engine = None
        self._engine_due = trio.current_time() + pause + self._start_seconds

    def _restart_seconds(self) -> int | None:
        """Return the seconds after which there may be an engine, None if none is to come."""
        if self.state != "starting":
            return None
        if self.engine is not None:  # it has died just now
            return _whole_seconds(self._start_seconds)
        if self._engine_due is None:
            return FIRST_RETRY
        return _whole_seconds(self._engine_due - trio.current_time())

    @property
    def retry_after(self) -> int:
        """Seconds after which there may be room for one more request."""
        return _whole_seconds(self._pace)

    def check_room(self) -> None:
        """Return if the engine can take one more request.

        Raises:
          ApiError: it cannot; with the seconds after which it may, if its queue is full.
        """
        engine = self.ready_engine()
        try:
            engine.check_room()
        except EngineBusyError as error:
            raise busy(str(error), self.retry_after) from error

    @property
    def model_name(self) -> str:
        """What clients call the model: of a directory, they are told the last part."""
        if self.config.served_model_name is not None:
            return self.config.served_model_name
        engine = self.ready_engine() if self.engine is None else self.engine
        model = engine.config.model
        return Path(model).name if Path(model).is_absolute() else model

    def check_model(self, wanted: str | None, media: Literal["image", "video"]) -> None:
        """Return if what is served is what a client wants; see `limits.check_model`."""
        name = self.model_name
        check_model(wanted, name, self.ready_engine().capabilities, media)

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
        exchange = CURRENT.get()
        if exchange is not None and not exchange.ended:
            exchange.record = record
        try:
            async with engine.stream(request) as events:
                record.trace = events.trace
                yield NotedEvents(events, record)
        except SidestreamError as error:
            record.end("cancelled" if isinstance(error, RequestAborted) else "failed", error)
            answer = self._answer_to(error, record)
            if isinstance(error, ExecutionError) and not record.step:
                answer = refused_field(error, request, engine.capabilities) or answer
            raise answer from error
        except trio.Cancelled:
            if record.ended:  # what is lost is only the sending
                raise
            record.end("cancelled")
            with trio.move_on_after(ABORT_PATIENCE, shield=True):
                await self._see_it_end(engine, record)
            raise
        finally:
            if not record.ended:
                record.end("failed")
            self.requests.close(record)
            self._tell(record)

    def _answer_to(self, error: SidestreamError, record: RequestRecord) -> ApiError:
        answer = api_error(error, began=bool(record.step))
        if answer.status_code == 500:  # the client is not told what is in the traceback
            logger.error("request %s failed", record.request_id, exc_info=error)
        if answer.status_code == 503:
            return unavailable(str(answer.detail), self._restart_seconds())
        return answer

    def _tell(self, record: RequestRecord) -> None:
        """Count and trace a request that has ended; if nobody waited for it, it has a line in the
        log of its own."""
        self.metrics.note(record)
        if self.telemetry is not None:
            self.telemetry.note_run(record)
        exchange = CURRENT.get()
        if exchange is None or exchange.ended:
            fields = {"request_id": record.request_id} | record_fields(record)
            line = line_of(fields, as_json=self.config.json_logs)
            logger.info("%s", line, extra={"fields": fields})

    async def abort(self, request_id: str) -> bool:
        """Cancel a request, and return when the worker has let go of it.

        Returns:
          Whether it was under way.

        Raises:
          ApiError: there is no engine.
        """
        began = trio.current_time()
        if cancelled := await self.ready_engine().abort(request_id):
            self.metrics.abort_seconds.observe(trio.current_time() - began)
        return cancelled

    async def _see_it_end(self, engine: DiffusionEngine, record: RequestRecord) -> None:
        """Measure how long the worker takes to let go of what nobody wants any more."""
        left = trio.current_time()
        await engine.abort(record.request_id)
        record.abort_seconds = trio.current_time() - left
        self.metrics.abort_seconds.observe(record.abort_seconds)

    @contextmanager
    def encoding(self) -> Iterator[None]:
        """Measure how long outputs are encoded for an answer."""
        began = time.monotonic_ns()
        yield
        ended = time.monotonic_ns()
        self.metrics.encode_seconds.observe((ended - began) / 1e9)
        if (exchange := CURRENT.get()) is not None:
            exchange.encoding += ended - began
        if self.telemetry is not None:
            self.telemetry.note_phase("encode", (began, ended))

    def video_of(self, result: DiffusionResult) -> bytes:
        """Return the video of a result, having learnt from it when a place may be free.

        Raises:
          ApiError: the model makes something else.
        """
        if not isinstance(result.output, bytes):
            raise ApiError(422, "the model makes no video", code="unsupported")
        self._pace += 0.2 * (result.timings.forward - self._pace)
        return result.output

    def pictures_of(self, result: DiffusionResult) -> list[bytes]:
        """Return the pictures of a result, having counted it, and learnt from it when a place may
        be free.

        Raises:
          ApiError: the model makes something else.
        """
        if not all(isinstance(output, bytes) for output in result.outputs):
            raise ApiError(422, "the model makes no pictures", code="unsupported")
        self._pace += 0.2 * (result.timings.forward - self._pace)
        self.metrics.images.inc(len(result.outputs))
        return result.outputs


def _whole_seconds(seconds: float) -> int:
    """Return what a ``Retry-After`` says."""
    return min(max(1, math.ceil(seconds)), LONGEST_RETRY)
