"""What the tests of waves share: a device with two streams, and a pipeline that waits for it."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from sidestream.workers.lanes import LaneCancelled
from sidestream.workers.lanes.waits import current_lane
from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.platform import CpuPlatform

from .lane_helpers import Events

ALONE = 8
"""Requests after which a pipeline is known."""


@dataclass
class Event:
    """Behind what a stream was given.

    Attributes:
        behind: The events that come before it.
        over: The device has done the work in front of it.
    """

    behind: list["Event"]
    over: bool

    def happened(self):
        if self.over and all(event.happened() for event in self.behind):
            self.behind = []
        return self.over and not self.behind

    def happen(self):
        for event in self.behind:
            event.happen()
        self.over, self.behind = True, []


class Streams(CpuPlatform):
    """A device with two streams that does nothing until somebody waits for it, and then no more
    than that."""

    def __init__(self, log):
        super().__init__()
        self.log = log
        self.current = 0
        self.behind = {0: [], 1: []}
        self.works = {0: False, 1: False}
        self.events = []

    def work(self):
        self.works[self.current] = True

    @contextmanager
    def forward_stream(self, number):
        before, self.current = self.current, number
        yield
        self.current = before

    def record_device_event(self):
        event = Event(self.behind[self.current], not self.works[self.current])
        self.behind[self.current], self.works[self.current] = [event], False
        self.events.append(event)
        return event

    def wait_event(self, event):
        self.behind[self.current].append(event)

    def has_happened(self, event):
        return event.happened()

    def synchronize_event(self, event):
        event.happen()

    def wait_for_any(self, events, enough):
        assert events, "nothing to wait for"
        if not enough():
            self.log.append("idle")
            min(events, key=self.events.index).happen()

    @property
    def steps_queued(self):
        return sum(not event.over for event in self.events)


class Waiting:
    """Calls its network twice for each request, then waits for the device, then maybe calls it
    again; writes everything down."""

    def __init__(self, log, platform):
        self.unet = nn.Linear(2, 2)
        self.unet.register_forward_hook(lambda *_: platform.work())
        self.tell = log.append

    def __call__(self, sample, name, options):
        return self.paint(sample, name, **options)

    def paint(self, sample, name, steps=2, more=0, early=False, fail=False, change=False):
        self.tell(f"{name} begins")
        for step in range(steps):
            sample = self.unet(sample)
            self.tell(f"{name} {step}")
            if early and step == 0:
                current_lane().give_way_to_device()
        try:
            current_lane().give_way_to_device()
        except LaneCancelled:
            self.tell(f"{name} cancelled")
            raise
        if fail:
            raise ValueError("after the wait")
        if change:
            self.unet.bias.requires_grad_(False)
            self.unet.extra = 1
        for step in range(more):
            sample = self.unet(sample)
            self.tell(f"{name} more {step}")
        self.tell(f"{name} ends")
        return sample


class Others:
    """Waves that come later."""

    def __init__(self, *waves):
        self.waves = list(waves)
        self.blocked = False

    def is_there(self):
        return bool(self.waves) and not self.blocked

    def take(self):
        return self.waves.pop(0)


def request(name, cancelled=lambda: False, **options):
    sample = torch.full((1, 2), float(ord(name)))
    return RunnerRequest(
        name, {"sample": sample, "name": name, "options": options}, cancelled, seed=0
    )


def known(pipeline, platform, requests=None):
    """Return a runner that has seen enough of a pipeline to let its waves overlap."""
    runner = DiffusionModelRunner(pipeline, platform)
    for one in requests or [request("z") for _ in range(ALONE)]:
        runner.execute_model_batch([one], Events())
    return runner
