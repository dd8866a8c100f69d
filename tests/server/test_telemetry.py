"""Spans: what they tell of requests, and that sending them disturbs nobody."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx2
import pytest
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from sidestream.engine import ConfigError, DiffusionRequest, SamplingParams, open_engine
from sidestream.engine.cli import main
from sidestream.server import ServerConfig, create_app, telemetry

from ..harness.engines import LONG, filming, offer_pipelines, painting
from ..harness.http import GENERATIONS, served
from ..harness.surroundings import PATIENCE, assert_idle, nothing_left, settled
from ..harness.videos import VIDEOS

SLOW = {"forward_ms": 60_000, "steps": LONG}
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PHASES = ["queued", "forward", "copy", "postprocess"]
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    offer_pipelines(monkeypatch)
    for name in (ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spans():
    """Where finished spans are."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def named(spans):
    """Return the finished spans by name, a list of each, in the order of their beginnings."""
    found = {}
    for span in sorted(spans.get_finished_spans(), key=lambda s: (s.start_time, -s.end_time)):
        found.setdefault(span.name, []).append(span)
    return found


async def server_span(spans):
    """Wait for the one span of a request of HTTP, which ends after its answer."""

    def ended():
        return [s for s in spans.get_finished_spans() if s.kind is SpanKind.SERVER]

    await settled(lambda: bool(ended()))
    (span,) = ended()
    return span


async def test_a_request_is_a_span_of_its_callers_trace(spans, provider):
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options={"steps": 3})) as engine,
            served(engine, tracer_provider=provider) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            headers = {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "a=b"}
            headers |= {"X-Request-Id": "mine", "User-Agent": "tester"}
            began = time.time_ns()
            await client.post(GENERATIONS, json={"prompt": "secret"}, headers=headers)
            span = await server_span(spans)
            ended = time.time_ns()
    assert span.name == f"POST {GENERATIONS}"
    assert format_trace_id(span.context.trace_id) == TRACE
    assert format_span_id(span.parent.span_id) == CALLER
    assert span.context.trace_state.get("a") == "b"
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": GENERATIONS,
        "url.path": GENERATIONS,
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "client.address": "127.0.0.1",
        "user_agent.original": "tester",
        "sidestream.request_id": "mine",
        "sidestream.outcome": "completed",
        "sidestream.worker": 0,
        "sidestream.steps": 3,
    }
    children = named(spans)
    del children[span.name]
    assert list(children) == [*PHASES, "encode"]
    moments = [began, span.start_time]
    for (child,) in children.values():
        assert child.parent.span_id == span.context.span_id
        assert child.context.trace_id == span.context.trace_id
        assert child.kind is SpanKind.INTERNAL
        moments += [child.start_time, child.end_time]
    assert [*moments, span.end_time, ended] == sorted([*moments, span.end_time, ended])
    (trace,) = engine.traces()[-1:]
    forward = children["forward"][0]
    assert forward.end_time - forward.start_time == trace.forward_end - trace.forward_start
    assert "secret" not in "".join(each.to_json() for each in spans.get_finished_spans())


@pytest.mark.parametrize("traceparent", [None, "no trace", f"00-{'0' * 32}-{CALLER}-01"])
async def test_without_a_callers_trace_there_is_a_new_one(spans, provider, traceparent):
    async with (
        served(None, tracer_provider=provider) as server,
        httpx2.AsyncClient(base_url=server.url) as client,
    ):
        headers = {} if traceparent is None else {"traceparent": traceparent}
        await client.get("/v1/hunt/for/routes", headers=headers)
        span = await server_span(spans)
    assert (span.name, span.parent) == ("GET", None)
    assert span.attributes["http.response.status_code"] == 404
    assert span.status.status_code is StatusCode.UNSET  # the mistake is the client's
    assert "http.route" not in span.attributes


async def test_odd_methods_do_not_become_names_of_spans(spans, provider):
    async with (
        served(None, tracer_provider=provider) as server,
        httpx2.AsyncClient(base_url=server.url) as client,
    ):
        await client.request("HUNT", "/v1/models")
        span = await server_span(spans)
    assert span.name == "HTTP /v1/models"
    assert span.attributes["http.request.method"] == "_OTHER"
    assert span.attributes["http.request.method_original"] == "HUNT"


async def test_probes_are_no_spans(spans, provider):
    async with (
        served(None, tracer_provider=provider) as server,
        httpx2.AsyncClient(base_url=server.url) as client,
    ):
        for path in ("/livez", "/readyz", "/metrics", "/v1/models"):
            await client.get(path)
        span = await server_span(spans)
    assert span.name == "GET /v1/models"
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "503"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_an_error_where_it_happened(spans, provider, stream):
    config = painting("uni", options={"fail_at_step": 1, "steps": 2})
    async with (
        open_engine(config) as engine,
        served(engine, tracer_provider=provider) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
    ):
        await client.post(GENERATIONS, json={"prompt": "fail", "stream": stream})
        span = await server_span(spans)
    assert span.attributes["http.response.status_code"] == (200 if stream else 500)
    assert span.attributes["sidestream.outcome"] == "failed"
    found = named(spans)
    assert list(found) == [f"POST {GENERATIONS}", "queued", "forward"]
    for each, kind in ((span, "ExecutionError"), (found["forward"][0], "ExecutionError")):
        assert each.status.status_code is StatusCode.ERROR
        assert each.attributes["error.type"] == kind
    assert found["queued"][0].status.status_code is StatusCode.UNSET


async def test_a_client_that_goes_is_no_error(spans, provider):
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options=SLOW)) as engine,
            served(engine, tracer_provider=provider) as server,
        ):
            connection = await server.post(GENERATIONS, {"prompt": "x"})
            await settled(lambda: engine.statistics().running == 1)
            await connection.aclose()
            await assert_idle(engine)
            span = await server_span(spans)
    assert span.attributes["http.response.status_code"] == 499
    assert span.attributes["sidestream.outcome"] == "cancelled"
    assert span.status.status_code is StatusCode.UNSET
    assert list(named(spans)) == [span.name, "queued", "forward"]


async def test_each_picture_of_a_stream_is_encoded_in_a_span(spans, provider):
    async with (
        open_engine(painting("uni")) as engine,
        served(engine, tracer_provider=provider) as server,
        httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
    ):
        await client.post(GENERATIONS, json={"prompt": "x", "n": 2, "stream": True})
        span = await server_span(spans)
    encodings = named(spans)["encode"]
    assert len(encodings) == 2
    assert all(each.parent.span_id == span.context.span_id for each in encodings)


async def test_what_nobody_waits_for_has_a_span_of_its_own(spans, provider, caplog):
    caplog.set_level("INFO", "sidestream.server")
    request = DiffusionRequest("x", request_id="a", sampling=SamplingParams(output_type="png"))
    async with open_engine(painting("uni")) as engine:
        service = create_app(engine, tracer_provider=provider).state.service
        async with service.run(request) as events:
            async for _ in events:
                pass
    found = named(spans)
    (whole,) = found["request"]
    assert whole.attributes["sidestream.request_id"] == "a"
    assert list(found) == ["request", *PHASES]
    for name in PHASES:
        (child,) = found[name]
        assert child.parent.span_id == whole.context.span_id
        assert whole.start_time <= child.start_time <= child.end_time <= whole.end_time
    (line,) = caplog.messages
    assert line.startswith("request_id=a outcome=completed worker=0 steps=")


async def test_a_job_that_outlives_its_request_is_in_the_trace_of_it(spans, provider):
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(filming("uni", options=SLOW)) as engine,
            served(engine, tracer_provider=provider) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            video = (await client.post(VIDEOS, json={"prompt": "x"})).json()
            posted = await server_span(spans)
            assert "sidestream.outcome" not in posted.attributes
            await settled(lambda: engine.statistics().running == 1)
            await client.delete(f"{VIDEOS}/{video['id']}")
            await settled(lambda: len(spans.get_finished_spans()) == 5)
    found = named(spans)
    (whole,) = found["request"]
    assert whole.parent.span_id == posted.context.span_id
    assert whole.attributes["sidestream.outcome"] == "cancelled"
    assert whole.end_time > posted.end_time
    for name in ("queued", "forward"):
        assert found[name][0].parent.span_id == whole.context.span_id


# -- sending


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what is sent, and keeps it."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@contextmanager
def collecting():
    """Run a collector; offer its URL and what it has received."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.received = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.received
        finally:
            server.shutdown()
            thread.join()


def exporting_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("OtelBatch")]


@pytest.mark.parametrize("by_environment", [False, True])
async def test_a_collector_has_everything_when_the_server_ends(monkeypatch, by_environment):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=pictures")
    with collecting() as (url, received), trio.fail_after(PATIENCE):
        settings = {} if by_environment else {"otlp_endpoint": url + "/"}
        if by_environment:
            monkeypatch.setenv(ENDPOINT, url)
        async with open_engine(painting("uni")) as engine, nothing_left(at_once=False):
            async with (
                served(engine, **settings) as server,
                httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
            ):
                for _ in range(3):
                    assert (await client.post(GENERATIONS, json={"prompt": "x"})).is_success
                assert exporting_threads()
            assert not exporting_threads()
    assert {path for path, _ in received} == {"/v1/traces"}
    sent = [each for _, request in received for each in request.resource_spans]
    names = [s.name for each in sent for scope in each.scope_spans for s in scope.spans]
    assert sorted(names) == sorted(3 * [f"POST {GENERATIONS}", *PHASES, "encode"])
    about = {a.key: a.value.string_value for each in sent for a in each.resource.attributes}
    assert about["service.name"] == "sidestream"
    assert about["service.namespace"] == "pictures"


@pytest.mark.parametrize("there", [False, True])
async def test_a_collector_that_takes_nothing_disturbs_nobody(monkeypatch, there):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")  # it is tried again and again
    monkeypatch.setattr(telemetry, "FLUSH_S", 0.05)
    stalled = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{stalled.getsockname()[1]}"
    if not there:
        stalled.close()
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni")) as engine,
            served(engine, otlp_endpoint=url) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            for _ in range(30):
                assert (await client.post(GENERATIONS, json={"prompt": "x"})).is_success
            if there:
                await settled(lambda: bool(exporting_threads()))
            server.stop.set()
            await server.ended.wait()
        stalled.close()  # which resets its connections
        await settled(lambda: not exporting_threads())
        assert not exporting_threads()


async def test_a_server_that_is_cancelled_does_not_wait_for_a_collector(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr(telemetry, "FLUSH_S", 10 * PATIENCE)
    with socket.create_server(("127.0.0.1", 0)) as stalled, trio.fail_after(PATIENCE):
        url = f"http://127.0.0.1:{stalled.getsockname()[1]}"
        async with trio.open_nursery() as nursery, served(None, otlp_endpoint=url) as server:
            async with httpx2.AsyncClient(base_url=server.url) as client:
                await client.get("/v1/models")
            nursery.cancel_scope.cancel()
    await settled(lambda: not exporting_threads())
    assert not exporting_threads()


# -- whether at all


def printed_by(code):
    """Run a program and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_off_unless_it_is_wanted(monkeypatch):
    assert create_app().state.service.telemetry is None
    code = (
        "import sys, sidestream.server as s\ns.create_app()\n"
        "print(*(m for m in ('opentelemetry.sdk', 'google.protobuf') if m in sys.modules))"
    )
    assert printed_by(code) == "\n"
    monkeypatch.setenv(ENDPOINT, "http://localhost:1")
    assert create_app().state.service.telemetry is not None
    for name, value in (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert create_app().state.service.telemetry is None


def test_fastapi_makes_no_spans_beside_these():
    code = """
import httpx2, trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sidestream.server import create_app

async def main():
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    app = create_app(tracer_provider=provider)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://a") as c:
        await c.get("/v1/models")
    print(*(span.name for span in spans.get_finished_spans()))

trio.run(main)
"""
    assert printed_by(code) == "GET /v1/models\n"


@pytest.mark.parametrize("by_environment", [False, True])
def test_a_missing_extra_is_one_line(monkeypatch, capsys, by_environment):
    monkeypatch.delitem(sys.modules, "sidestream.server.telemetry")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    source, arguments = "server.otlp_endpoint", ["--set", "server.otlp_endpoint=http://a:1"]
    if by_environment:
        monkeypatch.setenv(ENDPOINT, "http://a:1")
        source, arguments = ENDPOINT, []
    with pytest.raises(SystemExit) as ended:
        main(["serve", "shapes", "--port", "0", *arguments])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert f"{source} needs opentelemetry.sdk.resources" in line
    assert "pip install 'sidestream[otel]'" in line


@pytest.mark.parametrize("value", ["localhost:4318", "ftp://a", "http://", "http://a:x", 7, ""])
def test_an_endpoint_is_a_url(value):
    with pytest.raises(ConfigError, match="otlp_endpoint must be a URL such as"):
        ServerConfig(otlp_endpoint=value)
