"""`Telemetry`: OpenTelemetry traces. Each request of HTTP is a span, a child of its caller's
(``traceparent``), and the phases of what ran for it are spans in it.

Spans go into a bounded queue, from which a thread of the SDK's sends them: a collector that stalls
or is not there costs spans and nothing else. Prompts are in none of them. Needs the extra
``sidestream[otel]``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.metadata import version

import trio
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider as ExportingProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import (
    NoOpTracer,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from starlette.types import Scope

from .exchange import CURRENT, Exchange, epoch_of_monotonic
from .tracking import Interval, RequestRecord

FLUSH_S = 5.0
"""How long the end of a server waits for the collector to take the last spans, s."""
METHODS = ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE")
_SCOPE = "sidestream.server"
# It would write into the log, as they are, what clients send as their `tracestate`.
logging.getLogger("opentelemetry.trace.span").setLevel(logging.ERROR)
_PROPAGATOR = TraceContextTextMapPropagator()


class Telemetry:
    """Makes the spans of one server.

    Args:
      endpoint: base URL of a collector that takes OTLP over HTTP; None: the one that the
        environment names (``OTEL_EXPORTER_OTLP_ENDPOINT``).
      provider: of somebody who takes care of it; None: there are spans only while `exporting`.
    """

    def __init__(self, endpoint: str | None, provider: TracerProvider | None = None) -> None:
        self._endpoint = endpoint
        self._exports = provider is None
        self._tracer = _tracer_of(provider)

    @asynccontextmanager
    async def exporting(self) -> AsyncIterator[None]:
        """Send spans to the collector while the block runs, and what is left then for at most
        `FLUSH_S`; not at all if it is cancelled."""
        if not self._exports:
            yield
            return
        url = self._endpoint and self._endpoint.rstrip("/") + "/v1/traces"
        exporter: SpanExporter = OTLPSpanExporter(endpoint=url)
        provider = ExportingProvider(resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = _tracer_of(provider)
        ended = trio.Event()
        try:
            yield
            _begin_shutdown(provider, ended)
            with trio.move_on_after(FLUSH_S):
                await ended.wait()
        finally:
            self._tracer = NoOpTracer()
            if not ended.is_set():  # the threads end with the export that is under way
                exporter.shutdown()
                _begin_shutdown(provider, ended)

    @contextmanager
    def exchange(
        self, exchange: Exchange, scope: Scope, headers: Mapping[str, str]
    ) -> Iterator[None]:
        """Make the span of a request of HTTP around the block, at whose end all is known of it."""
        caller = _PROPAGATOR.extract(headers)
        attributes = _request_attributes(exchange, scope, headers)
        span = self._tracer.start_span(
            _name_of(exchange),
            caller,
            SpanKind.SERVER,
            attributes,
            start_time=exchange.epoch + exchange.began,
        )
        if span.get_span_context().is_valid:
            exchange.trace_id = format_trace_id(span.get_span_context().trace_id)
        token = attach(set_span_in_context(span, caller))
        try:
            yield
        finally:
            detach(token)
            _end_exchange(span, exchange)

    def note_run(self, record: RequestRecord) -> None:
        """Make the spans of what the engine ran: in that of its request of HTTP, or, if that has
        ended before, in one of its own."""
        exchange, phases, epoch = CURRENT.get(), record.phases, _epoch()
        if not phases:
            return
        if exchange is not None and not exchange.ended:
            self._note_phases(record, get_current(), epoch)
            return
        begin, end = next(iter(phases.values()))[0], max(end for _, end in phases.values())
        with self._span("request", (begin, end), get_current(), epoch) as whole:
            whole.set_attributes(_record_attributes(record))
            _fail_if(whole, record.error if record.state == "failed" else None)
            self._note_phases(record, set_span_in_context(whole), epoch)

    def _note_phases(self, record: RequestRecord, parent: Context, epoch: int) -> None:
        phases = record.phases
        for name, phase in phases.items():
            with self._span(name, phase, parent, epoch) as span:
                if record.state == "failed" and name == list(phases)[-1]:  # that is where it ended
                    _fail_if(span, record.error)

    def note_phase(self, name: str, phase: Interval) -> None:
        """Make the span of something that was done for the request of HTTP under way."""
        with self._span(name, phase, get_current(), _epoch()):
            pass

    @contextmanager
    def _span(self, name: str, phase: Interval, parent: Context, epoch: int) -> Iterator[Span]:
        begin, end = phase
        span = self._tracer.start_span(name, parent, start_time=epoch + begin)
        yield span
        span.end(epoch + end)


def _epoch() -> int:
    exchange = CURRENT.get()
    return epoch_of_monotonic() if exchange is None else exchange.epoch


def _tracer_of(provider: TracerProvider | None) -> Tracer:
    if provider is None:
        return NoOpTracer()
    return provider.get_tracer(_SCOPE, version("sidestream"))


def _resource() -> Resource:
    """Say who sends the spans; what the environment says goes before."""
    own = Resource.create({"service.name": "sidestream", "service.version": version("sidestream")})
    return own.merge(OTELResourceDetector().detect())


def _name_of(exchange: Exchange) -> str:
    return exchange.method if exchange.method in METHODS else "HTTP"


def _request_attributes(
    exchange: Exchange, scope: Scope, headers: Mapping[str, str]
) -> dict[str, AttributeValue]:
    """Describe a request as the semantic conventions of HTTP servers say."""
    method = exchange.method
    attributes: dict[str, AttributeValue] = {
        "http.request.method": method if method in METHODS else "_OTHER",
        "url.path": exchange.path,
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
        "client.address": exchange.client,
    }
    if method not in METHODS:
        attributes["http.request.method_original"] = method
    if "user-agent" in headers:
        attributes["user_agent.original"] = headers["user-agent"]
    return attributes


def _record_attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "sidestream.request_id": record.request_id,
        "sidestream.outcome": record.state,
    }
    if record.trace is not None and record.trace.worker >= 0:
        attributes["sidestream.worker"] = record.trace.worker
    if record.step is not None:
        attributes["sidestream.steps"] = record.step
    return attributes


def _end_exchange(span: Span, exchange: Exchange) -> None:
    """Tell what became of a request of HTTP; that of a client's mistake is no error of the
    server's."""
    span.set_attribute("sidestream.request_id", exchange.request_id)
    span.set_attribute("http.response.status_code", exchange.status)
    if exchange.route is not None:
        span.set_attribute("http.route", exchange.route)
        span.update_name(f"{_name_of(exchange)} {exchange.route}")
    record = exchange.record
    if record is not None and record.ended:
        span.set_attributes(_record_attributes(record))
    failed = record is not None and record.state == "failed"
    if exchange.status >= 500 or (failed and exchange.status < 400):  # the answer had begun
        _fail_if(span, (record and record.error) or str(exchange.status))
    span.end(exchange.epoch + exchange.ended)


def _fail_if(span: Span, kind: str | None) -> None:
    if kind is not None:
        span.set_attribute("error.type", kind)
        span.set_status(StatusCode.ERROR)


def _begin_shutdown(provider: ExportingProvider, ended: trio.Event) -> None:
    """Let a thread send the last spans and stop the one that has sent spans so far."""
    loop = trio.lowlevel.current_trio_token()

    def tell(_: object) -> None:
        with suppress(trio.RunFinishedError):
            loop.run_sync_soon(ended.set)

    trio.lowlevel.start_thread_soon(provider.shutdown, tell)
