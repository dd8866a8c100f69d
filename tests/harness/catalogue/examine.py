"""Running one entry in every way that lanes run requests, against plain calls of the pipeline."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.platform import CpuPlatform

from .alone import Alone
from .compare import Tensors, distance, duplicate, identical, plain, precision, rounded
from .entry import Entry

REQUESTS = 3
CLOSE = 1e-4  # how far merging may move a result, relative to its largest value
MAX_TICKS = 1000
NOISE_MARGIN = 8.0  # or so much more than the rounding of one denoiser output moves it


@dataclass
class Report:
    """What came of an entry.

    Attributes:
        name: The entry's.
        broken: Why the plain call does not run; nothing else was tried then.
        faults: What went wrong in lanes.
        calls: Component calls of the merged wave, after all probes.
        merged: How many of these served several requests.
        unmerged: The components of which calls were not merged, and why.
        distance: How far merging moved the results.
        seconds: How long all of it took.
    """

    name: str
    broken: str = ""
    faults: list[str] = field(default_factory=list)
    calls: int = 0
    merged: int = 0
    unmerged: dict[str, str] = field(default_factory=dict)
    distance: float = 0.0
    seconds: float = 0.0


def examine(entry: Entry, requests: int = REQUESTS) -> Report:
    """Run an entry plainly, then alone, interleaved, merged and cancelled in lanes."""
    report, start = Report(entry.name), time.perf_counter()
    try:
        pipeline = entry.build()
        expected = [plain(pipeline, entry.call(index), index) for index in range(requests)]
        _check_expected(expected)
    except Exception as error:
        report.broken = f"{type(error).__name__}: {error}"
        return report
    try:
        _examine(Examination(entry, pipeline, expected, report), report)
    except Exception as error:
        report.faults.append(f"the runner failed: {type(error).__name__}: {error}")
    report.seconds = time.perf_counter() - start
    return report


def _examine(examination: Examination, report: Report) -> None:
    examination.alone()
    if not report.faults:
        examination.interleaved()
        examination.uneven()
        examination.cancelled()
        examination.merged()
        examination.stepped()


class Examination:
    """The ways of running an entry's requests in lanes; what goes wrong is put into the report."""

    def __init__(
        self, entry: Entry, pipeline: Any, expected: list[Tensors], report: Report
    ) -> None:
        self._entry = entry
        self._pipeline = pipeline
        self._expected = expected
        self._report = report
        self._polls = 0
        self._ticks = 0

    def alone(self) -> None:
        """Each request in a wave of its own."""
        runner = self._runner(merge=False)
        for index in range(len(self._expected)):
            self._compare("alone", [self._request(index)], runner)

    def interleaved(self) -> None:
        """All requests in one wave, call by call."""
        requests = self._requests()
        polls = Polls()
        requests[1].cancelled = polls
        self._compare("interleaved", requests, self._runner(merge=False))
        self._polls = polls.count

    def uneven(self) -> None:
        """All requests in one wave, each with one step more than the one before it."""
        calls = [partial(self._entry.call, n, n) for n in range(len(self._expected))]
        try:
            expected = [plain(self._pipeline, call(), n) for n, call in enumerate(calls)]
        except ValueError:
            return  # distilled pipelines may insist on a number of steps
        for merge in (False, True):
            way = f"different step counts, {'merged' if merge else 'unmerged'}"
            requests = [RunnerRequest(str(n), call(), seed=n) for n, call in enumerate(calls)]
            self._compare(way, requests, self._runner(merge=merge), expected, exact=not merge)

    def cancelled(self) -> None:
        """One of the requests is cancelled half way; the others and the next wave are exact."""
        for merge in (False, True):
            runner = self._runner(merge=merge)
            requests = self._requests()
            requests[1].cancelled = Polls(self._polls // 2)
            self._compare("cancelled", requests, runner, exact=not merge, aborted="1")
            if runner._hub._open:
                self._fault("cancelled", "lanes are left open")
            self._compare("after a cancelled one", [self._request(0)], runner)

    def merged(self) -> None:
        """All requests in one wave, merged: twice to find out how, once more to do it."""
        runner = self._runner(merge=True)
        self._compare("probing", self._requests(), runner, exact=False)
        self._compare("probing", self._requests(), runner, exact=False)
        before = runner.statistics()
        alone = Alone(runner)
        self._compare("merged", self._requests(), runner, exact=False)
        after = runner.statistics()
        self._report.calls = after["calls"] - before["calls"]
        self._report.merged = after["merged_calls"] - before["merged_calls"]
        refused = {plan["component"]: plan["reason"] for plan in after["refused"]}
        self._report.unmerged = {
            path: refused.get(path, why) for path, why in alone.reasons().items()
        }

    def stepped(self) -> None:
        """All requests in step mode: they arrive one by one and are passed over now and then."""
        for merge in (False, True):
            runner = self._runner(merge=merge)
            for way, aborted in (("step mode", ""), ("step mode, one cancelled", "1")):
                requests = self._requests()
                if aborted:
                    requests[1].cancelled = Polls(self._ticks // 2)
                outputs, self._ticks = _run_steps(runner, requests)
                self._judge(way, outputs, self._expected, exact=not merge, aborted=aborted)
            if runner._hub._open:
                self._fault("step mode", "lanes are left open")
            self._compare("after step mode", [self._request(0)], runner)

    # ------------------------------------------------------------------ requests

    def _runner(self, *, merge: bool) -> DiffusionModelRunner:
        return DiffusionModelRunner(self._pipeline, CpuPlatform(), merge=merge)

    def _request(self, index: int) -> RunnerRequest:
        return RunnerRequest(str(index), self._entry.call(index), seed=index)

    def _requests(self) -> list[RunnerRequest]:
        return [self._request(index) for index in range(len(self._expected))]

    def _compare(
        self,
        way: str,
        requests: Sequence[RunnerRequest],
        runner: DiffusionModelRunner,
        expected: Sequence[Tensors] | None = None,
        *,
        exact: bool = True,
        aborted: str = "",
    ) -> None:
        outputs = Outputs()
        runner.execute_model_batch(requests, outputs)
        expected = self._expected if expected is None else expected
        self._judge(way, outputs, expected, exact=exact, aborted=aborted)

    def _judge(
        self,
        way: str,
        outputs: Outputs,
        expected: Sequence[Tensors],
        *,
        exact: bool,
        aborted: str = "",
    ) -> None:
        for name, output in outputs.ended.items():
            if output.error is not None:
                self._fault(way, output.error.strip().splitlines()[-1])
            elif output.aborted != (name == aborted):
                self._fault(way, "not cancelled" if name == aborted else "cancelled for no reason")
            elif not output.aborted:
                self._measure(way, output.tensors, expected, int(name), exact=exact)

    def _measure(
        self,
        way: str,
        tensors: Tensors,
        all_expected: Sequence[Tensors],
        index: int,
        *,
        exact: bool,
    ) -> None:
        expected = all_expected[index]
        apart = distance(tensors, expected)
        if exact:
            if apart or not identical(tensors, expected):
                self._fault(way, f"request {index} differs by {apart:.1e}")
            return
        self._report.distance = max(self._report.distance, apart)
        steps = index if all_expected is not self._expected else 0
        if apart > max(CLOSE, precision(expected)) and not apart <= NOISE_MARGIN * self._noise(
            index, steps, expected
        ):
            self._fault(way, f"request {index} differs by {apart:.1e}")

    def _noise(self, index: int, steps: int, expected: Tensors) -> float:
        """Return how far the rounding of every component's output moves the plain result."""
        pipeline = duplicate(self._pipeline)
        with rounded(pipeline):
            call = self._entry.call(index, steps)
            return distance(plain(pipeline, call, index), expected)

    def _fault(self, way: str, what: str) -> None:
        text = f"{way}: {what}"
        if text not in self._report.faults:
            self._report.faults.append(text)


def _run_steps(
    runner: DiffusionModelRunner, requests: Sequence[RunnerRequest]
) -> tuple[Outputs, int]:
    """Run requests in ticks of one step; return also for how many ticks the longest was open."""
    outputs, waiting, tick = Outputs(), list(requests), 0
    while waiting or len(outputs.ended) < len(requests):
        new = waiting[:1]
        del waiting[:1]
        arrived = requests[: len(requests) - len(waiting)]
        scheduled = [r.request_id for n, r in enumerate(arrived) if (tick + n) % 3 or tick < 3]
        runner.execute_stepwise(new, scheduled, outputs)
        tick += 1
        if tick > MAX_TICKS:
            runner.abandon_steps()
            break
    return outputs, tick


class Polls:
    """A cancel flag that goes up when it has been looked at for so many times."""

    def __init__(self, last: float = math.inf) -> None:
        self.count = 0
        self._last = last

    def __call__(self) -> bool:
        self.count += 1
        return self.count > self._last


class Outputs:
    """Keeps how requests ended."""

    def __init__(self) -> None:
        self.ended: dict[str, RunnerOutput] = {}

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        """Be told about progress."""

    def on_done(self, output: RunnerOutput) -> None:
        """Keep an output."""
        assert output.request_id not in self.ended, "a request ended twice"
        self.ended[output.request_id] = output


def _check_expected(expected: Sequence[Tensors]) -> None:
    for tensors in expected:
        for name, tensor in tensors.items():
            if not tensor.double().isfinite().all():
                raise ValueError(f"{name} is not finite")
    if distance(expected[0], expected[1]) < 1e-3:
        raise ValueError("the results of two requests are equal")
