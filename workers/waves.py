"""Request mode: waves of requests, one after the other, and two of them where one waits.

A pipeline that waits for the device at its end would leave it without work until the host has come
from there to the next wave's first kernel. So while all that is left of a wave waits, the next one
is begun, if it is there: on another stream of the device, so that the first one's wait is over when
its own work is. Component calls of the two run in the order in which they are made, as on one
stream: components keep things, and recordings of them share memory.
"""

import time
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from .endings import Endings
from .lane_steps import open_lane
from .lanes import Batcher, Hub, Lane, Outcome, Rounds
from .pace import Pace
from .platform import Mark
from .requests import RunnerEvents, RunnerRequest
from .restraint import Kind, Restraint
from .trust import Trust, settings_of


class Upcoming(Protocol):
    """Knows the next wave."""

    def is_there(self) -> bool:
        """Whether there is one already. Never waits."""

    def take(self) -> Sequence[RunnerRequest]:
        """Return it; it is the caller's then."""


class Nothing:
    """Knows no wave."""

    def is_there(self) -> bool:
        """Say no."""
        return False

    def take(self) -> Sequence[RunnerRequest]:
        """Return no requests."""
        return ()


NOTHING = Nothing()


class Waves:
    """Runs waves on a hub.

    Args:
        hub: Of the pipeline.
        batcher: Runs the component calls.
        endings: Makes outputs of what lanes come to.
        pace: Keeps the host from running too far ahead of the device.
        trust: Knows whether two waves can be under way at a time.
    """

    def __init__(
        self, hub: Hub, batcher: Batcher, endings: Endings, pace: Pace, trust: Trust
    ) -> None:
        self._hub = hub
        self._rounds = Rounds(hub, batcher)
        self._endings = endings
        self._pace = pace
        self._trust = trust
        self._platform = hub.platform
        self._open: list[_Wave] = []
        self._usual_calls: int | None = None
        """Component calls of a lane that has come to its end lately."""
        self._restraint = Restraint()

    def run(
        self, requests: Sequence[RunnerRequest], events: RunnerEvents, upcoming: Upcoming
    ) -> None:
        """Run a wave, and those that come while a wave waits; returns when all have ended."""
        self._hub.drive(self._pace.wait)
        with self._hub:
            self._hub.lends, lends = self._lends, self._hub.lends
            try:
                self._begin(requests, events, stream=0)
                while self._open and self._hub.poison is None:
                    self._hub.drive(partial(self._go_on, events, upcoming))
                if self._hub.poison is not None:
                    for wave in self._open:
                        wave.fail_rest(self._hub.poison)
            finally:
                self._hub.lends = lends
                for wave in self._open:
                    self._hub.abandon(wave.lanes)
                self._open.clear()

    def _go_on(self, events: RunnerEvents, upcoming: Upcoming) -> None:
        """Do what can be done next, or wait for the device."""
        if self._take_back():
            return
        has_room = self._pace.has_room()
        for wave in self._open:
            with self._platform.forward_stream(wave.stream):
                if self._advance(wave, has_room):
                    return
        may_begin = has_room and self._may_begin()
        if may_begin and upcoming.is_there():
            self._begin_behind(events, upcoming)
            return
        waiting = self._waiting()
        if waiting:
            waiting[0].make_ready()
        awaited = [lane.awaits for lane in waiting]
        if not has_room:
            awaited.append(self._pace.oldest)
        assert awaited, "no lane can go on, and none waits"
        self._platform.wait_for_any(awaited, lambda: may_begin and upcoming.is_there())

    def _waiting(self) -> list[Lane]:
        return [lane for wave in self._open for lane in wave.lanes if lane.awaits]

    # ------------------------------------------------------------------ one wave

    def _begin(
        self, requests: Sequence[RunnerRequest], events: RunnerEvents, *, stream: int
    ) -> None:
        """Run each request up to its first component call."""
        wave = _Wave(self._endings, events, self._pace, self._trust, stream)
        self._open.append(wave)
        for request in requests:
            wave.add(self._hub, request)
        self._hub.drive(partial(self._rounds.start, wave.lanes))

    def _take_back(self) -> bool:
        """Let a lane go on whose wait is over; say whether there was one."""
        for wave in self._open:
            for lane in wave.lanes:
                alone = self._hub.exclusive in (None, lane)
                if lane.awaits and alone and self._platform.has_happened(lane.awaits):
                    with self._platform.forward_stream(wave.stream):
                        if not lane.cancel_if_asked():
                            lane.resume(Outcome(None))
                    return True
        return False

    def _advance(self, wave: "_Wave", has_room: bool) -> bool:
        """Make a wave's next component calls, or close it; say whether there was something to
        do."""
        lanes = [lane for lane in wave.lanes if not lane.cancel_if_asked()]
        if not lanes:
            self._end(wave)
            return True
        calling = [lane for lane in lanes if lane.pending or lane.wants_exclusive]
        if not calling or not has_room or self._is_held_back(wave, calling):
            return False
        self._keep_order(wave)
        kinds = [_kind(lane) for lane in calling]
        self._rounds.advance(calling)
        if len(self._open) > 1:
            wave.last_calls = self._platform.record_device_event()
        self._restraint.note(kinds, 0 if wave is self._open[0] else self._lateness())
        return True

    def _end(self, wave: "_Wave") -> None:
        """Close a wave; what comes after it on the device comes after all that it did."""
        self._open.remove(wave)
        done = [lane.calls for lane in wave.lanes if not (lane.cancelled or lane.error)]
        self._usual_calls = max(done, default=self._usual_calls)
        self._pace.wait()
        end = self._pace.mark()
        for stream in {other.stream for other in self._open} or {0}:
            with self._platform.forward_stream(stream):
                self._platform.wait_event(end)

    # ------------------------------------------------------------------ two waves

    def _lends(self, lane: Lane) -> bool:
        """Whether there may be something to do while a lane waits for the device."""
        if self._hub.exclusive is not None:
            return False
        if len(self._open) > 1:
            return True
        self._trust.look()
        return self._is_near_its_end(lane) and self._open[0].is_trusted

    def _is_near_its_end(self, lane: Lane) -> bool:
        """Whether a lane has made its steps, or as many calls as those before it where there are no
        steps. Until then, its own work is better done than the next one's."""
        step, total = lane.progress()
        if step and total is not None:
            return step >= total
        return self._usual_calls is not None and lane.calls >= self._usual_calls

    def _may_begin(self) -> bool:
        """Whether all that is left of the only wave waits for the device."""
        if len(self._open) != 1 or self._hub.exclusive is not None:
            return False
        return all(lane.done or lane.awaits for lane in self._open[0].lanes)

    def _begin_behind(self, events: RunnerEvents, upcoming: Upcoming) -> None:
        """Begin the next wave behind what the device has of this one."""
        (first,) = self._open
        with self._platform.forward_stream(first.stream):
            first.last_calls = self._platform.record_device_event()
        stream = 1 - first.stream
        self._hub.thread.stand_back()
        with self._platform.forward_stream(stream):
            self._platform.wait_event(first.last_calls)
            self._begin(upcoming.take(), events, stream=stream)

    def _is_held_back(self, wave: "_Wave", calling: Sequence[Lane]) -> bool:
        """Whether a wave may not make its calls now: since a lane changes modules, or is about to,
        or because they would take the thread for too long; in the second wave these have to let
        the first one end."""
        if self._hub.exclusive is not None:
            return self._hub.exclusive not in wave.lanes
        if wave is self._open[0]:
            return False
        kinds = [_kind(lane) for lane in calling]
        return (
            any(lane.wants_exclusive for lane in calling)
            or any(map(self._restraint.holds, kinds))
            or not self._trust.covers_calls([lane.pending for lane in calling if lane.pending])
        )

    def _lateness(self) -> int:
        """Return for how long something that the first wave waits for has been over, ns."""
        happened = [
            self._platform.time_of(Mark(0, lane.awaits))
            for lane in self._open[0].lanes
            if lane.awaits and self._platform.has_happened(lane.awaits)
        ]
        return time.monotonic_ns() - min(happened) if happened else 0

    def _keep_order(self, wave: "_Wave") -> None:
        """Let the calls that a wave makes now come after those that the other has made."""
        for other in self._open:
            if other is not wave and other.last_calls is not None:
                self._platform.wait_event(other.last_calls)


def _kind(lane: Lane) -> Kind:
    call = lane.pending
    return ("", "") if call is None else (call.path, call.method)


class _Wave:
    """The requests of one wave, and what has been told about them.

    Attributes:
        lanes: One for each request.
        stream: The number of the stream that they work on.
        last_calls: The event behind their last component calls, if there is another wave.
    """

    def __init__(
        self, endings: Endings, events: RunnerEvents, pace: Pace, trust: Trust, stream: int
    ) -> None:
        self.lanes: list[Lane] = []
        self.stream = stream
        self.last_calls: Any = None
        self._endings = endings
        self._events = events
        self._pace = pace
        self._trust = trust
        self._requests: dict[Lane, RunnerRequest] = {}
        self._settings: dict[Lane, Hashable] = {}
        self._told: dict[Lane, int] = {}
        self._stepped: set[Lane] = set()
        """Those that have made a step in this round; it ends when one of them makes another."""

    def add(self, hub: Hub, request: RunnerRequest) -> None:
        """Open a lane for a request, and follow it."""
        latent = request.kwargs.get("output_type") == "latent"
        lane = open_lane(hub, request, partial(self._on_stop, latent))
        self._requests[lane] = request
        self._settings[lane] = settings_of(request.kwargs)
        self.lanes.append(lane)

    @property
    def is_trusted(self) -> bool:
        """Whether another wave may be under way beside this one."""
        return all(map(self._trust.covers_request, self._settings.values()))

    def _on_stop(self, latent: bool, lane: Lane) -> None:
        """Tell what is new about a lane that has stopped."""
        request_id = self._requests[lane].request_id
        if lane.step != self._told.get(lane, 0):
            self._told[lane] = lane.step
            self._events.on_progress(request_id, *lane.progress())
            self._note_step(lane)
        if lane.done:
            del self._requests[lane]
            output = self._endings.of_lane(request_id, lane, latent=latent)
            if output.tensors:
                self._trust.note_output(self._settings[lane], output.tensors)
            self._events.on_done(output)

    def _note_step(self, lane: Lane) -> None:
        if lane in self._stepped:
            self._stepped.clear()
            self._pace.mark()
        self._stepped.add(lane)

    def fail_rest(self, error: Exception) -> None:
        """End every request that is left, because the device is lost."""
        for lane, request in list(self._requests.items()):
            del self._requests[lane]
            self._events.on_done(self._endings.of_error(request.request_id, error))
