"""Request mode: waves of requests, one after the other.

The pipeline's own code before its first component call (tokenising, schedules, first noise) needs
no device. So the next wave, if it is there, runs that far while the device is at work on what is
probably the last component call of this one: a pipeline that then waits for the device, as many
do at their end, does not make the next one late. Where the host is the device, that would win
nothing.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from .endings import Endings
from .lane_steps import open_lane
from .lanes import Batcher, ComponentCall, Hub, Lane, Lockstep
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
        self._pace = pace
        self._lockstep = Lockstep(hub, batcher)
        self._endings = endings
        self._last: _LastCall | None = None

    def run(
        self, requests: Sequence[RunnerRequest], events: RunnerEvents, upcoming: Upcoming
    ) -> None:
        """Run a wave, and after it those that `upcoming` gave in the meantime."""
        try:
            with self._hub:
                self._start([request.request_id for request in requests], events)
                wave: _Wave | None = self._open(requests, events)
                while wave is not None:
                    wave = self._run(wave, events, upcoming)
                    if wave is not None:
                        self._start(wave.names(), events)
        finally:
            events.settle()

    def _start(self, names: Sequence[str], events: RunnerEvents) -> None:
        self._hub.drive(self._pace.wait)
        events.on_start(names)

    def _open(self, requests: Sequence[RunnerRequest], events: RunnerEvents) -> "_Wave":
        """Run each request up to its first component call."""
        wave = _Wave(self._endings, events, self._end_round)
        lanes = [wave.add(self._hub, request) for request in requests]
        self._hub.drive(partial(self._lockstep.start, lanes))
        return wave

    def _run(self, wave: "_Wave", events: RunnerEvents, upcoming: Upcoming) -> "_Wave | None":
        """Run a wave to its end; return the next one, if that is open by then."""
        opened: list[_Wave] = []
        calls = _Calls(len(wave.lanes))
        ahead = self._hub.platform.asynchronous

        def meanwhile(call: ComponentCall) -> None:
            events.settle()
            calls.note(call)
            if opened or not ahead or self._hub.exclusive is not None:
                return
            if not calls.may_end_with(self._last):
                return
            if requests := upcoming():
                opened.append(self._open(requests, events))

        try:
            with self._hub.meanwhile(meanwhile):
                self._hub.drive(partial(self._lockstep.run, wave.lanes))
            if self._hub.poison is not None:
                wave.fail_rest(self._hub.poison)
        except BaseException:
            for other in opened:
                self._hub.abandon(other.lanes)
            raise
        finally:
            self._hub.abandon(wave.lanes)
            wave.lanes.clear()  # they know the wave
        self._last = calls.last()
        self._mark_pace()
        return opened[0] if opened else None

    def _end_round(self) -> None:
        """Wait until the device has begun with the step that is last in its queue now."""
        self._mark_pace()
        self._hub.drive(self._pace.wait)

    def _mark_pace(self) -> None:
        if self._hub.poison is None:
            self._hub.drive(self._pace.mark)


@dataclass(frozen=True, slots=True)
class _LastCall:
    """The component call that a wave ended with: which, and how many such calls each lane made."""

    kind: tuple[str, str]
    for_each: float


@dataclass(slots=True)
class _Calls:
    """The component calls of a wave so far."""

    lanes: int
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    kind: tuple[str, str] | None = None

    def note(self, call: ComponentCall) -> None:
        """Count a call."""
        self.kind = (call.path, call.method)
        self.counts[self.kind] += 1

    def last(self) -> _LastCall | None:
        """Return the call that was the last one."""
        if self.kind is None:
            return None
        return _LastCall(self.kind, self.counts[self.kind] / self.lanes)

    def may_end_with(self, last: _LastCall | None) -> bool:
        """Whether the wave has come to the call that the wave before has ended with."""
        if last is None or last.kind != self.kind:
            return False
        return self.counts[last.kind] >= last.for_each * self.lanes


class _Wave:
    """The requests of one wave, and what has been told about them."""

    def __init__(
        self, endings: Endings, events: RunnerEvents, end_round: Callable[[], None]
    ) -> None:
        self.lanes: list[Lane] = []
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
        self.lanes.append(lane)
        return lane

    def names(self) -> list[str]:
        """Return the ids of the requests that have not ended."""
        return [request.request_id for request in self._requests.values()]

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
