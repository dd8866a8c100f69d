"""How should the output thread wait for the device? Ways to wait for an event, compared.

The device works for a while, then copies an output to the host, as it does for every request. The
thread waits for the end of the copy in one of these ways:

    blocking  an event that wakes the thread by an interrupt
    spinning  an event that the driver watches without a pause
    polling   a look at the event every 50 us, with sleep in between: what sidestream does, but that
              it looks without sleep when the wait is as long as the last one (workers/lookout.py)
    both      blocking until the forward has ended, then spinning until the copy has

Told for each: how long after the end of the copy the thread went on, and how much of a core it used
meanwhile; both also while another Python thread computes, as the one that launches the next
forward does.

    python benchmarks/event_wait.py > event_wait.json
    python benchmarks/event_wait.py --device cpu --runs 5    # what it does, with timers as events
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from sidestream.workers.platform import CudaPlatform, Mark

WAYS = ("blocking", "spinning", "polling", "both")
POLL_S = 50e-6
NBYTES = 6_291_456
"""Of the output: 3x1024x1024 in bfloat16."""
SWITCH_INTERVAL_S = 0.0005
"""As in a worker."""


class Event(Protocol):
    """What is waited for."""

    def synchronize(self) -> None: ...
    def query(self) -> bool: ...


class Device(Protocol):
    """Where work is done."""

    name: str

    def launch(self, seconds: float, *, forward: bool, copy: bool) -> tuple[Event, Event]:
        """Start a forward and the copy of its output.

        Args:
            seconds: Of the forward.
            forward: Whether waiting for its event blocks; else it spins.
            copy: The same of the copy.

        Returns:
            The events of both ends.
        """

    def end_of(self, event: Event) -> int:
        """Return when an event, which is past, happened: ns of CLOCK_MONOTONIC."""


class CudaDevice:
    """A CUDA device: the forward on its default stream, the copy on a side stream."""

    def __init__(self) -> None:
        self._platform = CudaPlatform("cuda")
        self.name = torch.cuda.get_device_name()
        self._source = torch.ones(NBYTES, dtype=torch.uint8, device="cuda")
        self._target = torch.empty(NBYTES, dtype=torch.uint8, pin_memory=True)
        self._side = torch.cuda.Stream()
        self._cycles_per_s = self._measure()

    def _measure(self) -> float:
        cycles = 200_000_000
        for _ in range(3):  # the first ones raise the clocks
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            start.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
        return float(cycles / start.elapsed_time(end) * 1e3)

    def launch(self, seconds: float, *, forward: bool, copy: bool) -> tuple[Event, Event]:
        ends = [torch.cuda.Event(enable_timing=True, blocking=blocks) for blocks in (forward, copy)]
        torch.cuda._sleep(int(seconds * self._cycles_per_s))
        ends[0].record()
        with torch.cuda.stream(self._side):
            self._side.wait_event(ends[0])
            self._target.copy_(self._source, non_blocking=True)
            ends[1].record(self._side)
        return ends[0], ends[1]

    def end_of(self, event: Event) -> int:
        return self._platform.time_of(Mark(0, event))


class Timer:
    """An event that happens by itself, for machines without a device."""

    def __init__(self, seconds: float) -> None:
        self.at = 0
        self._happened = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(seconds,), daemon=True)
        self._thread.start()

    def _run(self, seconds: float) -> None:
        time.sleep(seconds)
        self.at = time.monotonic_ns()
        self._happened.set()

    def synchronize(self) -> None:
        self._happened.wait()

    def query(self) -> bool:
        return self._happened.is_set()


class TimerDevice:
    """Does nothing, in time."""

    name = "cpu"

    def launch(self, seconds: float, *, forward: bool, copy: bool) -> tuple[Event, Event]:
        return Timer(seconds), Timer(seconds + 1e-4)

    def end_of(self, event: Event) -> int:
        assert isinstance(event, Timer)
        return event.at


def poll(event: Event) -> None:
    """Look again and again."""
    while not event.query():
        time.sleep(POLL_S)


def wait(way: str, forward: Event, copy: Event) -> None:
    """Wait for the end of a copy."""
    if way == "polling":
        poll(copy)
        return
    if way == "both":
        forward.synchronize()
    copy.synchronize()


@contextmanager
def company(*, wanted: bool) -> Iterator[Callable[[], int]]:
    """Have another thread compute in Python; yields what tells its rounds so far."""
    rounds = 0
    stop = not wanted

    def compute() -> None:
        nonlocal rounds
        while not stop:
            sum(range(1000))
            rounds += 1

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield lambda: rounds
    finally:
        stop = True
        thread.join()


def measure(device: Device, way: str, seconds: float, runs: int, *, busy: bool) -> dict[str, Any]:
    """Wait for some copies in one way."""
    blocks = {"blocking": (True, True), "both": (True, False)}.get(way, (False, False))
    late, cpu, waited = [], 0.0, 0.0
    with company(wanted=busy) as rounds:
        begun, start = rounds(), time.monotonic()
        for _ in range(runs):
            forward, copy = device.launch(seconds, forward=blocks[0], copy=blocks[1])
            wall, used = time.monotonic(), time.thread_time()
            wait(way, forward, copy)
            now = time.monotonic_ns()
            cpu += time.thread_time() - used
            waited += time.monotonic() - wall
            late.append((now - device.end_of(copy)) / 1e3)
        rate = (rounds() - begun) / (time.monotonic() - start)
    p50, p99 = np.percentile(late, [50, 99]).tolist()
    told = {"late_us_p50": round(p50, 1), "late_us_p99": round(p99, 1), "cores": cpu / waited}
    return told | ({"others_rounds_per_s": round(rate)} if busy else {})


def rows(device: Device, forwards_ms: list[float], runs: int) -> Iterator[dict[str, Any]]:
    """Measure everything."""
    for forward_ms in forwards_ms:
        for way in WAYS:
            row: dict[str, Any] = {"forward_ms": forward_ms, "way": way}
            for name, busy in (("quiet", False), ("beside_python", True)):
                measure(device, way, forward_ms / 1e3, 3, busy=busy)
                row[name] = measure(device, way, forward_ms / 1e3, runs, busy=busy)
            print(row, file=sys.stderr, flush=True)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--forwards", type=float, nargs="+", default=[1, 5, 20, 100], metavar="MS")
    parser.add_argument("--runs", type=int, default=100)
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    device: Device = CudaDevice() if arguments.device == "cuda" else TimerDevice()
    told = {
        "command": " ".join(["python", "benchmarks/event_wait.py", *sys.argv[1:]]),
        "device": device.name,
        "output_bytes": NBYTES,
        "runs": arguments.runs,
        "rows": list(rows(device, arguments.forwards, arguments.runs)),
    }
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
