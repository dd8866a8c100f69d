"""The model runner: runs requests on one pipeline, in waves or step by step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .capabilities import capabilities_of
from .endings import Endings
from .lane_steps import LaneSteps
from .lanes import Batcher, Hub
from .lanes.offloading import remember_offloading
from .pace import Pace
from .platform import Platform
from .protocol_steps import ProtocolSteps
from .replay import ReplayExecutor
from .requests import Progress, RunnerEvents, RunnerOutput, RunnerRequest
from .step_protocol import StepPipeline
from .trust import Trust
from .waves import NOTHING, Upcoming, Waves

REFUSALS_TOLD = 32
REASON_LIMIT = 400
"""Characters: statistics have to fit into an envelope."""

__all__ = ["DiffusionModelRunner", "RunnerEvents", "RunnerOutput", "RunnerRequest"]


class DiffusionModelRunner:
    """Runs requests on a pipeline, each in a lane of its own, merging what can be merged.

    Everything happens on the thread that calls the methods, always the same one. While requests of
    step mode are open, the thread is theirs between ticks too, but for torch's modes: whoever wants
    to draw random numbers there, or to look at or change the pipeline, calls `release_thread`
    first.
    """

    def __init__(
        self,
        pipeline: Any,
        platform: Platform,
        *,
        merge: bool = True,
        graph_budget: int | None = 0,
    ) -> None:
        """Take over a pipeline.

        Args:
            pipeline: Any object called like a diffusers pipeline.
            platform: The platform of the device that it is on.
            merge: Whether calls of different requests may share one call of a component.
            graph_budget: Bytes of device memory that recorded component calls may take; 0: none is
                recorded; None: as the platform thinks fit.
        """
        remember_offloading()
        self._pipeline = pipeline
        self._platform = platform
        self._hub = Hub(pipeline, platform, merge=merge)
        self._replay = _replay_for(self._hub, platform, graph_budget)
        self._batcher = Batcher(self._hub)
        self._endings = Endings(platform)
        self._pace = Pace(platform)
        trust = self._hub.executor = Trust(pipeline, self._hub.executor)
        self._waves = Waves(self._hub, self._batcher, self._endings, self._pace, trust)
        self._steps: ProtocolSteps | LaneSteps
        if isinstance(pipeline, StepPipeline):
            self._steps = ProtocolSteps(pipeline, self._hub, self._batcher, self._endings)
        else:
            self._steps = LaneSteps(self._hub, self._batcher, self._endings)

    def capabilities(self) -> dict[str, Any]:
        """Describe the pipeline in plain values.

        Returns:
            What `capabilities_of` says, and whether the pipeline implements the `step_protocol`.
        """
        step_protocol = isinstance(self._pipeline, StepPipeline)
        return {**capabilities_of(self._pipeline), "step_protocol": step_protocol}

    def execute_model_batch(
        self,
        requests: Sequence[RunnerRequest],
        events: RunnerEvents,
        upcoming: Upcoming = NOTHING,
    ) -> None:
        """Run a wave of requests; returns when all have ended.

        Args:
            requests: The wave. An error in one of them does not concern the others.
            events: Told about progress, and about each request as soon as it ends.
            upcoming: Asked for the next wave, which is run too, while this one waits for the
                device.
        """
        self._waves.run(requests, events, upcoming)

    def execute_stepwise(
        self, new: Sequence[RunnerRequest], scheduled: Sequence[str], events: RunnerEvents
    ) -> list[Progress]:
        """Run one tick: take requests on, end cancelled ones, make one step of those scheduled.

        Args:
            new: Requests to keep from now on. They begin when they are first scheduled.
            scheduled: Ids of the requests to advance; those that are not open are passed over.
            events: Told about each request that ends, scheduled or not, as soon as it does.

        Returns:
            For each scheduled request that is still open, in order: its id, how many steps it has
            made, and of how many (None: not known yet).
        """
        if scheduled:
            self._hub.drive(self._pace.wait)
        progress = self._steps.tick(new, scheduled, events)
        if scheduled:
            self._mark_pace()
        return progress

    def _mark_pace(self) -> None:
        if self._hub.poison is None:
            self._hub.drive(self._pace.mark)

    def abandon_steps(self) -> None:
        """End all open requests of step mode; nobody is told."""
        self._steps.abandon()

    def release_thread(self) -> None:
        """Let the thread be used for something else until the next wave or tick.

        The global random generators and the shared modules are then as they would be without
        requests. What is changed on the modules counts for open requests too.
        """
        self._hub.release()
        self._hub.parts.forget()
        if self._replay is not None:
            self._replay.doubt()

    def statistics(self) -> dict[str, Any]:
        """Return counts of calls, merges and probes, and which calls are not merged and why: the
        most frequent reasons, each with the number of kinds of calls that it concerns."""
        reasons = Counter(
            (plan.component, plan.method, plan.refusal[:REASON_LIMIT])
            for plan in self._batcher.book
            if plan.refusal is not None
        )
        refused = [
            {"component": component, "method": method, "reason": reason, "kinds": count}
            for (component, method, reason), count in reasons.most_common(REFUSALS_TOLD)
        ]
        plans = sum(bool(plan.readings) for plan in self._batcher.book)
        return {
            **asdict(self._batcher.counts),
            "plans": plans,
            "refused": refused,
            "graphs": None if self._replay is None else self._replay.statistics(),
        }


def _replay_for(hub: Hub, platform: Platform, budget: int | None) -> ReplayExecutor | None:
    """Let a hub's calls be recorded and replayed, if the device can do it."""
    graphs = None if budget == 0 else platform.graphs()
    if graphs is None:
        return None
    executor = ReplayExecutor(hub, graphs, platform.graph_budget() if budget is None else budget)
    hub.executor = executor
    return executor
