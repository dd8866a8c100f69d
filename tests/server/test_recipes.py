"""The examples that serve HTTP: a client that goes ends its request, and all ends with a signal."""

from __future__ import annotations

import importlib
import io
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from PIL import Image

from sidestream.engine import open_engine

from ..harness.engines import LONG, offer_pipelines, painting
from ..harness.surroundings import PATIENCE, assert_idle, settled

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOW = {"forward_ms": 60_000, "steps": LONG}
ROUTES = {"quart_app": "/", "fastapi_app": "/pictures/"}


@pytest.fixture(params=ROUTES)
def example(request, monkeypatch):
    """Import an example."""
    offer_pipelines(monkeypatch)
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module(request.param)


@asynccontextmanager
async def served(app):
    """Serve an app as the examples do, and offer its URL."""
    config = Config.from_mapping(bind="127.0.0.1:0", errorlog=None)
    async with trio.open_nursery() as nursery:
        (url,) = await nursery.start(serve, app, config)
        yield url
        nursery.cancel_scope.cancel("the test is over")


@contextmanager
def program(name):
    """Run an example until the end of the block, and offer the process and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            for line in process.stderr:
                if "Running on " in line:
                    break
            else:
                raise AssertionError("it did not start")
            yield process, line.partition("Running on ")[2].split()[0]
        finally:
            process.kill()


async def test_a_client_that_goes_ends_its_request(example):
    path = ROUTES[example.__name__]
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options=SLOW)) as engine,
            served(example.make_app(engine)) as url,
        ):
            for count in (1, 2, 3):
                stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
                await stream.send_all(f"GET {path}x HTTP/1.1\r\nHost: test\r\n\r\n".encode())
                await settled(lambda: engine.statistics().running == 1)
                await stream.aclose()
                await assert_idle(engine)
                assert engine.statistics().aborted == count


async def test_a_full_queue_is_told(example):
    path = ROUTES[example.__name__]
    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni", options=SLOW, max_queued_requests=1)) as engine,
            served(example.make_app(engine)) as url,
            httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client,
            trio.open_nursery() as nursery,
        ):
            for count in (1, 2, 3):  # one runs, one lies in the worker's ring, one waits
                nursery.start_soon(engine.generate, "x")
                await settled(lambda count=count: engine.statistics().claims == count)
                await settled(lambda count=count: engine.statistics().waiting == max(0, count - 2))
            assert (await client.get(f"{path}x")).status_code == 429
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("name", "number"), [("quart_app", signal.SIGINT), ("fastapi_app", signal.SIGTERM)]
)
def test_it_runs_until_a_signal(name, number):
    with program(name) as (process, url):
        answer = httpx2.get(f"{url}{ROUTES[name]}a%20large%20red%20circle", timeout=PATIENCE)
        with Image.open(io.BytesIO(answer.content)) as image:
            assert image.size == (128, 128)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("name", ROUTES)
def test_it_ends_with_its_engine(name):
    with program(name) as (process, url):
        assert httpx2.get(f"{url}/nothing/at/all", timeout=PATIENCE).status_code == 404
        (worker,) = psutil.Process(process.pid).children()
        worker.kill()
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
    assert "EngineDeadError" in errors


async def test_an_app_can_have_the_routes_of_sidestream_too(monkeypatch):
    offer_pipelines(monkeypatch)
    monkeypatch.syspath_prepend(EXAMPLES)
    import fastapi_app

    with trio.fail_after(PATIENCE):
        async with (
            open_engine(painting("uni")) as engine,
            served(fastapi_app.make_app(engine)) as url,
            httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client,
        ):
            for path in ("/readyz", "/v1/models", "/metrics"):
                assert (await client.get(path)).status_code == 200
            answer = await client.post("/v1/images/generations", json={"prompt": "x", "n": 2})
            assert len(answer.json()["data"]) == 2
            answer = await client.post("/v1/images/generations", json={"prompt": "x", "n": 0})
            assert answer.json()["error"]["param"] == "n"
            body = {"prompt": "x", "stream": True}
            answer = await client.post("/v1/images/generations", json=body)
            assert "event: image_generation.completed" in answer.text
