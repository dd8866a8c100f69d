"""Adapters: each request has its own, and its bits are those of plain diffusers."""

import pytest
import torch
from diffusers.utils.peft_utils import scale_lora_layers, unscale_lora_layers
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from sidestream.workers.model_runner import RunnerRequest

from ..harness.adapters import choose, load, save_adapters
from .lane_helpers import Events, call_of, picture, plain, rows, run_wave, runner_of, step_through

FAMILIES = ["sdxl", "flux", "sd15"]
LORA = [{}, {"style": 1.0}, {"style": 0.3, "detail": 1.3}, {"detail": 0.7}]
STEPS = 3

pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config`:UserWarning")


class Adapted:
    """What the tests share: a pipeline with adapters, and what plain diffusers makes with it."""

    def __init__(self, family, directory):
        self.family = family
        self.lora = save_adapters(family, directory, ["style", "detail"])
        self.pipeline = load(family, lora=self.lora)
        self._plain = load(family)
        self.without = plain(self._plain, self.call(0))
        for name, path in self.lora.items():
            self._plain.load_lora_weights(path, adapter_name=name)
        self.expected = [self.plainly(index, lora) for index, lora in enumerate(LORA)]

    def call(self, index, **changes):
        return call_of(self.pipeline, index, num_inference_steps=STEPS, **changes)

    def plainly(self, index, lora, **changes):
        choose(self._plain, lora)
        return plain(self._plain, self.call(index, **changes))

    def requests(self, **changes):
        return [
            RunnerRequest(str(index), self.call(index, **changes), lora=lora)
            for index, lora in enumerate(LORA)
        ]

    def denoiser(self):
        return getattr(self.pipeline, "unet", None) or self.pipeline.transformer


@pytest.fixture(scope="module", params=FAMILIES)
def adapted(request, tmp_path_factory):
    return Adapted(request.param, tmp_path_factory.mktemp(request.param))


only_one_family = pytest.mark.parametrize("adapted", ["sd15"], indirect=True)


def assert_equal(outputs, expected, tolerance=0.0):
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.allclose(picture(output), wanted, atol=tolerance, rtol=0)


@only_one_family
def test_the_adapters_make_a_difference(adapted):
    one, *others = adapted.expected
    assert torch.equal(one, adapted.without)
    for index, lora in enumerate(LORA[1:], 1):
        assert not torch.equal(others[index - 1], adapted.plainly(index, {}))
        weaker = {name: scale / 2 for name, scale in lora.items()}
        assert not torch.equal(others[index - 1], adapted.plainly(index, weaker))


def test_each_request_of_a_wave_has_its_own(adapted):
    runner = runner_of(adapted.pipeline)
    for _ in range(2):
        assert_equal(run_wave(runner, adapted.requests()), adapted.expected)
    (alone,) = run_wave(runner, [RunnerRequest("alone", adapted.call(0))])
    assert torch.equal(picture(alone), adapted.without)


def test_requests_that_come_and_go_have_their_own(adapted):
    runner = runner_of(adapted.pipeline)
    events, _ = step_through(
        runner,
        adapted.requests(),
        arrivals=[0, 1, 1, 3],
        rest=lambda name, tick: tick == 2 and name in "02",
    )
    assert_equal([events.outputs[str(n)] for n in range(len(LORA))], adapted.expected)


def test_calls_of_the_same_set_are_merged_and_no_others(adapted):
    sets = [{"style": 1.0}, {"style": 0.5}, {"style": 1.0}, {}, {"style": 0.5}]
    expected = [adapted.plainly(index, lora) for index, lora in enumerate(sets)]
    runner = runner_of(adapted.pipeline, merge=True)
    widths = []
    hook = adapted.denoiser().register_forward_hook(lambda m, a, out: widths.append(len(out[0])))
    for _ in range(2):  # the first wave probes
        widths.clear()
        wave = [RunnerRequest(str(n), adapted.call(n), lora=s) for n, s in enumerate(sets)]
        assert_equal(run_wave(runner, wave), expected, tolerance=1e-5)
    hook.remove()
    rows = min(widths)
    assert sorted(widths) == [rows] * STEPS + [2 * rows] * 2 * STEPS


@only_one_family
def test_step_mode_merges_them_too(adapted):
    sets = [{"style": 1.0}, {"detail": 1.0}, {"style": 1.0}, {"detail": 1.0}]
    expected = [adapted.plainly(index, lora) for index, lora in enumerate(sets)]
    runner = runner_of(adapted.pipeline, merge=True)
    wave = [RunnerRequest(str(n), adapted.call(n), lora=s) for n, s in enumerate(sets)]
    events, _ = step_through(runner, wave, arrivals=[0, 0, 1, 2])
    assert_equal([events.outputs[str(n)] for n in range(4)], expected, tolerance=1e-5)
    assert runner.statistics()["merged_calls"] > 0


@only_one_family
@pytest.mark.parametrize("mode", ["request", "step"])
def test_after_a_cancelled_request_there_is_none(adapted, mode):
    runner = runner_of(adapted.pipeline)
    seen = []
    cancelled = RunnerRequest(
        "cancelled", adapted.call(1), cancelled=lambda: len(seen) > 6, lora=LORA[2]
    )
    counting = adapted.denoiser().register_forward_hook(lambda *_: seen.append(1))
    listening = [
        module.register_forward_hook(lambda *_: seen.append(1))
        for module in (adapted.pipeline.text_encoder, adapted.pipeline.vae)
    ]
    events = Events()
    if mode == "step":
        for tick in range(STEPS + 2):
            runner.execute_stepwise([cancelled] if not tick else [], ["cancelled"], events)
            seen += [1] * 3 if tick == 1 else []
    else:
        cancelled.cancelled = lambda: len(seen) >= 2
        runner.execute_model_batch([cancelled], events)
    for hook in [counting, *listening]:
        hook.remove()
    assert events.outputs["cancelled"].aborted
    (alone,) = run_wave(runner, [RunnerRequest("alone", adapted.call(0))])
    assert torch.equal(picture(alone), adapted.without)
    assert torch.equal(plain(adapted.pipeline, adapted.call(0)), adapted.without)


@only_one_family
def test_outside_of_requests_none_is_at_work(adapted):
    runner = runner_of(adapted.pipeline)
    events = Events()
    requests = adapted.requests()
    names = [request.request_id for request in requests]
    for tick in range(STEPS + 1):
        runner.execute_stepwise(requests if not tick else [], names, events)
        runner.release_thread()
        assert torch.equal(plain(adapted.pipeline, adapted.call(0)), adapted.without)
    assert_equal([events.outputs[name] for name in names], adapted.expected)


@only_one_family
@pytest.mark.parametrize("merge", [False, True])
def test_scales_that_pipelines_apply_for_a_while_are_the_requests_own(adapted, merge):
    """diffusers multiplies and divides the scales around calls; by 0 it even forgets them."""
    strong, weak = {"style": 0.7, "detail": 0.4}, {"style": 0.1, "detail": 0.2}
    asked = [(strong, 0.3), (weak, None), (strong, None), (weak, 0.0), (strong, 1.0), ({}, 0.5)]
    calls = [
        {} if scale is None else {"cross_attention_kwargs": {"scale": scale}} for _, scale in asked
    ]
    expected = [adapted.plainly(n % 5, asked[n][0], **call) for n, call in enumerate(calls)]
    runner = runner_of(adapted.pipeline, merge=merge)
    for _ in range(2):
        requests = [
            RunnerRequest(str(n), adapted.call(n % 5, **call), lora=asked[n][0])
            for n, call in enumerate(calls)
        ]
        events, _ = step_through(runner, requests)
        outputs = [events.outputs[str(n)] for n in range(len(asked))]
        assert_equal(outputs, expected, 1e-5 if merge else 0.0)


@only_one_family
def test_an_adapter_that_there_is_not_is_the_requests_error(adapted):
    runner = runner_of(adapted.pipeline)
    wrong = RunnerRequest("wrong", adapted.call(0), lora={"styl": 1.0})
    right = RunnerRequest("right", adapted.call(1), lora=LORA[1])
    failed, output = run_wave(runner, [wrong, right])
    assert failed.error_type == "ValueError"
    assert "there is no adapter styl" in failed.error
    assert torch.equal(picture(output), adapted.expected[1])
    assert runner.capabilities()["lora"] == ["style", "detail"]


class Scaling:
    """Scales the adapters of its denoiser in place around each call."""

    sidestream_lora = ("style", "detail")

    def __init__(self):
        config = LoraConfig(r=2, target_modules=["0"], init_lora_weights=False)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.unet = nn.Sequential(nn.Linear(8, 8))
            for name in self.sidestream_lora:
                inject_adapter_in_model(config, self.unet, name)
        self.unet.eval().requires_grad_(False)

    def __call__(self, sample, scale=1.0, num_inference_steps=4):
        for _ in range(num_inference_steps):
            scale_lora_layers(self.unet, scale)
            sample = self.unet(sample)
            unscale_lora_layers(self.unet, scale)
        return sample


@pytest.mark.parametrize("merge", [False, True])
def test_what_a_later_request_scales_is_not_scaled_for_those_under_way(merge):
    asked = [({"style": 0.7}, 1.0), ({"detail": 0.4}, 1.0), ({"style": 0.7}, 0.3), ({}, 1.0)]
    expected, plainly = [], Scaling()
    layer = plainly.unet[0]
    for n, (lora, scale) in enumerate(asked):
        layer.enable_adapters(bool(lora))
        layer.set_adapter(list(lora))
        for name, strength in lora.items():
            layer.set_scale(name, strength)
        expected.append(plainly(rows(n), scale))
    runner = runner_of(Scaling(), merge=merge)
    for _ in range(2):
        requests = [
            RunnerRequest(str(n), {"sample": rows(n), "scale": scale}, lora=lora)
            for n, (lora, scale) in enumerate(asked)
        ]
        events, _ = step_through(runner, requests, arrivals=[0, 0, 1, 1])
        outputs = [events.outputs[str(n)] for n in range(len(asked))]
        assert_equal(outputs, expected, 1e-5 if merge else 0.0)
