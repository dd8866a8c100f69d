"""Request mode: waves of requests, one after the other.

While there is a next wave, the device gets its first work before anything is done about the outputs
of the last one.
"""

from collections.abc import Callable, Sequence
from functools import partial

from .endings import Endings
from .lane_steps import open_lane
from .lanes import Batcher, Hub, Lane, Lockstep
from .pace import Pace
from .requests import RunnerEvents, RunnerRequest

Upcoming = Callable[[], Sequence[RunnerRequest]]
"""Asked for the next wave; nothing if there is none yet."""


class Waves:
    """Runs waves on a hub.

    Args:
        hub: Of the pipeline.
        batcher: Runs the component calls.
        endings: Makes outputs of what lanes come to.
        pace: Keeps the host from running too far ahead of the device.
    """

    def __init__(self, hub: Hub, batcher: Batcher, endings: Endings, pace: Pace) -> None:
        self._hub = hub
        self._lockstep = Lockstep(hub, batcher)
        self._endings = endings
        self._pace = pace

    def run(
        self, requests: Sequence[RunnerRequest], events: RunnerEvents, upcoming: Upcoming
    ) -> None:
        """Run a wave, and after it those that are there by then."""
        try:
            while requests:
                self._run(requests, events)
                requests = upcoming()
        finally:
            events.settle()

    def _run(self, requests: Sequence[RunnerRequest], events: RunnerEvents) -> None:
        self._hub.drive(self._pace.wait)
        events.on_start([request.request_id for request in requests])
        wave = _Wave(self._endings, events, self._end_round)
        with self._hub:
            lanes = [wave.add(self._hub, request) for request in requests]
            try:
                with self._hub.meanwhile(events.settle):
                    self._hub.drive(partial(self._lockstep.run, lanes))
                if self._hub.poison is not None:
                    wave.fail_rest(self._hub.poison)
            finally:
                self._hub.abandon(lanes)
        self._mark_pace()

    def _end_round(self) -> None:
        """Wait until the device has begun with the step that is last in its queue now."""
        self._mark_pace()
        self._hub.drive(self._pace.wait)

    def _mark_pace(self) -> None:
        if self._hub.poison is None:
            self._hub.drive(self._pace.mark)


class _Wave:
    """The requests of one wave, and what has been told about them."""

    def __init__(
        self, endings: Endings, events: RunnerEvents, end_round: Callable[[], None]
    ) -> None:
        self._endings = endings
        self._events = events
        self._end_round = end_round
        self._requests: dict[Lane, RunnerRequest] = {}
        self._told: dict[Lane, int] = {}
        self._stepped: set[Lane] = set()
        """Those that have made a step in this round; it ends when one of them makes another."""

    def add(self, hub: Hub, request: RunnerRequest) -> Lane:
        """Open a lane for a request, and follow it."""
        latent = request.kwargs.get("output_type") == "latent"
        lane = open_lane(hub, request, partial(self._on_stop, latent))
        self._requests[lane] = request
        return lane

    def _on_stop(self, latent: bool, lane: Lane) -> None:
        """Tell what is new about a lane that has stopped."""
        request_id = self._requests[lane].request_id
        news = lane.step != self._told.pop(lane, 0)
        if news:
            self._note_step(lane)
        if lane.done:
            del self._requests[lane]
            self._stepped.discard(lane)
            output = self._endings.of_lane(request_id, lane, latent=latent)
            output.progress = lane.progress() if news else None
            self._events.on_done(output)
            return
        self._told[lane] = lane.step
        if news:
            self._events.on_progress(request_id, *lane.progress())

    def _note_step(self, lane: Lane) -> None:
        if lane in self._stepped:
            self._stepped.clear()
            self._end_round()
        self._stepped.add(lane)

    def fail_rest(self, error: Exception) -> None:
        """End every request that is left, because the device is lost."""
        for lane, request in list(self._requests.items()):
            del self._requests[lane]
            self._events.on_done(self._endings.of_error(request.request_id, error))
