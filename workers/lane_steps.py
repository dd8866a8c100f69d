"""Step mode for any pipeline: each request's call is a lane that stays open between ticks."""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .endings import Endings
from .lanes import Batcher, Hub, Lane, Stepwise
from .requests import Progress, RunnerEvents, RunnerRequest


class LaneSteps:
    """The open requests of step mode, and the ticks that advance them."""

    def __init__(self, hub: Hub, batcher: Batcher, endings: Endings) -> None:
        self._hub = hub
        self._schedule = Stepwise(hub, batcher)
        self._endings = endings
        self._lanes: dict[str, Lane] = {}
        self._events: RunnerEvents | None = None
        self._stepped: set[str] = set()
        """Those that have made their last step, and were told so."""

    def tick(
        self, new: Sequence[RunnerRequest], scheduled: Sequence[str], events: RunnerEvents
    ) -> list[Progress]:
        """Run one tick; see `DiffusionModelRunner.execute_stepwise`."""
        self._events = events
        try:
            with self._hub:
                for request in new:
                    self._take_on(request)
                self._hub.drive(partial(self._advance, scheduled))
                if self._hub.poison is not None:
                    self._fail_rest(self._hub.poison)
        except BaseException:
            self.abandon()
            raise
        return [(name, *lane.progress()) for name, lane in self._open(scheduled).items()]

    def abandon(self) -> None:
        """End all open requests without a word."""
        if self._lanes:
            with self._hub:
                self._hub.abandon(self._lanes.values())
            self._lanes.clear()
            self._stepped.clear()

    def _advance(self, scheduled: Sequence[str]) -> None:
        for lane in list(self._lanes.values()):
            lane.cancel_if_asked()
        self._schedule.tick(list(self._open(scheduled).values()))

    def _open(self, scheduled: Sequence[str]) -> dict[str, Lane]:
        return {name: self._lanes[name] for name in scheduled if name in self._lanes}

    def _take_on(self, request: RunnerRequest) -> None:
        if request.request_id in self._lanes:
            raise ValueError(f"request {request.request_id!r} is open already")
        latent = request.kwargs.get("output_type") == "latent"
        on_stop = partial(self._on_stop, request.request_id, latent)
        self._lanes[request.request_id] = open_lane(self._hub, request, on_stop)

    def _on_stop(self, request_id: str, latent: bool, lane: Lane) -> None:
        assert self._events is not None
        over = not (lane.at_denoiser or lane.cancelled or lane.error)
        if over and lane.step and request_id not in self._stepped:
            self._stepped.add(request_id)
            self._events.on_progress(request_id, *lane.progress())
        if lane.done:
            del self._lanes[request_id]
            self._stepped.discard(request_id)
            self._events.on_done(self._endings.of_lane(request_id, lane, latent=latent))

    def _fail_rest(self, error: Exception) -> None:
        """End every open request, scheduled or not, because the device is lost."""
        assert self._events is not None
        for request_id, lane in list(self._lanes.items()):
            del self._lanes[request_id]
            self._stepped.discard(request_id)
            self._hub.abandon([lane])
            self._events.on_done(self._endings.of_error(request_id, error))


def open_lane(hub: Hub, request: RunnerRequest, on_stop: Callable[[Lane], None]) -> Lane:
    """Make a lane for a request; its seed is the request's, or its generator's, or a fresh one."""
    seed = request.seed if request.seed is not None else _seed_of(request.kwargs)
    lane = hub.open(request.kwargs, seed, request.cancelled, on_stop, request.lora)
    lane.tap = request.tap
    return lane


def _seed_of(kwargs: dict[str, Any]) -> int:
    generator = kwargs.get("generator")
    if isinstance(generator, (list, tuple)) and generator:
        generator = generator[0]
    if isinstance(generator, torch.Generator):
        return generator.initial_seed()
    return secrets.randbits(63)
