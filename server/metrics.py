"""`Metrics`: what `/metrics` tells, counted here or read from the engine when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import trio
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine import DiffusionEngine, RequestTimings

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
LAG_PERIOD = 0.5
PHASES = ("queued", "forward", "output", "postprocess", "total")


def phases_of(timings: RequestTimings) -> dict[str, float]:
    """Return the seconds of each phase of a request."""
    return {phase: getattr(timings, phase) for phase in PHASES}


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
      engine: returns the engine, or None while there is none.
    """

    def __init__(self, engine: Callable[[], DiffusionEngine | None]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine))
        self.http_requests = self._counter("http_requests", "Answers.", "route", "status")
        self.outcomes = self._counter("requests", "Requests that have ended.", "outcome")
        self.images = self._counter("images", "Pictures that were made.")
        self.phase_seconds = self._histogram("phase_seconds", "Phases of requests.", "phase")
        self.encode_seconds = self._histogram("encode_seconds", "From pictures to an answer.")
        self.abort_seconds = self._histogram(
            "abort_seconds", "From a client's leaving until the worker let go."
        )
        self.loop_lag_seconds = Histogram(
            "sidestream_loop_lag_seconds",
            "How late the event loop wakes a task.",
            buckets=LAG_SECONDS,
            registry=self.registry,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sidestream_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(
            f"sidestream_{name}", text, labels, buckets=SECONDS, registry=self.registry
        )

    def note_result(self, timings: RequestTimings, count: int) -> None:
        """Count a result of some pictures."""
        self.images.inc(count)
        for phase, seconds in phases_of(timings).items():
            self.phase_seconds.labels(phase).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    async def watch_lag(self) -> None:
        """Measure how late the event loop is, for ever."""
        while True:
            due = trio.current_time() + LAG_PERIOD
            await trio.sleep_until(due)
            self.loop_lag_seconds.observe(max(0.0, trio.current_time() - due))


class _EngineCollector(Collector):
    """Reads the engine's own statistics."""

    def __init__(self, engine: Callable[[], DiffusionEngine | None]) -> None:
        self._engine = engine

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        engine = self._engine()
        if engine is None:
            return
        statistics = engine.statistics()
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"sidestream_{name}", text, getattr(statistics, name))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"sidestream_{name}", text, getattr(statistics, name))
        age = GaugeMetricFamily(
            "sidestream_worker_heartbeat_age_seconds",
            "Since a worker last showed that it lives.",
            labels=["worker"],
        )
        for worker in statistics.workers:
            age.add_metric([str(worker.index)], worker.heartbeat_age)
        yield age


_GAUGES = {
    "waiting": "Requests in the queue.",
    "preempted": "Of these, requests that gave way to more urgent ones.",
    "running": "Requests whose forward is under way.",
    "aborting": "Requests that nobody wants and that a worker still holds.",
    "pending_outputs": "Computed outputs that are on their way.",
    "claims": "Requests that the engine or a worker holds.",
    "ring_bytes": "Shared memory for outputs.",
    "ring_bytes_used": "Of it, bytes in use.",
    "ring_bytes_held": "Of these, bytes that results hold.",
}
_COUNTERS = {"waves_dispatched": "Waves or ticks."}
