"""Between two ticks: whose the thread is, and how changes of the pipeline reach open requests."""

import random

import diffusers
import numpy as np
import pytest
import torch
from diffusers import FirstBlockCacheConfig
from torch import nn

from sidestream.workers.lanes.modes import read_modes
from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import (
    Component,
    Events,
    call_of,
    picture,
    plain,
    rows,
    run_wave,
    runner_of,
    step_through,
)


def seeded(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def draw():
    """Draw from every global generator, an odd number of normals from NumPy's."""
    return torch.tensor([torch.rand(()).item(), np.random.randn(), random.random()])


class Drawing:
    """Draws in each step, before and inside its module."""

    def __init__(self):
        self.unet = Component(lambda sample: sample + draw().sum())

    def __call__(self, sample, num_inference_steps=4):
        for _ in range(num_inference_steps):
            sample = self.unet(sample * draw().sum())
        return sample


def drawing_requests(count=3):
    return [RunnerRequest(str(n), {"sample": rows(n)}, seed=n) for n in range(count)]


def drawn_plainly(count=3):
    results = []
    for n in range(count):
        seeded(n)
        results.append(Drawing()(rows(n)))
    return results


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("use", [None, "draw", "seed"], ids=["alone", "drawn", "seeded"])
def test_random_numbers_stay_a_requests_own_whatever_is_drawn_between_ticks(use, merge):
    runner, events = runner_of(Drawing(), merge=merge), Events()
    seeded(99)
    expected = [draw() for _ in range(12)]
    seeded(99)
    drawn, requests = [], drawing_requests()
    while len(events.outputs) < 3:
        new, requests = requests[:1], requests[1:]
        runner.execute_stepwise(new, [str(n) for n in range(3 - len(requests))], events)
        if use is not None:
            runner.release_thread()
            drawn.append(draw())
            if use == "seed":
                seeded(len(drawn))
    for n, wanted in enumerate(drawn_plainly()):
        assert torch.equal(picture(events.outputs[str(n)]), wanted)
    if use == "draw":
        assert torch.equal(torch.stack(drawn), torch.stack(expected[: len(drawn)]))


def test_the_hosts_random_numbers_go_on_when_all_requests_have_ended():
    seeded(99)
    expected = draw()
    seeded(99)
    step_through(runner_of(Drawing()), drawing_requests(), arrivals=[0, 1, 2])
    assert torch.equal(draw(), expected)


class Modal:
    """Makes its steps under modes of its own."""

    def __init__(self):
        self.seen = []
        self.unet = Component(self._look)

    def _look(self, sample):
        self.seen.append(read_modes(("cpu",)))
        return sample + 1

    def __call__(self, sample, mode, num_inference_steps=3):
        with mode:
            for _ in range(num_inference_steps):
                sample = self.unet(sample)
        return sample


class HalfByDefault:
    """Makes float64 the default dtype."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *details):
        torch.set_default_dtype(torch.float32)


MODES = {
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "gradients": torch.enable_grad,
    "default dtype": HalfByDefault,
}


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("name", MODES)
def test_the_thread_has_its_own_modes_between_ticks(name, release):
    torch.set_grad_enabled(False)
    outside = read_modes(("cpu",))
    pipeline = Modal()
    with MODES[name]():
        inside = read_modes(("cpu",))
    runner, events = runner_of(pipeline), Events()
    request = RunnerRequest("a", {"sample": rows(0), "mode": MODES[name]()})
    runner.execute_stepwise([request], ["a"], events)
    for _ in range(2):
        assert read_modes(("cpu",)) == outside
        if release:
            runner.release_thread()
            assert read_modes(("cpu",)) == outside
        runner.execute_stepwise([], ["a"], events)
    assert read_modes(("cpu",)) == outside
    assert pipeline.seen == [inside] * 3
    assert torch.equal(picture(events.outputs["a"]), rows(0) + 1 + 1 + 1)


# ---------------------------------------------------------------------- changes from outside


def test_a_feature_cache_enabled_between_ticks_counts_for_open_requests():
    pipeline = load_pipeline("random:flux", {}, device="cpu", dtype=None)
    config = FirstBlockCacheConfig(threshold=0.3)
    steps = 10

    def enabling(pipe, index, *rest):
        if index == 3:
            pipeline.transformer.enable_cache(config)
        return rest[-1]

    expected = []
    for n in range(2):
        callback = {"callback_on_step_end": enabling}
        expected.append(
            plain(pipeline, call_of(pipeline, n, num_inference_steps=steps, **callback))
        )
        pipeline.transformer.disable_cache()
    uncached = plain(pipeline, call_of(pipeline, 0, num_inference_steps=steps))
    assert not torch.equal(uncached, expected[0]), "the cache makes no difference here"
    runner, events = runner_of(pipeline, merge=False), Events()
    requests = [
        RunnerRequest(str(n), call_of(pipeline, n, num_inference_steps=steps)) for n in range(2)
    ]
    for tick in range(steps):
        if tick == 4:
            runner.release_thread()
            pipeline.transformer.enable_cache(config)
        runner.execute_stepwise(requests if tick == 0 else [], ["0", "1"], events)
    for n, wanted in enumerate(expected):
        assert torch.equal(picture(events.outputs[str(n)]), wanted)


class Scaled(nn.Module):
    """Multiplies by an attribute."""

    def __init__(self):
        super().__init__()
        self.scale = 1.0
        self.seen = []

    def forward(self, sample):
        self.seen.append((len(sample), self.scale))
        return sample * self.scale


class Scaling:
    """Makes steps; may set its module's scale itself, and does so for good."""

    def __init__(self):
        self.unet = Scaled()

    def __call__(self, sample, scale=None, num_inference_steps=4):
        for step in range(num_inference_steps):
            if step == 1 and scale is not None:
                self.unet.scale = scale
            sample = self.unet(sample)
        return sample


def test_attributes_set_between_ticks_reach_requests_that_have_not_set_them():
    pipeline = Scaling()
    runner, events = runner_of(pipeline), Events()
    own, other = (RunnerRequest(name, {"sample": rows(0)}) for name in ("own", "other"))
    own.kwargs["scale"] = 2.0
    names = ["own", "other"]
    runner.execute_stepwise([own, other], names, events)
    runner.execute_stepwise([], names, events)
    runner.release_thread()
    assert pipeline.unet.scale == 1.0
    pipeline.unet.scale = 3.0
    runner.execute_stepwise([], names, events)
    late = RunnerRequest("late", {"sample": rows(0), "num_inference_steps": 1})
    runner.execute_stepwise([late], [*names, "late"], events)
    assert torch.equal(picture(events.outputs["own"]), rows(0) * 8)
    assert torch.equal(picture(events.outputs["other"]), rows(0) * 3 * 3)
    assert torch.equal(picture(events.outputs["late"]), rows(0) * 3)
    assert pipeline.unet.scale == 3.0


def test_attention_processors_set_between_ticks_reach_open_requests():
    pipeline = load_pipeline("random:sd15", {}, device="cpu", dtype=None)

    class Doubling(diffusers.models.attention_processor.AttnProcessor):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) * 2

    def replacing(pipe, index, *rest):
        if index == 1:
            pipeline.unet.set_attn_processor(Doubling())
        return rest[-1]

    before = pipeline.unet.attn_processors
    wanted = plain(pipeline, call_of(pipeline, 0, callback_on_step_end=replacing))
    pipeline.unet.set_attn_processor(before)
    runner, events = runner_of(pipeline), Events()
    requests = [RunnerRequest(str(n), call_of(pipeline, n)) for n in range(2)]
    for tick in range(4):
        if tick == 2:
            runner.release_thread()
            pipeline.unet.set_attn_processor(Doubling())
        runner.execute_stepwise(requests if tick == 0 else [], ["0", "1"], events)
    assert torch.equal(picture(events.outputs["0"]), wanted)


# ---------------------------------------------------------------------- the key of a merge


class Adapted(nn.Module):
    """A layer with adapters, as PEFT keeps them."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(8, 8)
        self.scaling = {"style": 1.0}
        self.active_adapters = ["style"]
        self.merged_adapters = []
        self.disable_adapters = False

    def forward(self, sample):
        return self.base_layer(sample) * (1 + sum(self.scaling[a] for a in self.active_adapters))


class Adaptable(nn.Module):
    """A component that PEFT has put adapters into."""

    def __init__(self):
        super().__init__()
        self.peft_config = {"style": object()}
        self.layer = Adapted()
        self._cache_config = None

    def forward(self, sample):
        return self.layer(sample.to(self.layer.base_layer.weight.dtype)).to(sample.dtype)


class Adapting:
    def __init__(self):
        self.unet = Adaptable()

    def __call__(self, sample, num_inference_steps=2):
        for _ in range(num_inference_steps):
            sample = self.unet(sample)
        return sample


CHANGES = {
    "scale": lambda unet: unet.layer.scaling.update(style=0.5),
    "adapter set": lambda unet: unet.layer.active_adapters.clear(),
    "adapters off": lambda unet: setattr(unet.layer, "disable_adapters", True),
    "fused": lambda unet: unet.layer.merged_adapters.append("style"),
    "cache configuration": lambda unet: setattr(unet, "_cache_config", FirstBlockCacheConfig()),
    "dtype": lambda unet: unet.to(torch.float64),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", ["between waves", "between ticks"])
def test_what_was_proven_holds_for_one_configuration(change, mode):
    pipeline = Adapting()
    runner = runner_of(pipeline, merge=True)
    wave = [{"sample": rows(n)} for n in range(2)]
    run_wave(runner, wave)
    assert runner.statistics()["probes"] == 1
    events = Events()
    if mode == "between ticks":
        requests = [RunnerRequest(str(n), call) for n, call in enumerate(wave)]
        runner.execute_stepwise(requests, ["0", "1"], events)
        assert runner.statistics()["merged_calls"] == 2
        runner.release_thread()
    CHANGES[change](pipeline.unet)
    if mode == "between ticks":
        runner.execute_stepwise([], ["0", "1"], events)
        assert len(events.outputs) == 2
    else:
        run_wave(runner, wave)
    assert runner.statistics()["probes"] == 2


def test_the_same_configuration_again_is_known():
    pipeline = Adapting()
    runner = runner_of(pipeline, merge=True)
    wave = [{"sample": rows(n)} for n in range(2)]
    for scale in (1.0, 0.5, 1.0, 0.5):
        pipeline.unet.layer.scaling["style"] = scale
        run_wave(runner, wave)
    assert runner.statistics()["probes"] == 2


def test_requests_of_different_dtypes_are_not_merged():
    pipeline = Adapting()
    runner = runner_of(pipeline, merge=True)
    wave = [{"sample": rows(0)}, {"sample": rows(1).double()}]
    for output, call in zip(run_wave(runner, wave), wave, strict=True):
        assert picture(output).dtype == call["sample"].dtype
    assert runner.statistics()["probes"] == 0
    assert runner.statistics()["merged_calls"] == 0


class Restyled(Adapting):
    """Scales the adapters of its encoder in place around the encoder's calls, as diffusers does."""

    def __init__(self):
        super().__init__()
        self.text_encoder = Adaptable()

    def __call__(self, sample, scale=1.0, num_inference_steps=2):
        self._scale(scale)
        sample = self.text_encoder(self.text_encoder(sample))
        self._scale(1 / scale)
        return super().__call__(sample, num_inference_steps)

    def _scale(self, factor):
        for part in self.text_encoder.modules():
            if isinstance(part, Adapted):
                part.scaling["style"] *= factor


@pytest.mark.parametrize("merge", [False, True])
def test_adapters_scaled_in_place_are_scaled_for_their_request(merge):
    pipeline, scales = Restyled(), [0.5, 1.0, 0.5, 2.0, 1.0]
    calls = [{"sample": rows(n), "scale": scale} for n, scale in enumerate(scales)]
    with torch.no_grad():
        expected = [pipeline(**call) for call in calls]
    runner = runner_of(pipeline, merge=merge)
    widths = []
    pipeline.text_encoder.register_forward_hook(lambda m, a, result: widths.append(len(result)))
    for _ in range(2):
        widths.clear()
        requests = [RunnerRequest(str(n), call) for n, call in enumerate(calls)]
        events, _ = step_through(runner, requests)
        for n, wanted in enumerate(expected):
            result = picture(events.outputs[str(n)])
            assert torch.allclose(result, wanted, atol=1e-5 if merge else 0, rtol=0)
        assert pipeline.text_encoder.layer.scaling == {"style": 1.0}
    assert sorted(widths) == ([2, 2, 4, 4, 4, 4] if merge else [2] * 10)
