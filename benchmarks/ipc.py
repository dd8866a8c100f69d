"""Compare sidestream's rings with other ways to talk between two processes on one machine.

    python benchmarks/ipc.py [--quick] [--json FILE]

All transports take turns in one run, between this process and one spawned for each measurement:

* one way: many messages of 200 bytes; from the first send until the answer that all have come;
* structured: the same with messages that are encoded and decoded (msgspec; the queues pickle);
* round trip: one message at a time, there and back;
* payload: one 12.6 MB float32 array (1x3x1024x1024) at a time; from the start of the producer's
  copy out of its own memory, to the answer of a consumer that has read every byte, to the end of
  the tidying-up that each array needs (a segment is closed and unlinked, a payload released).

Each is repeated and the best kept, because whatever else the machine does only ever slows it down.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from ipc_transports import SPAWN, TRANSPORTS, NewSharedMemory, Sidestream, SidestreamTrio, Transport

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


def one_way_structured(end: Transport, count: int) -> float:
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
    one_way_structured: receive_structured,
    one_way_back: send_back,
    round_trip: echo,
    payload: read_arrays,
}


def measure(kind: type[Transport], part: Part, count: int, repeats: int) -> float:
    """Return the best of several measurements in seconds, after one that warms up."""
    end = kind()
    counts = [max(count // 10, 1), *repeat(count, repeats)]
    process = SPAWN.Process(target=child, args=(end.for_child(), PARTS[part], counts))
    process.start()
    end.receive()
    seconds = [part(end, count) for count in counts]
    process.join()
    end.close()
    return min(seconds[1:])


def compare(quick: bool) -> dict[str, dict[str, float]]:
    """Measure everything; returns rows of seconds by measurement, by transport."""
    scale = 10 if quick else 1
    messages, rounds, arrays, repeats = 300_000 // scale, 5_000 // scale, 20, 2 if quick else 5
    plans: list[tuple[str, Part, int]] = [
        ("one_way", one_way, messages),
        ("one_way_structured", one_way_structured, messages),
        ("round_trip", round_trip, rounds),
        ("payload", payload, arrays),
    ]
    results: dict[str, dict[str, float]] = {kind.name: {} for kind in TRANSPORTS}
    for title, part, count in plans:
        for kind in TRANSPORTS:
            if kind is NewSharedMemory and part is not payload:
                continue  # it has no messages of its own
            if kind is SidestreamTrio and part is not round_trip:
                continue  # only its way of sleeping differs
            results[kind.name][title] = measure(kind, part, count, repeats)
    results[Sidestream.name]["one_way_back"] = measure(Sidestream, one_way_back, messages, repeats)
    return results


def ratios(results: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return how many times faster sidestream is than the best of the others."""
    ours = results[Sidestream.name]
    others = [row for name, row in results.items() if not name.startswith(Sidestream.name)]

    def best(title: str) -> float:
        return min(row[title] for row in others if title in row)

    return {
        "one_way": best("one_way") / ours["one_way"],
        "one_way_back": best("one_way") / ours["one_way_back"],
        "one_way_structured": best("one_way_structured") / ours["one_way_structured"],
        "round_trip": best("round_trip") / ours["round_trip"],
        "payload_over_shared_memory": results[NewSharedMemory.name]["payload"] / ours["payload"],
        "payload_over_best": best("payload") / ours["payload"],
    }


def report(results: dict[str, dict[str, float]], compared: dict[str, float]) -> None:
    """Print the table and the ratios."""
    nbytes = 4 * int(np.prod(SHAPE))
    print(
        f"{'':28}{'one way':>13}{'structured':>13}{'round trip':>12}{'payload':>10}{'':>10}"
        f"\n{'':28}{'messages/s':>13}{'messages/s':>13}{'us':>12}{'ms':>10}{'GB/s':>10}"
    )
    for kind in TRANSPORTS:
        row = results[kind.name]
        cells = [
            f"{1 / row['one_way']:13,.0f}" if "one_way" in row else f"{'-':>13}",
            f"{1 / row['one_way_structured']:13,.0f}" if "one_way" in row else f"{'-':>13}",
            f"{row['round_trip'] * 1e6:12.1f}" if "round_trip" in row else f"{'-':>12}",
            f"{row['payload'] * 1e3:10.2f}" if "payload" in row else f"{'-':>10}",
            f"{nbytes / row['payload'] / 1e9:10.2f}" if "payload" in row else f"{'-':>10}",
        ]
        print(f"{kind.name:28}{''.join(cells)}   {kind.carries}")
    back = results[Sidestream.name]["one_way_back"]
    print(f"\nsidestream, worker to engine: {1 / back:,.0f} messages/s")
    for title, ratio in compared.items():
        print(f"{title:28}{ratio:6.1f} x")


def main() -> None:
    """Measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages")
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
