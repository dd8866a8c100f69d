"""Waves overlap only where what a request still uses is its own."""

from collections import deque
from functools import partial
from weakref import ref

import numpy as np
import pytest
import torch
from torch import nn

from sidestream.workers.lanes import ComponentCall
from sidestream.workers.lanes.waits import current_lane
from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.trust import HELD_BYTES, HELD_KINDS, LOOKS, Trust

from .lane_helpers import Events
from .wave_bench import ALONE, Others, Streams, Waiting, known, request


@pytest.fixture
def log():
    return []


@pytest.fixture
def platform(log):
    return Streams(log)


@pytest.fixture
def pipeline(log, platform):
    return Waiting(log, platform)


def overlaps(pipeline, platform, runner=None):
    """Whether the next wave is begun when the pipeline has been known for long."""
    runner = runner or known(pipeline, platform)
    runner.execute_model_batch([request("a")], Events(), others := Others([request("b")]))
    return not others.is_there()


# ---------------------------------------------------------------------- components


class Static(nn.Module):
    """Leaves its results in the same memory, as engines of other makers do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("out", torch.empty(1, 2))

    def forward(self, sample):
        return self.out.copy_(sample + 1)


class LateStatic(Static):
    """Does so from its third call on, as what records itself does."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, sample):
        self.count += 1
        return sample + 1 if self.count < 3 else super().forward(sample)


class Alternating(nn.Module):
    """Has two places for its results."""

    def __init__(self):
        super().__init__()
        self.places = deque([torch.empty(1, 2), torch.empty(1, 2)])

    def forward(self, sample):
        self.places.rotate()
        return self.places[0].copy_(sample + 1)


class Replacing(nn.Module):
    """Makes a table anew now and then, and lets go of the last one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.zeros(2))
        self.calls = 0

    def forward(self, sample):
        self.calls += 1
        if self.calls % 5 == 0:
            self.table = self.table.clone()
        return sample + self.table


@pytest.mark.parametrize(
    ("component", "may"),
    [
        (Static, False),
        (LateStatic, False),
        (Alternating, False),
        (Replacing, False),
        (nn.Identity, True),
    ],
)
def test_a_component_may_not_use_memory_again(component, may, pipeline, platform):
    """What only passes its argument on has no memory of its own."""
    hook = lambda *_: platform.work()  # noqa: E731
    pipeline.unet = component()
    pipeline.unet.register_forward_hook(hook)
    finish = pipeline.paint
    pipeline.paint = lambda *args, **options: finish(*args, **options) + 1
    assert overlaps(pipeline, platform) == may


def test_each_shape_is_looked_at(log, pipeline, platform):
    runner = known(pipeline, platform)
    wide = request("b")
    wide.kwargs["sample"] = torch.ones(2, 2)
    runner.execute_model_batch([request("a")], Events(), Others([wide]))
    assert log.index("b begins") < log.index("a ends") < log.index("b 0")


class Bench:
    """Calls a component of which Trust is to find out."""

    def __init__(self):
        self.module = nn.Identity()
        self.made = []
        self.trust = Trust(object(), self.run)
        self.trust.look()

    def run(self, call):
        result = torch.empty(self.nbytes, dtype=torch.uint8)
        self.made.append(ref(result))
        return result

    def call(self, width, nbytes=8):
        self.nbytes = nbytes
        call = ComponentCall(self.module, "unet", "__call__", (torch.empty(1, width),), {})
        self.trust(call)
        return self.trust.covers_calls([call])

    @property
    def held(self):
        return sum(made() is not None for made in self.made)


def test_few_results_are_held_whatever_comes():
    bench = Bench()
    for width in range(1, 100):
        bench.call(width)
    assert bench.held <= HELD_KINDS
    assert [bench.call(1) for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]
    assert bench.held <= HELD_KINDS


def test_what_makes_large_results_is_never_trusted_and_not_held():
    bench = Bench()
    assert not any(bench.call(1, HELD_BYTES + 1) for _ in range(2 * LOOKS))
    assert bench.held == 0


# ---------------------------------------------------------------------- pipelines


class Holder:
    def __init__(self, held):
        self.held = held
        self.itself = self

    def __call__(self):
        return self.held


@pytest.mark.parametrize(
    "keep",
    [
        lambda held: held,
        lambda held: held.to("meta"),
        lambda held: np.zeros(2),
        lambda held: {"a": [Holder(held)]},
        lambda held: deque([{1, 2}, (held,)]),
        lambda held: partial(print, held),
        lambda held: Holder(held).__call__,
        lambda held: lambda: held,
    ],
    ids=["host", "device", "array", "object", "deque", "partial", "method", "closure"],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_pipeline_may_not_hold_memory(keep, late, pipeline, platform):
    """Not that of the host either: the next wave's copies into it may come before it is read."""
    kept = pipeline.kept = {}
    if not late:
        kept["it"] = keep(torch.zeros(2))
    runner = DiffusionModelRunner(pipeline, platform)
    kept["it"] = keep(torch.zeros(2))
    for _ in range(ALONE):
        runner.execute_model_batch([request("z")], Events())
    assert not overlaps(pipeline, platform, runner)


def test_a_pipeline_that_holds_more_than_can_be_looked_at_is_not_trusted(pipeline, platform):
    pipeline.table = [Holder(None) for _ in range(10_000)]
    assert not overlaps(pipeline, platform)
    pipeline.table = list(range(100_000))
    assert overlaps(pipeline, platform)


def test_a_pipeline_may_not_return_what_it_knows(log, platform):
    memory = {}

    class Keeping(Waiting):
        def paint(self, sample, name, **options):
            made = super().paint(sample, name, **options)
            return memory.setdefault("buffer", torch.empty(1, 2)).copy_(made)

    assert not overlaps(Keeping(log, platform), platform)


def test_it_may_return_what_its_last_component_has_made(log, platform):
    class Direct(Waiting):
        def __init__(self, log, platform):
            super().__init__(log, platform)
            self.vae = nn.Linear(2, 2)

        def paint(self, sample, name, **options):
            sample = self.vae(super().paint(sample, name, **options))
            current_lane().give_way_to_device()
            return sample

    assert overlaps(Direct(log, platform), platform)


def test_the_first_request_of_a_size_is_alone(log, platform):
    class Sized(Waiting):
        def __call__(self, sample, name, width):
            return self.paint(sample, name)

    def sized(name, width):
        kwargs = {"sample": torch.ones(1, 2), "name": name, "width": width}
        return RunnerRequest(name, kwargs, seed=0)

    runner = known(Sized(log, platform), platform, [sized("z", 8) for _ in range(ALONE)])
    for first, second, width in (("a", "b", 8), ("c", "d", 16), ("e", "f", 16)):
        others = Others([sized(second, width)])
        runner.execute_model_batch([sized(first, width)], Events(), others)
        assert others.is_there() == (first == "c")


def test_a_pipeline_that_never_waits_is_not_looked_at(platform):
    looked = []

    class Plain:
        def __init__(self):
            self.unet = nn.Linear(2, 2)

        def __call__(self, sample, name, options):
            return self.unet(sample)

    runner = known(Plain(), platform)
    runner._waves._trust._look = lambda *args: looked.append(args)
    runner.execute_model_batch([request("a")], Events())
    assert not looked
