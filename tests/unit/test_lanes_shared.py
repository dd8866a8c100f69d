"""Modules are shared by all requests: what one of them does to a module, the others do not see."""

import copy

import pytest
import torch
from diffusers import PyramidAttentionBroadcastConfig
from diffusers.hooks import FirstBlockCacheConfig
from torch import nn

from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import call_of, picture, plain, run_wave, runner_of

ROWS = torch.arange(8.0).reshape(1, 8)


class Layer(nn.Module):
    """One linear layer, with an attribute that pipelines like to change."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(8, 8)
        self.scale = 1.0
        self.tiling = False
        self.seen = []

    def enable_tiling(self):
        self.tiling = True

    def forward(self, x):
        self.seen.append((self.linear.weight.dtype, self.scale, self.tiling))
        return self.linear(x.to(self.linear.weight.dtype)).float() * self.scale


class Pipeline:
    """Does with its module what a request says."""

    def __init__(self):
        self.vae = Layer()

    def __call__(self, body):
        return body(self)


def run(pipeline, *bodies, merge=False):
    wave = [RunnerRequest(str(n), {"body": body}, seed=n) for n, body in enumerate(bodies)]
    outputs = run_wave(runner_of(pipeline, merge=merge), wave)
    return [picture(output) for output in outputs]


def three_calls(pipe):
    x = ROWS
    for _ in range(3):
        x = pipe.vae(x)
    return x


def test_casting_to_what_a_module_already_is_changes_nothing():
    pipeline = Pipeline()
    weight = pipeline.vae.linear.weight

    def body(pipe):
        assert pipe.vae.to(torch.float32) is pipe.vae
        assert pipe.vae.to("cpu", dtype=torch.float32) is pipe.vae
        assert pipe.vae.float().cpu().eval().requires_grad_(True) is pipe.vae
        return three_calls(pipe)

    pipeline.vae.eval()
    interleaved = run(pipeline, body, three_calls)
    assert torch.equal(*interleaved)
    assert pipeline.vae.linear.weight is weight


@pytest.mark.parametrize("restore", [True, False], ids=["cast back", "left cast"])
def test_a_cast_during_a_request_does_not_reach_the_others(restore):
    pipeline = Pipeline()
    weight, data = pipeline.vae.linear.weight, pipeline.vae.linear.weight.data

    def casting(pipe):
        x = pipe.vae(ROWS)
        pipe.vae.to(dtype=torch.float64)
        x = pipe.vae(pipe.vae(x))
        if restore:
            pipe.vae.to(dtype=torch.float32)
        return pipe.vae(x)

    alone = copy.deepcopy(pipeline)
    with torch.no_grad():
        expected = [casting(alone)]
        alone.vae.float()
        expected.append(three_calls(alone))
    outputs = run(pipeline, casting, three_calls)
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(output, wanted)
    kinds = [kind for kind, _, _ in pipeline.vae.seen]
    wide = [n for n, kind in enumerate(kinds) if kind == torch.float64]
    assert len(wide) == (2 if restore else 3)
    assert wide == list(range(wide[0], wide[0] + len(wide))), "another request ran in between"
    assert pipeline.vae.linear.weight is weight
    assert pipeline.vae.linear.weight.data.data_ptr() == data.data_ptr()
    assert pipeline.vae.linear.weight.dtype == torch.float32


def test_lossy_casts_are_undone_exactly():
    pipeline = Pipeline()
    before = pipeline.vae.linear.weight.clone()

    def body(pipe):
        pipe.vae.half()
        pipe.vae.float()
        return pipe.vae(ROWS)

    run(pipeline, body, three_calls)
    assert torch.equal(pipeline.vae.linear.weight, before)


def test_a_request_that_fails_or_is_cancelled_while_a_module_is_cast_gives_it_back():
    pipeline = Pipeline()

    def failing(pipe):
        pipe.vae.to(torch.float64)
        pipe.vae(ROWS)
        raise ValueError("in between")

    def waiting(pipe):
        pipe.vae.to(torch.float64)
        return pipe.vae(pipe.vae(ROWS))

    runner = runner_of(pipeline)
    wave = [
        RunnerRequest("failing", {"body": failing}),
        RunnerRequest("waiting", {"body": waiting}, lambda: len(pipeline.vae.seen) == 2),
        RunnerRequest("plain", {"body": three_calls}),
    ]
    outputs = run_wave(runner, wave)
    assert outputs[0].error_type == "ValueError"
    assert outputs[1].aborted
    assert torch.equal(picture(outputs[2]), three_calls(Pipeline()).detach())
    assert pipeline.vae.linear.weight.dtype == torch.float32


def test_attributes_written_by_a_request_are_its_own():
    pipeline = Pipeline()

    def writing(pipe):
        x = pipe.vae(ROWS)
        pipe.vae.scale = 2.0
        pipe.vae.extra = "only here"
        assert pipe.vae.extra == "only here"
        return pipe.vae(pipe.vae(x))

    with torch.no_grad():
        expected = [writing(copy.deepcopy(pipeline)), three_calls(copy.deepcopy(pipeline))]
    for output, wanted in zip(run(pipeline, writing, three_calls), expected, strict=True):
        assert torch.equal(output, wanted)
    assert pipeline.vae.scale == 1.0
    assert not hasattr(pipeline.vae, "extra")


def test_methods_that_configure_a_module_count_for_their_request():
    pipeline = Pipeline()

    def tiling(pipe):
        pipe.vae.enable_tiling()
        return three_calls(pipe)

    run(pipeline, tiling, three_calls)
    assert sorted(flag for _, _, flag in pipeline.vae.seen) == [False] * 3 + [True] * 3
    assert pipeline.vae.tiling is False


def test_parts_that_a_request_walks_through_are_its_own_too():
    pipeline = Pipeline()
    pipeline.vae = nn.Sequential(Layer())

    def walking(pipe):
        x = pipe.vae(ROWS)
        for part in pipe.vae.modules():
            if type(part) is Layer:
                part.scale = 2.0
        x = pipe.vae(pipe.vae(x))
        next(iter(pipe.vae.children())).scale = 3.0
        return pipe.vae(x)

    with torch.no_grad():
        bodies = [walking, three_calls]
        expected = [body(copy.deepcopy(pipeline)) for body in bodies]
    for output, wanted in zip(run(pipeline, *bodies), expected, strict=True):
        assert torch.equal(output, wanted)
    assert pipeline.vae[0].scale == 1.0


def test_requests_that_configured_a_module_differently_are_not_merged():
    pipeline = Pipeline()

    def scaled(factor):
        def body(pipe):
            pipe.vae.scale = factor
            return pipe.vae(pipe.vae(ROWS + factor))

        return body

    with torch.no_grad():
        expected = [scaled(n)(copy.deepcopy(pipeline)) for n in (2.0, 3.0)]
    outputs = run(pipeline, scaled(2.0), scaled(3.0), merge=True)
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(output, wanted)


@pytest.mark.parametrize("merge", [False, True])
def test_forward_hooks_belong_to_the_request_that_registered_them(merge):
    pipeline = Pipeline()

    def hooked(factor):
        def body(pipe):
            seen = []

            def double(module, args, output):
                seen.append(output)
                return output * factor

            x = pipe.vae(ROWS)
            with pipe.vae.linear.register_forward_hook(double):
                x = pipe.vae(pipe.vae(x))
            assert len(seen) == 2
            return pipe.vae(x) + seen[-1]

        return body

    with torch.no_grad():
        bodies = [hooked(2.0), hooked(3.0), three_calls]
        expected = [body(copy.deepcopy(pipeline)) for body in bodies]
    for output, wanted in zip(run(pipeline, *bodies, merge=merge), expected, strict=True):
        torch.testing.assert_close(output, wanted, rtol=1e-5, atol=0)
    assert not pipeline.vae.linear._forward_hooks


def test_requests_merge_again_when_their_hooks_are_gone():
    """What they have in common counts, not what they once set."""
    pipeline = Pipeline()

    def looks(pipe):
        seen = []
        with pipe.vae.linear.register_forward_hook(lambda module, args, out: seen.append(out)):
            pipe.vae(ROWS)
        for _ in range(3):
            x = pipe.vae(seen[0])
        return x

    runner = runner_of(pipeline, merge=True)
    outputs = run_wave(runner, [{"body": looks}, {"body": looks}])
    expected = looks(copy.deepcopy(pipeline))
    for output in outputs:
        torch.testing.assert_close(picture(output), expected, rtol=1e-5, atol=0)
    assert runner.statistics()["merged_calls"] == 2


class Keeping:
    """An attention processor that keeps what it computed, for the pipeline to look at."""

    def __init__(self):
        self.map = None


class Attention(Layer):
    """A layer with a processor."""

    def __init__(self):
        super().__init__()
        self.processor = Keeping()

    def forward(self, x):
        self.processor.map = super().forward(x)
        return self.processor.map.sin()


def test_attention_processors_that_keep_what_they_compute_are_not_merged():
    pipeline = Pipeline()
    pipeline.vae = Attention()

    def looking(factor):
        def body(pipe):
            pipe.vae.processor = Keeping()
            x = pipe.vae(ROWS * factor)
            x = pipe.vae(x + pipe.vae.processor.map)
            return x + pipe.vae.processor.map

        return body

    with torch.no_grad():
        expected = [looking(n)(copy.deepcopy(pipeline)) for n in (1.0, 2.0)]
    for merge in (False, True):
        outputs = run(pipeline, looking(1.0), looking(2.0), merge=merge)
        for output, wanted in zip(outputs, expected, strict=True):
            assert torch.equal(output, wanted)


@pytest.mark.filterwarnings("ignore:`upcast_vae` is deprecated:FutureWarning")
def test_half_precision_sdxl_casts_its_autoencoder_and_requests_stay_equal():
    pipeline = load_pipeline("random:sdxl", {}, device="cpu", dtype=None)
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2):
        part.to(torch.float16)
    pipeline.vae.register_to_config(force_upcast=True)
    expected = [plain(pipeline, call_of(pipeline, n)) for n in range(3)]
    assert pipeline.vae.dtype == torch.float16
    outputs = run_wave(runner_of(pipeline), [call_of(pipeline, n) for n in range(3)])
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(picture(output), wanted)
    assert pipeline.vae.dtype == torch.float16


# ---------------------------------------------------------------------- feature caches


@pytest.fixture
def cached():
    pipeline = load_pipeline("random:flux", {}, device="cpu", dtype=None)
    pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.3))
    return pipeline


def uncached_and_cached_differ(pipeline):
    with_cache = plain(pipeline, call_of(pipeline, 1, num_inference_steps=8))
    pipeline.transformer.disable_cache()
    without = plain(pipeline, call_of(pipeline, 1, num_inference_steps=8))
    pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.3))
    return not torch.equal(with_cache, without)


def states_of(pipeline):
    """Return all cached states of a transformer's hooks."""
    found = {}
    for part in pipeline.transformer.modules():
        registry = getattr(part, "_diffusers_hook", None)
        for hook in registry.hooks.values() if registry is not None else ():
            for value in vars(hook).values():
                if hasattr(value, "_state_cache"):
                    found[id(value)] = dict(value._state_cache)
    return [name for states in found.values() for name in states]


def test_feature_caches_belong_to_a_request(cached):
    assert uncached_and_cached_differ(cached)
    steps = [4, 8, 12]
    expected = [
        plain(cached, call_of(cached, n, num_inference_steps=count))
        for n, count in enumerate(steps)
    ]
    runner = runner_of(cached, merge=True)
    for _ in range(2):
        wave = [call_of(cached, n, num_inference_steps=count) for n, count in enumerate(steps)]
        for output, wanted in zip(run_wave(runner, wave), expected, strict=True):
            assert torch.equal(picture(output), wanted)
    assert states_of(cached) == []
    assert all(plan["component"] != "transformer" for plan in runner.statistics()["refused"])


def test_other_components_may_be_called_inside_a_cache_context(cached):
    tail = Layer()

    def body(pipe):
        with pipe.transformer.cache_context("cond"):
            return pipe.vae(ROWS)

    pipeline = Pipeline()
    pipeline.vae, pipeline.transformer = tail, cached.transformer
    assert torch.equal(run(pipeline, body)[0], tail(ROWS).detach())


def test_a_cancelled_requests_cache_is_dropped(cached):
    wanted = plain(cached, call_of(cached, 1, num_inference_steps=8, height=48, width=32))
    runner, asked = runner_of(cached), []
    request = RunnerRequest("a", call_of(cached, 0), lambda: asked.append(None) or len(asked) > 8)
    assert run_wave(runner, [request])[0].aborted
    assert states_of(cached) == []
    call = call_of(cached, 1, num_inference_steps=8, height=48, width=32)
    assert torch.equal(picture(run_wave(runner, [call])[0]), wanted)


def test_caches_that_look_at_the_pipeline_see_the_requests_own_step():
    pipeline = load_pipeline("random:flux", {}, device="cpu", dtype=None)
    pipeline.transformer.enable_cache(
        PyramidAttentionBroadcastConfig(
            spatial_attention_block_skip_range=2,
            spatial_attention_timestep_skip_range=(-1, 1001),
            spatial_attention_block_identifiers=["transformer_blocks"],
            current_timestep_callback=lambda: pipeline._current_timestep,
        )
    )
    pipeline._current_timestep = None
    expected = [plain(pipeline, call_of(pipeline, n, num_inference_steps=4 + n)) for n in range(3)]
    wave = [call_of(pipeline, n, num_inference_steps=4 + n) for n in range(3)]
    for output, wanted in zip(run_wave(runner_of(pipeline), wave), expected, strict=True):
        assert torch.equal(picture(output), wanted)
