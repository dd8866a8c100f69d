"""A lane's own view of a pipeline: proxies, private schedulers, nested pipelines."""

import copy
import gc
import inspect
from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import pytest
import torch
from diffusers import DDIMScheduler
from torch import nn

from sidestream.workers.model_runner import RunnerRequest

from .lane_helpers import Component, Events, picture, rows, run_wave, runner_of


class Encoder(nn.Module):
    """A component with parts, methods, attributes and a list of layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.head = nn.Linear(8, 8)
        self.config = {"size": 8}
        self.called = []

    @property
    def dtype(self):
        return self.head.weight.dtype

    def forward(self, x):
        self.called.append("forward")
        return x

    def encode(self, x):
        self.called.append("encode")
        return x * 2

    def get_input_embeddings(self):
        return self.head


class Pipeline:
    """Does what a request says with the pipeline that the request sees."""

    def __init__(self, **parts):
        vars(self).update(parts)

    def __call__(self, body):
        return body(self)


def run(pipeline, *bodies):
    outputs = run_wave(runner_of(pipeline), [{"body": body} for body in bodies])
    return [picture(output) for output in outputs]


def calls_seen(pipeline, body):
    """Return the component calls that the runner executes for a request."""
    runner, seen = runner_of(pipeline), []
    execute = runner._hub.executor
    runner._hub.executor = lambda call: seen.append((call.path, call.method)) or execute(call)
    picture(run_wave(runner, [{"body": body}])[0])
    return seen


def test_calls_methods_parts_and_entries_of_lists_are_intercepted():
    pipeline = Pipeline(encoder=Encoder())

    def body(pipe):
        x = pipe.encoder(rows(1))
        x = pipe.encoder.encode(x)
        x = pipe.encoder.head(x)
        x = pipe.encoder.layers[0](x)
        for layer in pipe.encoder.layers:
            x = layer(x)
        return pipe.encoder.get_input_embeddings()(x)

    assert calls_seen(pipeline, body) == [
        ("encoder", "__call__"),
        ("encoder", "encode"),
        ("encoder.head", "__call__"),
        ("encoder.layers.0", "__call__"),
        ("encoder.layers.0", "__call__"),
        ("encoder.layers.1", "__call__"),
        ("encoder.head", "__call__"),
    ]


def test_a_proxy_passes_for_its_module():
    encoder = Encoder()
    pipeline = Pipeline(encoder=encoder)

    def body(pipe):
        proxy = pipe.encoder
        assert isinstance(proxy, Encoder)
        assert isinstance(proxy, nn.Module)
        assert proxy.__class__ is Encoder
        assert proxy == encoder
        assert hash(proxy) == hash(encoder)
        assert proxy.dtype == torch.float32
        assert proxy.config is encoder.config
        assert len(proxy.layers) == 2
        assert proxy.layers[1] in proxy.layers
        assert next(iter(proxy.parameters())) is encoder.head.weight
        assert copy.deepcopy(proxy) is proxy
        assert copy.copy(proxy) is proxy
        assert bool(proxy)
        assert "encode" in dir(proxy)
        assert "Encoder" in repr(proxy)
        assert inspect.signature(proxy.encode) == inspect.signature(encoder.encode)
        assert not hasattr(proxy, "no_such_thing")
        assert proxy is pipe.encoder
        return rows(1)

    run(pipeline, body)


def test_proxies_given_to_components_arrive_as_the_real_modules():
    encoder, seen = Encoder(), []
    pipeline = Pipeline(encoder=encoder, unet=Component(lambda *a, **k: seen.append((a, k))))

    def body(pipe):
        pipe.unet(pipe.encoder, other=pipe.encoder)
        return rows(1)

    run(pipeline, body)
    assert seen == [((encoder,), {"other": encoder})]


def test_a_component_that_calls_back_into_the_pipeline_runs_through():
    pipeline = Pipeline(encoder=Encoder(), unet=Component(lambda x, back: back(x) + 1))

    def body(pipe):
        return pipe.unet(rows(1), back=pipe.encoder)

    assert torch.equal(run(pipeline, body)[0], rows(1) + 1)
    assert pipeline.encoder.called == ["forward"]


def test_components_in_containers_and_nested_pipelines_are_intercepted():
    shared = Encoder()
    pipeline = Pipeline(
        several=[Encoder(), Encoder()],
        named={"one": Encoder()},
        inner_pipe=Pipeline(prior=shared, scheduler=DDIMScheduler()),
        prior=shared,
    )

    def body(pipe):
        x = rows(1)
        for encoder in pipe.several:
            x = encoder(x)
        x = pipe.named["one"](x)
        x = pipe.inner_pipe.prior(x)
        return pipe.prior(x)

    assert [path for path, _ in calls_seen(pipeline, body)] == [
        "several.0",
        "several.1",
        "named.one",
        "inner_pipe.prior",
        "inner_pipe.prior",
    ]


def test_schedulers_are_private_also_nested_and_shared_ones():
    scheduler = DDIMScheduler()
    pipeline = Pipeline(
        scheduler=scheduler, inner=Pipeline(scheduler=scheduler, unet=Encoder()), unet=Encoder()
    )

    def body(steps):
        def run_steps(pipe):
            assert pipe.scheduler is pipe.inner.scheduler
            assert pipe.scheduler is not scheduler
            assert type(pipe.scheduler) is DDIMScheduler
            parameters = inspect.signature(pipe.scheduler.step).parameters
            assert list(parameters) == list(inspect.signature(scheduler.step).parameters)
            pipe.scheduler.set_timesteps(steps)
            for _ in range(steps):
                pipe.unet(rows(1))
                assert len(pipe.scheduler.timesteps) == steps
            return rows(1)

        return run_steps

    run(pipeline, body(3), body(5))
    assert scheduler.num_inference_steps is None


class Stage(NamedTuple):
    """A step of a cascade, with a scheduler of its own."""

    name: str
    scheduler: DDIMScheduler


class Helper:
    """Holds what it is given."""

    def __init__(self, **held):
        vars(self).update(held)


def counting(pipe):
    """Return a function that is the pipeline's own, and does not see it as an argument."""

    def advance(count=1):
        return (pipe.scheduler, pipe.unet) if count == 0 else advance(count - 1)

    return advance


@pytest.mark.parametrize(
    "keep",
    [
        lambda pipe: OrderedDict(first=Stage("first", pipe.scheduler)),
        lambda pipe: Helper(helper=Helper(pipe=Helper(scheduler=pipe.scheduler))),
        lambda pipe: partial(pipe.step, 1),
        lambda pipe: partial(pipe.step, 1, scheduler=pipe.scheduler),
        counting,
    ],
    ids=["ordered", "helpers", "partial method", "partial argument", "closure"],
)
def test_schedulers_are_private_however_the_pipeline_keeps_them(keep):
    class Keeping(Pipeline):
        def step(self, count, scheduler=None):
            return scheduler or self.scheduler, self.unet

    pipeline = Keeping(scheduler=DDIMScheduler(), unet=Encoder())
    pipeline.kept = keep(pipeline)

    def found_by(pipe):
        if isinstance(pipe.kept, dict):
            return pipe.kept["first"].scheduler
        return pipe.kept.helper.pipe.scheduler if isinstance(pipe.kept, Helper) else pipe.kept()[0]

    def body(steps):
        def run_steps(pipe):
            scheduler = found_by(pipe)
            assert scheduler is pipe.scheduler
            scheduler.set_timesteps(steps)
            for _ in range(steps):
                pipe.unet(rows(1))
                assert len(found_by(pipe).timesteps) == steps
            return rows(1)

        return run_steps

    run(pipeline, body(3), body(5))
    assert found_by(pipeline) is pipeline.scheduler
    assert pipeline.scheduler.num_inference_steps is None


def test_what_has_two_names_is_one_thing():
    """Also where it holds itself."""
    notes, order = {"count": 0}, []
    notes["self"] = notes
    inner = Pipeline(unet=Encoder(), notes=notes, order=order)
    pipeline = Pipeline(unet=Encoder(), inner=inner, notes=notes, order=order, again=order)

    def body(pipe):
        pipe.order.append(1)
        pipe.notes["count"] = 1
        assert pipe.inner.notes["self"]["count"] == 1
        assert pipe.inner.order == pipe.again == [1]
        return pipe.unet(rows(1))

    run(pipeline, body, body)
    assert notes["count"] == 0
    assert order == []


def test_a_function_that_knows_no_parts_is_everybodys():
    """What it counts is counted for all, as without lanes."""
    count = 0

    def note():
        nonlocal count
        count += 1

    pipeline = Pipeline(unet=Encoder(), note=note)

    def body(pipe):
        pipe.note()
        return pipe.unet(rows(1))

    run(pipeline, body, body)
    assert count == 2


def test_methods_that_the_pipeline_keeps_are_those_of_the_lanes_parts():
    pipeline = Pipeline(unet=Encoder(), scheduler=DDIMScheduler())
    pipeline.encode = pipeline.unet.encode
    pipeline.set_timesteps = pipeline.scheduler.set_timesteps

    def body(pipe):
        pipe.set_timesteps(3)
        assert pipe.scheduler.num_inference_steps == 3
        return pipe.encode(rows(1))

    assert calls_seen(pipeline, body) == [("unet", "encode")]
    assert pipeline.scheduler.num_inference_steps is None


def test_lists_that_a_function_collects_into_are_everybodys():
    seen = []
    pipeline = Pipeline(unet=Encoder(), note=lambda x: seen.append(float(x.sum())))

    def body(pipe):
        pipe.note(pipe.unet(rows(1)))
        return rows(1)

    run(pipeline, body, body)
    assert seen == [float(rows(1).sum())] * 2


def test_components_in_functions_that_the_pipeline_keeps_are_intercepted():
    pipeline = Pipeline(unet=Encoder(), scale=2)
    pipeline.guide = lambda x, *, twice=True: pipeline.unet(x) * (pipeline.scale if twice else 1)

    def body(pipe):
        pipe.scale = 3
        return pipe.guide(rows(1))

    assert calls_seen(pipeline, body) == [("unet", "__call__")]
    assert torch.equal(run(pipeline, body)[0], rows(1) * 3)
    assert torch.equal(pipeline.guide(rows(1)), rows(1) * 2)


def test_steps_are_those_of_the_private_scheduler_and_not_of_its_copies():
    pipeline = Pipeline(scheduler=DDIMScheduler(), unet=Encoder())

    def body(pipe):
        audio = copy.deepcopy(pipe.scheduler)
        for scheduler in (pipe.scheduler, audio):
            scheduler.set_timesteps(3)
        x = y = torch.zeros(1, 4, 2, 2)
        for t in pipe.scheduler.timesteps:
            noise = pipe.unet(x)
            pipe.unet(y)
            x = pipe.scheduler.step(noise, t, x).prev_sample
            y = audio.step(noise, t, y).prev_sample
        return x

    events = Events()
    runner_of(pipeline).execute_model_batch([RunnerRequest("a", {"body": body})], events)
    picture(events.outputs["a"])
    assert events.progress == [("a", 1, 3), ("a", 2, 3), ("a", 3, 3)]


def test_a_step_that_calls_its_base_classs_step_is_one_step():
    class Careful(DDIMScheduler):
        def step(self, *args, **kwargs):
            return super().step(*args, **kwargs)

    def body(pipe):
        pipe.scheduler.set_timesteps(3)
        x = torch.ones(1, 1, 2, 2)
        for t in pipe.scheduler.timesteps:
            x = pipe.scheduler.step(pipe.unet(x), t, x).prev_sample
        return x

    for kind in (DDIMScheduler, Careful):
        events = Events()
        pipeline = Pipeline(scheduler=kind(), unet=Encoder())
        request = RunnerRequest("request", {"body": body})
        runner_of(pipeline).execute_model_batch([request], events)
        assert events.outputs["request"].error is None
        assert [step for _, step, _ in events.progress] == [1, 2, 3]


def test_without_a_scheduler_steps_are_calls_of_the_denoiser():
    class Loop(Pipeline):
        def __call__(self, num_inference_steps=4):
            x = self.encoder(rows(1))
            for _ in range(num_inference_steps):
                x = self.transformer(x)
            return x

    pipeline = Loop(encoder=Encoder(), transformer=Encoder())
    events = Events()
    requests = [RunnerRequest("a", {"num_inference_steps": 2}), RunnerRequest("b", {})]
    runner_of(pipeline).execute_model_batch(requests, events)
    assert [p for p in events.progress if p[0] == "a"] == [("a", 1, 2), ("a", 2, 2)]
    assert [p for p in events.progress if p[0] == "b"] == [("b", n, None) for n in range(1, 5)]


def test_what_a_pipeline_writes_on_itself_stays_with_the_request():
    pipeline = Pipeline(unet=Encoder(), seen=[])
    pipeline.bound = pipeline.__call__

    def body(name):
        def write(pipe):
            pipe.name = name
            pipe.seen.append(name)
            for _ in range(3):
                pipe.unet(rows(1))
                assert pipe.name == name
                assert pipe.seen == [name]
            assert pipe.bound.__self__ is pipe
            return rows(1)

        return write

    run(pipeline, body("a"), body("b"))
    assert not hasattr(pipeline, "name")
    assert pipeline.seen == []


def test_a_module_may_itself_be_the_pipeline():
    class ModulePipeline(nn.Module):
        def __init__(self):
            super().__init__()
            self.unet = Encoder()

        def forward(self, sample):
            return self.unet(self.unet(sample))

    pipeline = ModulePipeline()
    (output,) = run_wave(runner_of(pipeline), [{"sample": rows(1)}])
    assert torch.equal(picture(output), rows(1))
    runner, seen = runner_of(pipeline), []
    runner._hub.executor = lambda call: seen.append(call.path) or call.module(*call.args)
    run_wave(runner, [{"sample": rows(1)}])
    assert seen == ["unet", "unet"]


def test_a_function_may_be_the_pipeline():
    def pipeline(scale):
        return rows(1) * scale

    (output,) = run_wave(runner_of(pipeline), [{"scale": 3}])
    assert torch.equal(picture(output), rows(1) * 3)
    assert runner_of(pipeline).capabilities()["required"] == ["scale"]


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_left_for_the_collector(count):
    pipeline = Pipeline(unet=Encoder(), scheduler=DDIMScheduler())

    def body(pipe):
        pipe.scheduler.set_timesteps(2)
        return pipe.unet(pipe.unet(rows(1)))

    runner, events = runner_of(pipeline), Events()
    wave = [RunnerRequest(str(n), {"body": body}) for n in range(count)]
    runner.execute_model_batch(wave, events)
    gc.collect()
    gc.disable()
    try:
        runner.execute_model_batch(wave, Events())
        assert gc.collect() == 0
    finally:
        gc.enable()
