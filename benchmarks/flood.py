"""A flood of clients, most of whom behave badly; afterwards the server must be as it was before.

    OMP_NUM_THREADS=1 python benchmarks/flood.py --model shapes
    OMP_NUM_THREADS=1 python benchmarks/flood.py --model synthetic

In each round 500 clients connect and ask for a picture. Half of them disconnect, each at a random
time. A tenth stall: some stop in the middle of their request, the others never read the answer. The
rest wait for theirs. Then, once the server has cut off who stalls, it is checked that

* the engine's statistics, as `/metrics` has them, are zero, and no connection is open;
* `/readyz` is green;
* the picture of a seed has the same bytes as before the flood;
* the memory of the server and its worker is what it was after the first round.

Prints a JSON object with what clients were answered, memory after each round, and percentiles of
the time from a client's leaving until the worker had let go, which the server's log tells. Ends
with an error if anything is not as it must be.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil
import trio

PATH = "/v1/images/generations"
PATIENCE = 300.0
GAUGES = "waiting preempted running aborting pending_outputs claims ring_bytes_used ring_bytes_held"
MODELS = {
    "shapes": ["shapes", "--executor", "mp", "--mode", "step", "--batch", "8"],
    "synthetic": [
        *["grey_pictures:load", "--executor", "mp", "--mode", "step", "--batch", "8"],
        *["--set", "model_options.forward_ms=50", "--set", "model_options.steps=10"],
        *["--set", "model_options.shape=[1, 3, 1024, 1024]"],
    ],
}
LIMITS = {
    "stalled_client_s": 3,
    "idle_timeout_s": 3,
    "body_timeout_s": 3,
    "png_compress_level": 0,  # large answers: they do not fit into the buffers of those who stall
}


class Server:
    """A server that runs.

    Args:
      process: its process.
      port: where it listens.
      log: what it writes: a JSON object for each request.
    """

    def __init__(self, process: subprocess.Popen[str], port: int, log: IO[str]) -> None:
        self.port = port
        self._process = psutil.Process(process.pid)
        self._log = log

    def get(self, path: str) -> tuple[int, str]:
        """Return what a path answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def picture(self) -> str:
        """Return the picture of a seed, as base64."""
        body = json.dumps({"prompt": "a large red circle", "seed": 7})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", PATH, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200, text
            return json.loads(text)["data"][0]["b64_json"]  # type: ignore[no-any-return]
        finally:
            connection.close()

    def holdings(self) -> dict[str, float]:
        """Return what the engine holds, by the name of the metric; empty when it is idle."""
        held = {}
        for line in self.get("/metrics")[1].splitlines():
            name, _, number = line.partition(" ")
            if name.removeprefix("sidestream_") in GAUGES.split() and float(number):
                held[name] = float(number)
        return held

    def connections(self) -> int:
        """Return how many connections of clients it has open."""
        found = self._process.net_connections("tcp")
        return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)

    def megabytes(self) -> float:
        """Return the memory that it and its workers have for themselves, MB."""
        family = [self._process, *self._process.children(recursive=True)]
        return sum(one.memory_full_info().uss for one in family) / 1e6

    def abort_milliseconds(self) -> list[float]:
        """Return how long it took to let go of each request whose client had left."""
        self._log.seek(0)
        lines = (json.loads(line) for line in self._log)
        return [line["abort_ms"] for line in lines if "abort_ms" in line]


@contextmanager
def server(model: str) -> Iterator[Server]:
    """Serve a model until the end of the block; its exit code has to be 0."""
    limits = [
        word for name, value in LIMITS.items() for word in ("--set", f"server.{name}={value}")
    ]
    command = [sys.executable, "-m", "sidestream.engine", "serve", *MODELS[model], *limits]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--json-logs", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            yield Server(process, port, log)
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait()
        assert code == 0, f"the server ended with {code}"


async def client(port: int, kind: str, leaves_after: float, told: Counter[str]) -> None:
    """Be one client.

    Args:
      port: of the server.
      kind: "leaves", "stalls sending", "stalls reading" or "waits".
      leaves_after: when one that leaves does so, s.
      told: is added what became of it.
    """
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        if kind == "stalls reading":
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"prompt": "a small blue star", "stream": random.random() < 0.3}).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        request = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        try:
            if kind == "stalls sending":
                await stream.send_all(request[: len(request) // 2])
                told[await ending(stream)] += 1
                return
            await stream.send_all(request)
            if kind == "stalls reading":
                await trio.sleep(PATIENCE / 10)  # until after it has been cut off, if it has to be
                told["stalled reading"] += 1
            elif kind == "leaves":
                with trio.move_on_after(leaves_after) as patience:
                    told[await ending(stream)] += 1
                if patience.cancelled_caught:
                    told["left"] += 1
            else:
                told[await ending(stream)] += 1
        except trio.BrokenResourceError:
            told[f"{kind}: cut off"] += 1


async def ending(stream: trio.SocketStream) -> str:
    """Read until the end, and return the status of the answer."""
    first = b""
    async for data in stream:
        first = first or data
    return first[9:12].decode() or "no answer"


async def flood(port: int, clients: int, seconds: float, chance: random.Random) -> Counter[str]:
    """Let all clients come, and return what became of them."""
    kinds = ["leaves"] * (clients // 2)
    kinds += ["stalls sending", "stalls reading"] * (clients // 20)
    kinds += ["waits"] * (clients - len(kinds))
    chance.shuffle(kinds)
    told: Counter[str] = Counter()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                nursery.start_soon(client, port, kind, chance.uniform(0, seconds), told)
    return told


def calm(running: Server) -> None:
    """Wait until the engine holds nothing and nobody is connected."""
    end = time.monotonic() + PATIENCE
    while running.holdings() or running.connections():
        assert time.monotonic() < end, (running.holdings(), running.connections())
        time.sleep(0.2)


def run(model: str, rounds: int, clients: int, seconds: float) -> dict[str, Any]:
    """Flood a server several times, and return what was measured."""
    chance = random.Random(0)
    told: Counter[str] = Counter()
    memory = []
    with server(model) as running:
        before = running.picture()
        for _ in range(rounds):
            told += trio.run(flood, running.port, clients, seconds, chance)
            calm(running)
            status, health = running.get("/readyz")
            assert status == 200, health
            assert running.picture() == before, "a picture has changed"
            calm(running)
            memory.append(round(running.megabytes(), 1))
        aborts = running.abort_milliseconds()
    cuts = statistics.quantiles(aborts, n=100, method="inclusive")
    return {
        "what": f"flood, {model}",
        "rounds": rounds,
        "clients": clients,
        "answers": dict(sorted(told.items())),
        "memory_mb": memory,
        "count": len(aborts),
        "p50_ms": round(cuts[49], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(max(aborts), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="shapes")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=10.0, help="of patience, at most")
    arguments = parser.parse_args()
    print(json.dumps(run(**vars(arguments))))


if __name__ == "__main__":
    main()
