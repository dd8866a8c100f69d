"""The log: one line for each request, with what the engine did for it."""

from __future__ import annotations

import json
import logging
import signal

import httpx2
import pytest
import trio

from sidestream.engine import open_engine
from sidestream.server.log_lines import JsonFormatter

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.http import GENERATIONS, served
from ..harness.serve_process import serving, url_told_by
from ..harness.surroundings import PATIENCE, assert_idle, settled

SLOW = {"forward_ms": 60_000, "steps": LONG}
HTTP = ["request_id", "method", "path", "status", "seconds", "bytes", "client"]


@pytest.fixture(autouse=True)
def pipelines(monkeypatch):
    offer_pipelines(monkeypatch)


@pytest.fixture
def lines(caplog):
    """Return a function that waits for so many lines and returns them, as objects."""
    name = "sidestream.server.access"
    caplog.set_level("INFO", name)

    def told():
        return [record.getMessage() for record in caplog.records if record.name == name]

    async def wait_for(count):
        await settled(lambda: len(told()) == count)
        return [json.loads(message) for message in told()]

    return wait_for


async def test_a_line_tells_the_phases(lines):
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options={"steps": 3, "forward_ms": 30})) as engine,
            served(engine, json_logs=True) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            answer = await client.post(GENERATIONS, json={"prompt": "x"})
            (line,) = await lines(1)
    phases = ["queued_ms", "forward_ms", "copy_ms", "postprocess_ms", "encode_ms"]
    assert list(line) == [*HTTP, "outcome", "worker", "steps", *phases]
    assert (line["outcome"], line["worker"], line["steps"]) == ("completed", 0, 3)
    timings = answer.json()["timings"]
    for phase in ("queued", "forward", "postprocess"):
        assert line[f"{phase}_ms"] == pytest.approx(timings[phase] * 1000, abs=1)
    assert line["forward_ms"] > 29
    assert line["copy_ms"] <= timings["output"] * 1000
    assert sum(line[phase] for phase in phases) <= line["seconds"] * 1000
    assert line["bytes"] == len(answer.content)


async def test_a_line_tells_how_far_a_request_came(lines):
    config = painting("uni", options={**SLOW, "fail_at_step": 0}, max_num_seqs=1, dispatch_depth=1)
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(config) as engine,
            served(engine, json_logs=True) as server,
            httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE) as client,
        ):
            await client.post(GENERATIONS, json={"prompt": "fail"})
            running = await server.post(GENERATIONS, {"prompt": "x"})
            await settled(lambda: engine.statistics().running == 1)
            waiting = await server.post(GENERATIONS, {"prompt": "x"})
            await settled(lambda: engine.statistics().waiting == 1)
            await waiting.aclose()
            await lines(2)
            await running.aclose()
            await lines(3)
            await assert_idle(engine)
            await client.get("/v1/models")
            failed, waited, ran, looked = await lines(4)
    assert (failed["outcome"], failed["error"]) == ("failed", "ExecutionError")
    assert list(failed)[-2:] == ["queued_ms", "forward_ms"]
    assert list(waited)[-3:] == ["outcome", "queued_ms", "abort_ms"]  # no worker has had it
    assert (ran["outcome"], ran["worker"]) == ("cancelled", 0)
    assert list(ran)[-3:] == ["queued_ms", "forward_ms", "abort_ms"]
    assert 0 <= waited["abort_ms"] <= waited["seconds"] * 1000
    assert list(looked) == HTTP


async def test_probes_have_no_lines_but_wrong_keys_do(lines):
    async with (
        served(None, json_logs=True, api_keys=("right",)) as server,
        httpx2.AsyncClient(base_url=server.url) as client,
    ):
        for key in ("right", "wrong"):
            for path in ("/livez", "/readyz", "/metrics"):
                await client.get(path, headers={"Authorization": f"Bearer {key}"})
        (line,) = await lines(1)
    assert (line["path"], line["status"]) == ("/metrics", 401)


def test_every_line_of_a_process_is_json():
    model = ("painters:painter", "--device", "cpu", "--set", "warmup=false", "--port", "0")
    options = ("--set", "model_options.fail_at_step=0", "--json-logs")
    with serving(*model, *options) as process:
        answer = httpx2.post(
            url_told_by(process) + GENERATIONS, json={"prompt": "fail"}, timeout=PATIENCE
        )
        assert answer.status_code == 500
        process.send_signal(signal.SIGTERM)
        code, errors = process.end()
    assert code == 0
    _loading, told, accessed = map(json.loads, errors.splitlines())
    assert list(told) == ["time", "level", "logger", "message", "exception"]
    assert told["level"] == "error"
    assert "ExecutionError" in told["exception"]
    assert accessed["logger"] == "sidestream.server.access"
    assert accessed["request_id"] == answer.headers["x-request-id"]
    assert accessed["time"].endswith("+00:00")


def test_lines_that_are_not_of_requests_have_a_message():
    record = logging.LogRecord("a", logging.INFO, "", 0, "%s\n%d", ("two lines", 2), None)
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "two lines\n2"
