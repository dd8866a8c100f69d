"""Replay of recorded component calls, on a device that is emulated: what it does is real, only the
recording is a second run that writes into the same tensors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sidestream.workers.lanes.structure import parts_of
from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.platform import CpuPlatform

from ..harness.adapters import load, save_adapters
from .lane_helpers import (
    Component,
    Mixer,
    call_of,
    picture,
    plain,
    rows,
    run_wave,
    step_through,
)

MEBIBYTE = 1 << 20


class EmulatedGraphs:
    """Repeats recorded work by doing it again, into the tensors that were its results."""

    device = torch.device("cpu")

    def __init__(self):
        self.bytes_used = 0
        self.captures = 0
        self.drops = 0
        self.waits = None
        self.error = None
        self.spoil = False

    def rehearse(self, run):
        return run()

    def observe(self, run):
        return run(), self.waits

    def capture(self, run):
        if self.error is not None:
            raise self.error
        self.captures += 1
        result = run()
        tensors = [part for part in parts_of(result) if isinstance(part, torch.Tensor)]
        self.bytes_used += sum(tensor.nbytes for tensor in tensors)

        def replay():
            again = [part for part in parts_of(run()) if isinstance(part, torch.Tensor)]
            for tensor, value in zip(tensors, again, strict=True):
                tensor.copy_(value + 1 if self.spoil else value)

        return replay, result

    def drop(self):
        self.drops += 1
        self.bytes_used = 0


class EmulatedPlatform(CpuPlatform):
    """The processor, with a device's ability to record."""

    def __init__(self):
        super().__init__()
        self.made = EmulatedGraphs()

    def graphs(self):
        return self.made

    def graph_budget(self):
        return 1000 * MEBIBYTE


class Denoising:
    """A pipeline of one component that is called so many times."""

    def __init__(self, component):
        self.components = {"unet": component}
        self.unet = component

    def __call__(self, sample, calls=4, **extra):
        results = []
        for index in range(calls):
            given = {
                name: value(index) if callable(value) else value for name, value in extra.items()
            }
            results.append(self.unet(sample + index, **given))
        return SimpleNamespace(images=torch.stack([_tensor(one) for one in results]))


def _tensor(result):
    if isinstance(result, torch.Tensor):
        return result
    return result["sample"] if isinstance(result, dict) else result[0]


def replaying(pipeline, *, merge=False, budget=None):
    platform = EmulatedPlatform()
    runner = DiffusionModelRunner(pipeline, platform, merge=merge, graph_budget=budget)
    return runner, platform.made


def graphs_of(runner):
    return runner.statistics()["graphs"]


def reasons(runner):
    return [refused["reason"] for refused in graphs_of(runner)["refused"]]


def linear():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Linear(8, 8).eval().requires_grad_(False)


# -- what is recorded


def test_the_third_call_of_a_kind_is_replayed_with_its_own_values():
    runner, graphs = replaying(Denoising(linear()))
    expected = Denoising(linear())(rows(1)).images
    outputs = [picture(output) for output in run_wave(runner, [{"sample": rows(1)}])]
    assert torch.equal(outputs[0], expected)
    known = graphs_of(runner)
    assert (known["eager"], known["recorded"], known["replayed"]) == (2, 1, 2)
    assert (known["recordings"], known["bytes"], known["refused"]) == (1, 64, [])
    run_wave(runner, [{"sample": rows(2)}])
    assert graphs_of(runner)["replayed"] == 6
    assert graphs.captures == 1


@pytest.mark.parametrize(
    ("family", "merge"),
    [("sd15", False), ("sdxl", True), ("sd3", True), ("flux", False), ("wan", False)],
)
def test_tiny_pipelines_give_the_same_bits(family, merge):
    load = lambda: load_pipeline(f"random:{family}", {}, device="cpu", dtype=None)  # noqa: E731
    pipeline = load()
    runner, _ = replaying(pipeline, merge=merge)
    eager = DiffusionModelRunner(load(), CpuPlatform(), merge=merge)
    for _ in range(3):
        calls = [call_of(pipeline, index) for index in range(2)]
        ours = [picture(output) for output in run_wave(runner, calls)]
        calls = [call_of(pipeline, index) for index in range(2)]
        theirs = [picture(output) for output in run_wave(eager, calls)]
        assert all(map(torch.equal, ours, theirs))
    assert graphs_of(runner)["replayed"] > 0
    assert not merge or runner.statistics()["merged_calls"] > 0
    expected = plain(load(), call_of(pipeline, 0))
    (alone,) = run_wave(runner, [call_of(pipeline, 0)])
    assert torch.equal(picture(alone), expected)


def test_adapters_that_take_turns_are_replayed_each_as_it_is(tmp_path):
    lora = save_adapters("sd15", tmp_path, ["style", "detail"])
    sets = [{"style": 1.0}, {"detail": 0.5}, {}]
    runner, graphs = replaying(load("sd15", lora=lora))
    eager = DiffusionModelRunner(load("sd15", lora=lora), CpuPlatform(), merge=False)
    pipeline = load("sd15")
    for _ in range(2):
        made = []
        for one in (runner, eager):
            requests = [
                RunnerRequest(str(n), call_of(pipeline, n), lora=chosen)
                for n, chosen in enumerate(sets)
            ]
            events, _ = step_through(one, requests, arrivals=[0, 0, 1])
            made.append([picture(events.outputs[str(n)]) for n in range(len(sets))])
        assert all(map(torch.equal, *made))
        assert not torch.equal(*made[0][:2])
    first = graphs_of(runner)
    step_through(
        runner,
        [RunnerRequest(str(n), call_of(pipeline, n), lora=chosen) for n, chosen in enumerate(sets)],
    )
    again = graphs_of(runner)
    assert again["eager"] == first["eager"]
    assert again["replayed"] > first["replayed"]
    assert again["recorded"] == graphs.captures
    assert graphs.captures % len(sets) == 0


def test_step_mode_replays_too():
    pipeline = load_pipeline("random:sd15", {}, device="cpu", dtype=None)
    expected = [plain(pipeline, call_of(pipeline, index)) for index in range(3)]
    runner, _ = replaying(pipeline)
    requests = [RunnerRequest(str(index), call_of(pipeline, index)) for index in range(3)]
    events, _ = step_through(runner, requests, arrivals=[0, 1, 3])
    for index, picture_ in enumerate(expected):
        assert torch.equal(picture(events.outputs[str(index)]), picture_)
    assert graphs_of(runner)["replayed"] > 0


def test_a_result_belongs_to_its_caller():
    """The recording's own tensors are overwritten by its next replay."""
    kept = []
    component = linear()

    class Keeping(Denoising):
        def __call__(self, sample):
            kept.extend(self.unet(sample * index) for index in range(6))
            return SimpleNamespace(images=kept[-1])

    runner, _ = replaying(Keeping(component))
    run_wave(runner, [{"sample": rows(1)}])
    for index, result in enumerate(kept):
        assert torch.equal(result, component(rows(1) * index))


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(lambda out: {"sample": out}, id="dict"),
        pytest.param(lambda out: (out, None, 3), id="tuple"),
        pytest.param(lambda out: [out, [out * 2]], id="list"),
        pytest.param(lambda out: SimpleNamespace(mean=out, kind="x"), id="record"),
    ],
)
def test_results_of_any_shape(shape):
    class Shaped(nn.Linear):
        def forward(self, sample):
            return shape(super().forward(sample))

    class Reading(Denoising):
        def __call__(self, sample):
            made = [self.unet(sample * index) for index in range(5)]
            tensors = [next(p for p in parts_of(m) if isinstance(p, torch.Tensor)) for m in made]
            assert len({type(one) for one in made}) == 1
            return SimpleNamespace(images=torch.stack(tensors))

    module = Shaped(8, 8).eval().requires_grad_(False)
    runner, _ = replaying(Reading(module))
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    expected = torch.stack([nn.Linear.forward(module, rows(1) * index) for index in range(5)])
    assert torch.equal(picture(output), expected)
    assert graphs_of(runner)["replayed"] == 3


def test_expanded_arguments_and_numbers():
    mixer = Mixer().eval().requires_grad_(False)
    extra = {
        "timestep": lambda index: torch.tensor([float(index)]).expand(2),
        "condition": rows(7),
    }
    runner, _ = replaying(Denoising(mixer))
    (output,) = run_wave(runner, [{"sample": rows(1), **extra}])
    assert torch.equal(picture(output), Denoising(mixer)(rows(1), **extra).images)
    assert graphs_of(runner)["replayed"] == 2


# -- what is not


class Drawing(nn.Linear):
    def forward(self, sample):
        return super().forward(sample) + torch.randn(8)


class Changing(nn.Linear):
    def forward(self, sample, into):
        into.add_(1)
        return super().forward(sample)


class Emptying(nn.Linear):
    def forward(self, sample, parts):
        parts.clear()
        return super().forward(sample)


class Counting(nn.Linear):
    def forward(self, sample):
        self.count = getattr(self, "count", 0) + 1
        return super().forward(sample) * self.count


class DrawingFrom(nn.Linear):
    def forward(self, sample, generator):
        return super().forward(sample) + torch.randn(8, generator=generator)


class Strange(nn.Linear):
    def forward(self, sample):
        return (super().forward(sample), object())


@pytest.mark.parametrize(
    ("component", "extra", "reason"),
    [
        (Drawing, {}, "it draws random numbers"),
        (DrawingFrom, {"generator": lambda _: torch.Generator()}, "it draws random numbers"),
        (Changing, {"into": torch.zeros(2)}, "it changes its arguments"),
        (Emptying, {"parts": lambda index: [1, 2]}, "it changes its arguments"),
        (Counting, {}, "it keeps something of each call"),
        (Strange, {}, "the result holds a object"),
        (Mixer, {"timestep": rows(1), "condition": object()}, "an argument is a object"),
    ],
)
def test_calls_that_do_more_than_compute_run_as_ever(component, extra, reason):
    module = component(8, 8) if issubclass(component, nn.Linear) else component()
    module.eval().requires_grad_(False)
    if component is Mixer:
        module.forward = lambda sample, timestep, condition: sample
    twin = Denoising(type(module)(8, 8)) if component is Counting else Denoising(module)
    if component is Counting:
        twin.unet.load_state_dict(module.state_dict())
        twin.unet.eval()
    runner, graphs = replaying(Denoising(module))
    (output,) = run_wave(
        runner, [RunnerRequest("a", {"sample": rows(1), "calls": 6, **extra}, seed=4)]
    )
    expected = plain(lambda **kw: [twin(**kw).images], {"sample": rows(1), "calls": 6, **extra}, 4)
    assert torch.equal(picture(output), expected)
    assert reasons(runner) == [reason]
    assert graphs.captures == 0


def test_a_generator_that_nobody_draws_from_is_no_obstacle():
    class Passing(nn.Linear):
        def forward(self, sample, generator):
            return super().forward(sample)

    runner, _ = replaying(Denoising(Passing(8, 8).eval().requires_grad_(False)))
    run_wave(runner, [{"sample": rows(1), "generator": lambda _: torch.Generator()}])
    assert graphs_of(runner)["replayed"] == 2


def test_what_is_made_anew_for_each_call_and_left_empty_is_nothing_kept():
    class Caching(nn.Linear):
        def forward(self, sample):
            self.kept, self.table = [None, None], {"at": [0]}
            self.kept[0] = super().forward(sample)
            result = self.kept[0] * 2
            self.kept = [None, None]
            return result

    module = Caching(8, 8).eval().requires_grad_(False)
    module.kept, module.table = [None, None], {"at": [0]}
    runner, _ = replaying(Denoising(module))
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    assert torch.equal(picture(output), Denoising(module)(rows(1)).images)
    assert graphs_of(runner)["replayed"] == 2


def test_where_gradients_may_be_asked_for_calls_run_as_ever():
    class Descending(Denoising):
        def __call__(self, sample):
            sample = sample.clone().requires_grad_()
            with torch.enable_grad():
                results = [self.unet(sample * index).square().sum() for index in range(5)]
            gradients = [torch.autograd.grad(result, sample)[0] for result in results]
            return SimpleNamespace(images=torch.stack(gradients))

    runner, _ = replaying(Descending(linear()))
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    assert torch.equal(picture(output), Descending(linear())(rows(1)).images)
    assert reasons(runner) == ["gradients may be asked for"]


def test_hooks_that_only_collect_what_is_returned_are_no_obstacle():
    pipeline = load_pipeline("random:sdxl", {}, device="cpu", dtype=None)
    runner, _ = replaying(pipeline, merge=True)
    for _ in range(3):  # text encoders get their hooks at the first call; more kinds come later
        run_wave(runner, [call_of(pipeline, index) for index in range(3)])
        run_wave(runner, [call_of(pipeline, 0)])
    assert "it has hooks" not in reasons(runner)


def test_what_is_computed_once_does_not_keep_a_component_from_being_recorded():
    class Lazy(nn.Linear):
        table = None

        def forward(self, sample):
            if self.table is None:
                self.table = torch.ones(8)
            return super().forward(sample) + self.table

    runner, _ = replaying(Denoising(Lazy(8, 8).eval().requires_grad_(False)))
    run_wave(runner, [{"sample": rows(1)}])
    known = graphs_of(runner)
    assert (known["eager"], known["recorded"], known["replayed"]) == (3, 1, 1)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda module: module.register_forward_hook(lambda *_: None), "it has hooks"),
        (lambda module: module.train(), "it is in training mode"),
        (lambda module: setattr(module, "_hf_hook", object()), "it has hooks"),
        (lambda module: module.to("meta"), "not all of its weights are on the device"),
    ],
)
def test_modules_that_are_never_recorded(prepare, reason):
    module = Component(lambda sample: sample * 2).eval()
    module.forward = lambda sample: sample * 2
    module.weight = nn.Parameter(torch.ones(1), requires_grad=False)
    prepare(module)
    runner, _ = replaying(Denoising(module))
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    assert output.error is None
    assert reasons(runner) == [reason]


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ({"waits": "model.py:7"}, "it waits for the device: model.py:7"),
        ({"error": RuntimeError("not permitted")}, "RuntimeError: not permitted"),
        ({"spoil": True}, "a replay gives something else"),
    ],
)
def test_what_a_device_cannot_repeat_runs_as_ever(trouble, reason):
    runner, graphs = replaying(Denoising(linear()))
    vars(graphs).update(trouble)
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    assert torch.equal(picture(output), Denoising(linear())(rows(1)).images)
    assert reasons(runner) == [reason]
    assert graphs_of(runner)["eager"] == 4


def test_a_setting_that_changes_with_every_call_is_given_up():
    class Timed(nn.Linear):
        def forward(self, sample, time):
            return super().forward(sample) * time

    module = Timed(8, 8).eval().requires_grad_(False)
    runner, _ = replaying(Denoising(module))
    run_wave(runner, [{"sample": rows(1), "calls": 100, "time": lambda index: index / 7}])
    assert reasons(runner) == ["its settings change with every call"]
    assert graphs_of(runner)["eager"] == 100


# -- what is forgotten


def test_two_hundred_shapes_stay_within_the_budget():
    budget = 8 * 8 * 4 * 10
    runner, graphs = replaying(Denoising(linear()), budget=budget)
    for count in range(1, 201):
        (output,) = run_wave(runner, [{"sample": rows(count, 1 + count % 50)}])
        assert torch.equal(picture(output), Denoising(linear())(rows(count, 1 + count % 50)).images)
        assert graphs.bytes_used <= budget
    assert graphs.drops > 1
    assert graphs_of(runner)["replayed"] > 200


def test_a_recording_that_takes_more_than_the_budget_is_not_kept():
    runner, graphs = replaying(Denoising(linear()), budget=63)
    run_wave(runner, [{"sample": rows(1), "calls": 9}])
    assert graphs_of(runner)["recordings"] == 0
    assert graphs.captures == 1
    assert reasons(runner) == ["it takes 0 MiB of the 0 for recordings"]


def test_without_a_budget_nothing_is_recorded():
    runner, graphs = replaying(Denoising(linear()), budget=0)
    run_wave(runner, [{"sample": rows(1)}])
    assert runner.statistics()["graphs"] is None
    assert graphs.captures == 0


def test_when_memory_runs_out_all_recordings_go():
    class Greedy(nn.Linear):
        def forward(self, sample):
            if len(sample) > 2:
                raise torch.OutOfMemoryError("no memory")
            return super().forward(sample)

    runner, graphs = replaying(Denoising(Greedy(8, 8).eval().requires_grad_(False)))
    run_wave(runner, [{"sample": rows(1)}])
    assert graphs_of(runner)["recordings"] == 1
    (output,) = run_wave(runner, [{"sample": rows(1, 3)}])
    assert output.error_type == "OutOfMemoryError"
    assert graphs_of(runner)["recordings"] == 0
    assert graphs.drops == 1
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    assert output.error is None
    assert graphs_of(runner)["recordings"] == 1


def test_new_weights_are_used():
    module = linear()
    runner, graphs = replaying(Denoising(module))
    run_wave(runner, [{"sample": rows(1)}])
    with torch.no_grad():
        module.weight.mul_(2)  # in place: the recording reads them
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    assert torch.equal(picture(output), Denoising(module)(rows(1)).images)
    assert graphs.captures == 1
    runner.release_thread()
    module.weight = nn.Parameter(module.weight * 3, requires_grad=False)  # others: it does not
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    assert torch.equal(picture(output), Denoising(module)(rows(1)).images)
    assert graphs.captures == 2
    runner.release_thread()
    module.register_forward_hook(lambda *_: None)
    run_wave(runner, [{"sample": rows(1)}])
    assert reasons(runner) == ["it has hooks"]


def test_a_component_that_calls_another():
    inner = linear()

    class Outer(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)
            self.call = None

        def forward(self, sample, call):
            return super().forward(call(sample))

    class Nested(Denoising):
        def __init__(self, outer):
            super().__init__(outer)
            self.vae = inner
            self.components["vae"] = inner

        def __call__(self, sample):
            made = [self.unet(sample * index, self.vae.forward) for index in range(5)]
            return SimpleNamespace(images=torch.stack(made))

    outer = Outer().eval().requires_grad_(False)
    runner, _ = replaying(Nested(outer))
    (output,) = run_wave(runner, [{"sample": rows(1)}])
    expected = torch.stack([outer(rows(1) * i, inner.forward) for i in range(5)])
    assert torch.equal(picture(output), expected)
