"""Compare sidestream's rings with other ways to talk between two processes on one machine.

    python benchmarks/ipc.py [--quick] [--json FILE]

All transports take turns in one run, between this process and one spawned for each measurement:

* one_way: many messages of 200 bytes; from the first send until the answer that all have come
  (one_way_back: from the child to here, which for sidestream is from worker to engine);
* structured: the same with messages that are encoded and decoded (msgspec; the queues pickle);
* round_trip: one message at a time, there and back;
* payload: one 12.6 MB float32 array (1x3x1024x1024) at a time; from the start of the producer's
  copy out of its own memory, to the answer of a consumer that has read every byte, to the end of
  the tidying-up that each array needs (a segment is closed and unlinked, a payload released).

Each is short, repeated often, and the best is kept: whatever else the machine does can only slow
it down.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from ipc_transports import (
    OTHERS,
    OURS,
    SPAWN,
    NewSharedMemory,
    Sidestream,
    Transport,
)

FRAME = bytes(range(200))
MESSAGE = {
    "kind": "output_ready",
    "request_id": "5b9c1f0e-7f52-4b2f-a8f5-0c6c4f3c9d1e",
    "async_output_id": 123_456_789,
    "output": [{"name": "images", "dtype": "uint8", "shape": [1, 1024, 1024, 3]}],
    "handle": [0, 1, 3_145_728],
    "timings": [1.25, 2.5],
}
SHAPE = (1, 3, 1024, 1024)
DONE = b"done"
Results = dict[str, dict[str, float]]  # best seconds by measurement, by transport


# -- the child's part of each measurement


def receive_raw(end: Transport, count: int) -> None:
    """Receive, and say when all have come."""
    end.receive_all(count, None)
    end.send(DONE)


def receive_structured(end: Transport, count: int) -> None:
    """Receive and decode, and say when all have come."""
    end.receive_all(count, end.decode)
    end.send(DONE)


def send_back(end: Transport, count: int) -> None:
    """Send as many as were asked for, when asked."""
    end.receive()
    end.send_all(repeat(FRAME, count))


def echo(end: Transport, count: int) -> None:
    """Answer each message with itself."""
    for _ in range(count):
        end.send(end.receive())


def read_arrays(end: Transport, count: int) -> None:
    """Read each array and say so."""
    for _ in range(count):
        end.read_array()
        end.send(DONE)


def child(connection: Any, part: Callable[[Transport, int], None], counts: list[int]) -> None:
    """Open the child's end and play its part so many times."""
    end = connection.open()
    end.send(DONE)
    for count in counts:
        part(end, count)
    end.close()


# -- the parent's part: returns seconds for each message


def one_way(end: Transport, count: int) -> float:
    """Send raw bytes."""
    start = time.perf_counter()
    end.send_all(repeat(FRAME, count))
    end.receive()
    return (time.perf_counter() - start) / count


def structured(end: Transport, count: int) -> float:
    """Encode and send."""
    start = time.perf_counter()
    end.send_all(map(end.encode, repeat(MESSAGE, count)))
    end.receive()
    return (time.perf_counter() - start) / count


def one_way_back(end: Transport, count: int) -> float:
    """Receive raw bytes."""
    start = time.perf_counter()
    end.send(DONE)
    end.receive_all(count, None)
    return (time.perf_counter() - start) / count


def round_trip(end: Transport, count: int) -> float:
    """Ask and wait for the answer."""
    start = time.perf_counter()
    end.ask_all(repeat(FRAME, count))
    return (time.perf_counter() - start) / count


def payload(end: Transport, count: int) -> float:
    """Send arrays, one at a time; the median."""
    array = np.random.default_rng(0).random(SHAPE, np.float32)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        end.send_array(array)
        end.receive()
        end.acknowledged()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


Part = Callable[[Transport, int], float]
PARTS: dict[Part, Callable[[Transport, int], None]] = {
    one_way: receive_raw,
    one_way_back: send_back,
    structured: receive_structured,
    round_trip: echo,
    payload: read_arrays,
}


class Pair:
    """One transport between this process and a child, for one kind of measurement."""

    def __init__(self, kind: type[Transport], part: Part, counts: list[int]) -> None:
        self.kind = kind
        self.times: list[float] = []
        self._part = part
        self._counts = iter(counts)
        self._end = kind()
        arguments = (self._end.for_child(), PARTS[part], counts)
        self._process = SPAWN.Process(target=child, args=arguments)
        self._process.start()
        self._end.receive()

    def measure(self) -> None:
        """Measure once more, as often as there are counts."""
        self.times.append(self._part(self._end, next(self._counts)))

    def close(self) -> None:
        """Wait for the child, which has done all it was to do."""
        self._process.join()
        self._end.close()


def compare(quick: bool) -> Results:
    """Measure everything, the transports in turn, so that a busy moment falls on all of them."""
    lengths = {"round_trip": 1_000, "payload": 5}
    repeats = 5 if quick else 25
    results: Results = {kind.name: {} for kind in (*OURS, *OTHERS)}
    for part in PARTS:
        title = part.__name__
        counts = [lengths.get(title, 50_000)] * (1 + repeats)
        kinds = [kind for kind in (*OURS, *OTHERS) if title in kind.measured]
        pairs = [Pair(kind, part, counts) for kind in kinds]
        for _ in counts:
            for pair in pairs:
                pair.measure()
        for pair in pairs:
            pair.close()
            results[pair.kind.name][title] = min(pair.times[1:])  # the first one warms up
    return results


def ratios(results: Results) -> dict[str, float]:
    """Return how many times faster sidestream is than the best of the others."""

    def best(part: str) -> float:
        return min(results[kind.name].get(part, math.inf) for kind in OTHERS)

    ours = results[Sidestream.name]
    new_segment = results[NewSharedMemory.name]["payload"]
    return {
        "one way": best("one_way") / ours["one_way"],
        "one way back": best("one_way_back") / ours["one_way_back"],
        "structured": best("structured") / ours["structured"],
        "round trip": best("round_trip") / ours["round_trip"],
        "payload, over a new SharedMemory": new_segment / ours["payload"],
        "payload, over the best": best("payload") / ours["payload"],
    }


def cell(seconds: float, unit: str) -> str:
    """Return what the table says of a measurement."""
    if unit == "messages/s":
        return f"{1 / seconds:,.0f}"
    return f"{seconds * 1e6:.1f}" if unit == "us" else f"{seconds * 1e3:.2f}"


def report(results: Results, compared: dict[str, float]) -> None:
    """Print the table and the ratios."""
    units = {
        "one_way": "messages/s",
        "one_way_back": "messages/s",
        "structured": "messages/s",
        "round_trip": "us",
        "payload": "ms",
    }
    for line in (units, units.values()):
        print(f"{'':28}" + "".join(f"{word:>14}" for word in line))
    for kind in (*OURS, *OTHERS):
        row = results[kind.name]
        cells = [cell(row[part], unit) if part in row else "-" for part, unit in units.items()]
        print(f"{kind.name:28}" + "".join(f"{text:>14}" for text in cells) + f"   {kind.carries}")
    print("\ntimes faster than the best of the others:")
    for title, ratio in compared.items():
        print(f"  {title:36}{ratio:5.1f}")


def main() -> None:
    """Measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a fifth of the repeats")
    parser.add_argument("--json", type=Path, help="write seconds and ratios to this file")
    arguments = parser.parse_args()
    results = compare(arguments.quick)
    compared = ratios(results)
    report(results, compared)
    if arguments.json:
        machine = {"platform": platform.platform(), "cores": os.cpu_count()}
        document = {"machine": machine, "seconds": results, "times_faster": compared}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
