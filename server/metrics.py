"""`Metrics`: what `/metrics` tells, counted here or read from the engine when somebody asks.

Prometheus takes differences of counters over the time that it likes, so the engine's seconds are
counters. The one share of time here, `sidestream_worker_busy_fraction`, is of the last minute, not
since the last scrape: every reader would shorten the time of all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import trio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..engine import DiffusionEngine, RequestTimings, WorkerStatistics
from .busy_window import BusyWindow
from .input_bytes import InputBytes
from .tracking import RequestRecord

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)
PERIOD = 0.5
"""Seconds between two looks at the event loop and the workers."""
PHASES = ("queued", "forward", "output", "postprocess", "total")


def phases_of(timings: RequestTimings) -> dict[str, float]:
    """Return the seconds of each phase of a request."""
    return {phase: getattr(timings, phase) for phase in PHASES}


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
      engine: returns the engine, or None while there is none.
      inputs: what is kept for requests.
    """

    def __init__(self, engine: Callable[[], DiffusionEngine | None], inputs: InputBytes) -> None:
        self._engine = engine
        self._busy: defaultdict[int, BusyWindow] = defaultdict(BusyWindow)
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engine, self._busy))
        self.http_requests = self._counter("http_requests", "Answers.", "route", "status")
        self.outcomes = self._counter("requests", "Requests that have ended.", "outcome")
        self.images = self._counter("images", "Pictures that were made.")
        input_bytes = Gauge(
            "sidestream_input_bytes",
            "Bodies and pictures that are kept for requests.",
            registry=self.registry,
        )
        input_bytes.set_function(lambda: inputs.held)
        self.phase_seconds = self._histogram(
            "phase_seconds",
            "Phases of completed requests: queued (until the forward begins), forward, output (up"
            " to the engine), of this copy (from the device into the ring), postprocess, total.",
            "phase",
        )
        self.encode_seconds = self._histogram("encode_seconds", "From outputs to an answer.")
        self.abort_seconds = self._histogram(
            "abort_seconds", "From a client's leaving or cancelling until the worker let go."
        )
        self.engine_restarts = self._counter(
            "engine_restarts", "Engines that were started in place of one that had died."
        )
        self.worker_restarts = self._counter("worker_restarts", "Workers that were, with them.")
        self.loop_lag_seconds = self._histogram(
            "loop_lag_seconds", "How late the event loop wakes a task.", buckets=LAG_SECONDS
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"sidestream_{name}", text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS
    ) -> Histogram:
        return Histogram(
            f"sidestream_{name}", text, labels, buckets=buckets, registry=self.registry
        )

    def note(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        self.outcomes.labels(record.state).inc()
        if (timings := record.timings) is not None:
            copy = (timings.trace.copy_end - timings.trace.copy_start) / 1e9
            for phase, seconds in (phases_of(timings) | {"copy": copy}).items():
                self.phase_seconds.labels(phase).observe(seconds)

    def note_restart(self, workers: int) -> None:
        """Count an engine that is started in place of one that has died."""
        self.engine_restarts.inc()
        self.worker_restarts.inc(workers)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    async def watch(self) -> None:
        """Look at the event loop and at the workers, for ever."""
        while True:
            due = trio.current_time() + PERIOD
            await trio.sleep_until(due)
            now = trio.current_time()
            self.loop_lag_seconds.observe(max(0.0, now - due))
            if (engine := self._engine()) is not None:
                for worker in engine.statistics().workers:
                    self._busy[worker.index].note(
                        now, worker.busy_seconds, working=worker.waves > 0
                    )


class _EngineCollector(Collector):
    """Reads the engine's own statistics.

    Args:
      engine: returns the engine, or None while there is none.
      busy: what is known of each worker's last minute.
    """

    def __init__(
        self, engine: Callable[[], DiffusionEngine | None], busy: Mapping[int, BusyWindow]
    ) -> None:
        self._engine = engine
        self._busy = busy

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
        yield from self._of_workers(statistics.workers)

    def _of_workers(self, workers: Sequence[WorkerStatistics]) -> Iterator[Metric]:
        yield _by_worker(
            GaugeMetricFamily,
            "heartbeat_age_seconds",
            "Since a worker last showed that it lives.",
            {worker.index: worker.heartbeat_age for worker in workers},
        )
        yield _by_worker(
            CounterMetricFamily,
            "busy_seconds",
            "How long a device ran forwards, counted when they end.",
            {worker.index: worker.busy_seconds for worker in workers},
        )
        yield _by_worker(
            CounterMetricFamily,
            "bubble_seconds",
            "How long a device ran none while the next request was waiting.",
            {worker.index: worker.bubble_seconds for worker in workers},
        )
        yield _by_worker(
            GaugeMetricFamily,
            "busy_fraction",
            "Share of the last minute in which a device ran forwards, the one under way included.",
            {index: window.fraction for index, window in self._busy.items()},
        )


def _by_worker(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    values: Mapping[int, float],
) -> Metric:
    family = kind(f"sidestream_worker_{name}", text, labels=["worker"])
    for worker, value in values.items():
        family.add_metric([str(worker)], value)
    return family


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
