"""Two promises of the HTTP server, measured from other processes.

    OMP_NUM_THREADS=1 python benchmarks/http_server.py

* A client that disconnects frees its worker within one step: the server's own measure, from the
  client's leaving until the worker has let go, for requests whose steps take 5 ms.
* The event loop goes on while large pictures are encoded: the times of `/livez`, one after another
  on one connection, while 4096x4096 PNGs are made and sent.

Prints a JSON object for each measurement.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

SIDE = 4096
STEP_MS = 5
PATH = "/v1/images/generations"


class Pictures:
    """Called like a diffusers pipeline: a gradient with some noise, the same at every call."""

    components: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        ramp = torch.linspace(0, 0.9, SIDE)
        noise = torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) / 32
        self._images = ((ramp + ramp[:, None]) / 2 + noise)[None]

    def __call__(self, prompt: str, output_type: str = "pil") -> SimpleNamespace:
        return SimpleNamespace(images=self._images)


@contextmanager
def server(*arguments: str) -> Iterator[int]:
    """Run a server and return its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sidestream.engine", "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def post(port: int, body: dict[str, Any]) -> socket.socket:
    """Send a request, and do not wait for the answer."""
    connection = socket.create_connection(("127.0.0.1", port))
    data = json.dumps(body).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def get(connection: http.client.HTTPConnection, path: str) -> str:
    """Return what a path answers."""
    connection.request("GET", path)
    return connection.getresponse().read().decode()


def disconnect_times(count: int) -> list[float]:
    """Let clients go, one after another, and read from the metrics how long each took."""
    steps = 10_000
    options = ("--set", f"model_options.forward_ms={STEP_MS * steps}")
    times: list[float] = []
    total = 0.0
    with server("synthetic", *options, "--set", f"model_options.steps={steps}") as port:
        watcher = http.client.HTTPConnection("127.0.0.1", port)
        for index in range(count):
            name = f"r{index}"
            client = post(port, {"prompt": "x", "request_id": name})
            while '"running"' not in get(watcher, f"/v1/requests/{name}"):
                pass
            client.close()
            time.sleep(0.05)  # reading the metrics would disturb
            while value(get(watcher, "/metrics"), "sidestream_abort_seconds_count") == index:
                time.sleep(0.01)
            before, total = total, value(get(watcher, "/metrics"), "sidestream_abort_seconds_sum")
            times.append(total - before)
    return times


def value(metrics: str, name: str) -> float:
    """Return the value of a metric."""
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith(name))


def probe_times(port: int, pictures: int) -> tuple[list[float], float]:
    """Time `/livez` while pictures are made one after another; also return s for each picture."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    command = ["curl", "-s", "-o", "/dev/null", "-H", "Content-Type: application/json"]
    command += ["-d", '{"prompt": "x"}', f"http://127.0.0.1:{port}{PATH}"]
    times: list[float] = []
    began = time.perf_counter()
    for _ in range(pictures):
        with subprocess.Popen(command) as client:
            while client.poll() is None:
                start = time.perf_counter()
                get(connection, "/livez")
                times.append(time.perf_counter() - start)
                time.sleep(0.002)
    return times, (time.perf_counter() - began) / max(1, pictures)


def idle_times(port: int, count: int) -> list[float]:
    """Time `/livez` while nothing goes on."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        get(connection, "/livez")
        times.append(time.perf_counter() - start)
        time.sleep(0.002)
    return times


def tell(what: str, seconds: Sequence[float], **more: Any) -> None:
    """Print percentiles."""
    cuts = statistics.quantiles(seconds, n=100)
    times = {"p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3, "max_ms": max(seconds) * 1e3}
    rounded = {name: round(number, 2) for name, number in (times | more).items()}
    print(json.dumps({"what": what, "count": len(seconds), **rounded}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disconnects", type=int, default=200)
    parser.add_argument("--pictures", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.disconnects:
        tell(f"disconnect, steps of {STEP_MS} ms", disconnect_times(arguments.disconnects))
    for level in (0, 1, 6) if arguments.pictures else ():
        settings = (f"server.png_compress_level={level}", f"output_ring_bytes={1 << 30}")
        given = [word for setting in settings for word in ("--set", setting)]
        with server("http_server:Pictures", "--executor", "mp", *given) as port:
            tell("livez, idle", idle_times(port, 300))
            times, each = probe_times(port, arguments.pictures)
            tell(f"livez, PNG level {level}", times, s_per_picture=each)


if __name__ == "__main__":
    main()
