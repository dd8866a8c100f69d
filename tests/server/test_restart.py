"""An engine that dies behind a server: another one takes its place, or the server ends."""

from __future__ import annotations

import errno
import signal
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import psutil
import pytest
import trio

from sidestream.engine import EngineConfig, EngineDeadError
from sidestream.server import ServerConfig, keeper
from sidestream.server.keeper import LONGEST_PAUSE, STEADY, Restarts
from sidestream.server.service import Service

from ..harness.http import GENERATIONS
from ..harness.serve_process import serving, url_told_by
from ..harness.surroundings import PATIENCE

SERVE = (
    *("guarded:guarded", "--device", "cpu", "--executor", "mp", "--port", "0"),
    *("--set", "model_options.steps=1000", "--set", "warmup=false"),
)
"""A step takes a millisecond, and a request that does not say how many a second."""


@pytest.fixture
def gate(tmp_path):
    """A file that is not there yet, and keeps engines from starting once it is."""
    return tmp_path / "gate"


@pytest.fixture
def server(gate):
    """A server that is ready, and a client of it."""
    arguments = ("--set", "model_options.forward_ms=1000", "--set", "server.max_engine_restarts=1")
    with (
        serving(*SERVE, *arguments, SIDESTREAM_TEST_GATE=str(gate)) as process,
        httpx2.Client(base_url=url_told_by(process), timeout=PATIENCE) as client,
    ):
        process.client = client
        yield process


def kill_worker(process):
    (worker,) = psutil.Process(process.pid).children()
    worker.kill()


def segments_of(process):
    """Return the shared memory that a process maps."""
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    return [line for line in maps if "memfd:sidestream" in line]


def wait_for(client, state):
    while client.get("/readyz").json() != {"status": state}:
        pass


def metrics_of(client):
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if x[0] != "#")}


def paint(client, **fields):
    return client.post(GENERATIONS, json={"prompt": "x", **fields})


def test_another_engine_takes_the_place_of_one_that_died(server, gate):
    client, answers, segments = server.client, [], segments_of(server)
    assert metrics_of(client)["sidestream_engine_restarts_total"] == 0
    long = threading.Thread(
        target=lambda: answers.append(paint(client, num_inference_steps=200, timeout_s=1000))
    )
    gate.touch()
    long.start()
    while metrics_of(client)["sidestream_running"] == 0:
        pass
    kill_worker(server)
    long.join(PATIENCE)
    wait_for(client, "starting")
    for answer in (*answers, paint(client), client.get("/v1/models")):
        assert answer.status_code == 503, answer.text
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert client.get("/livez").status_code == 200
    gate.unlink()
    wait_for(client, "ready")
    assert paint(client, num_inference_steps=1).status_code == 200
    assert len(segments_of(server)) == len(segments) > 0
    metrics = metrics_of(client)
    assert metrics["sidestream_engine_restarts_total"] == 1
    assert metrics["sidestream_worker_restarts_total"] == 1
    assert metrics['sidestream_requests_total{outcome="completed"}'] == 1
    assert metrics["sidestream_waiting"] == 0
    server.send_signal(signal.SIGTERM)
    code, errors = server.end()
    assert code == 0, errors
    assert "restart 1, of at most 1 in a row" in errors
    assert "the engine is back after" in errors


def test_an_engine_that_never_starts_again_ends_the_server(server, gate):
    gate.write_text("closed")
    kill_worker(server)
    code, errors = server.end()
    assert code == 1
    assert "the weights are gone" in errors.splitlines()[-1]
    assert not errors.splitlines()[-1].startswith(" ")  # it is no part of a traceback


def test_an_engine_that_dies_again_and_again_ends_the_server(server):
    kill_worker(server)
    while metrics_of(server.client)["sidestream_engine_restarts_total"] == 0:
        pass
    wait_for(server.client, "ready")
    kill_worker(server)
    code, errors = server.end()
    assert code == 1
    assert "the engine is dead" in errors.splitlines()[-1]


def test_a_signal_ends_the_server_while_its_engine_starts_again(server, gate):
    gate.touch()
    kill_worker(server)
    wait_for(server.client, "starting")
    server.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0


def test_pauses_double_and_sound_engines_make_them_short_again():
    restarts = Restarts(9)
    pauses = [restarts.next_pause(STEADY - 1) for _ in range(10)]
    assert pauses == [0, 1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE, None]
    assert restarts.next_pause(STEADY) == 0
    assert restarts.next_pause(0) == 1
    assert Restarts(0).next_pause(STEADY) is None


async def test_a_start_that_fails_for_want_of_files_is_tried_again(autojump_clock, monkeypatch):
    starts = []

    class Mortal:
        config = EngineConfig()

        async def wait_dead(self):
            await trio.sleep(1)
            return EngineDeadError(f"died after start {len(starts)}")

    @asynccontextmanager
    async def open_engine(_config):
        starts.append(trio.current_time())
        if len(starts) == 2:
            raise OSError(errno.EMFILE, "too many open files")
        yield Mortal()

    monkeypatch.setattr(keeper, "open_engine", open_engine)
    service = Service(ServerConfig(max_engine_restarts=2))
    failure = await keeper.EngineKeeper(EngineConfig(), service, list).run()
    assert starts == [0, 1, 2]  # at once, then after a second
    assert str(failure) == "died after start 3"


async def test_a_first_start_that_fails_ends_it(autojump_clock, monkeypatch):
    @asynccontextmanager
    async def open_engine(_config):
        raise OSError(errno.EMFILE, "too many open files")
        yield

    monkeypatch.setattr(keeper, "open_engine", open_engine)
    failure = await keeper.EngineKeeper(EngineConfig(), Service(ServerConfig()), list).run()
    assert isinstance(failure, OSError)
