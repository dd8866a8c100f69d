"""Each request runs as if the thread were its own: modes, random numbers, context variables."""

import random
from contextvars import ContextVar

import numpy as np
import pytest
import torch

from sidestream.workers.model_runner import RunnerRequest

from .lane_helpers import Component, picture, run_wave, runner_of

IMAGE = torch.zeros(1, 3, 2, 2)


class Pipeline:
    """Runs a function between component calls; the function is what a request does."""

    def __init__(self, inside=lambda x: x):
        self.unet = Component(inside)

    def __call__(self, body):
        return body(self.unet)


def wave_of(*bodies):
    return [RunnerRequest(str(n), {"body": body}, seed=n) for n, body in enumerate(bodies)]


def draw():
    """Draw from every global generator, an odd number of normals from NumPy's."""
    return torch.tensor(
        [torch.rand(()).item(), np.random.randn(), np.random.rand(), random.random()],
        dtype=torch.float64,
    )


def drawing(unet):
    drawn = [draw()]
    for _ in range(3):
        unet(IMAGE)
        drawn.append(draw())
    return torch.stack(drawn).reshape(1, 1, 4, 4)


def seeded(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def test_random_numbers_are_those_of_a_plain_seeded_call():
    pipeline = Pipeline()
    expected = []
    for seed in range(3):
        seeded(seed)
        expected.append(drawing(pipeline.unet))
    outputs = run_wave(runner_of(pipeline), wave_of(drawing, drawing, drawing))
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(picture(output), wanted)


def test_a_component_that_draws_uses_its_requests_random_numbers():
    pipeline = Pipeline(lambda x: x + draw().sum())

    def body(unet):
        return unet(unet(unet(IMAGE)))

    expected = []
    for seed in range(3):
        seeded(seed)
        expected.append(body(pipeline.unet))
    for merge in (False, True):
        outputs = run_wave(runner_of(pipeline, merge=merge), wave_of(body, body, body))
        for output, wanted in zip(outputs, expected, strict=True):
            assert torch.equal(picture(output), wanted)


def test_the_same_seed_draws_the_same_whoever_ran_before():
    runner = runner_of(Pipeline())
    request = wave_of(drawing)[0]
    first = picture(run_wave(runner, [request])[0])
    run_wave(runner, wave_of(*[drawing] * 3)[1:])
    again = picture(run_wave(runner, wave_of(drawing))[0])
    assert torch.equal(first, again)


def test_the_seed_of_the_requests_generator_seeds_the_global_ones():
    def with_generator(seed):
        return {"body": drawing, "generator": torch.Generator().manual_seed(seed)}

    class Accepting(Pipeline):
        def __call__(self, body, generator):
            return super().__call__(body)

    runner = runner_of(Accepting())
    first, second, again = (
        picture(run_wave(runner, [with_generator(seed)])[0]) for seed in (1, 2, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_requests_without_any_seed_differ():
    runner = runner_of(Pipeline())
    first, second = (picture(run_wave(runner, [{"body": drawing}])[0]) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_hosts_random_numbers_go_on_as_if_nothing_had_run():
    seeded(99)
    expected = [torch.rand(3), np.random.rand(3), random.random()]
    seeded(99)
    run_wave(runner_of(Pipeline()), wave_of(drawing, drawing))
    assert torch.equal(torch.rand(3), expected[0])
    assert (np.random.rand(3) == expected[1]).all()
    assert random.random() == expected[2]


@pytest.mark.parametrize("merge", [False, True])
def test_half_of_a_pair_of_normals_is_kept_and_used_once(merge):
    """NumPy makes normals in pairs; the second one is not in the bit generator's state."""
    pipeline = Pipeline(lambda x: x + np.random.randn())

    def body(unet):
        return unet(unet(unet(IMAGE + np.random.randn())))

    expected = []
    for seed in range(3):
        seeded(seed)
        expected.append(body(pipeline.unet))
    seeded(99)
    wanted = [np.random.randn() for _ in range(4)]
    seeded(99)
    drawn = []
    for _ in range(4):
        drawn.append(np.random.randn())
        outputs = run_wave(runner_of(pipeline, merge=merge), wave_of(body, body, body))
        for output, result in zip(outputs, expected, strict=True):
            assert torch.equal(picture(output), result)
    assert drawn == wanted


def test_modes_stay_with_the_request_that_set_them():
    seen = {}

    def state():
        return (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
        )

    def plain(unet):
        states = []
        for _ in range(4):
            unet(IMAGE)
            states.append(state())
        seen["plain"] = set(states)
        return IMAGE

    def gradients(unet):
        with torch.enable_grad():
            unet(IMAGE)
            seen["gradients"] = state()
        return IMAGE

    def wide(unet):
        torch.set_default_dtype(torch.float64)
        unet(IMAGE)
        seen["wide"] = state()
        torch.set_default_dtype(torch.float32)
        return IMAGE

    def mixed(unet):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            unet(IMAGE)
            seen["mixed"] = state()
        unet(IMAGE)
        seen["after"] = state()
        return IMAGE

    bodies = (gradients, plain, wide, mixed)
    for output in run_wave(runner_of(Pipeline()), wave_of(*bodies)):
        assert output.error is None, output.error
    wide_dtype, usual = torch.float64, torch.float32
    assert seen == {
        "plain": {(False, usual, False, False)},
        "gradients": (True, usual, False, False),
        "wide": (False, wide_dtype, False, False),
        "mixed": (False, usual, True, False),
        "after": (False, usual, False, False),
    }


def test_inference_mode_is_left_and_entered_with_its_request():
    seen = []

    def inference(unet):
        with torch.inference_mode():
            for _ in range(3):
                result = unet(IMAGE)
                assert torch.is_inference_mode_enabled()
                assert torch.ones(1).is_inference()
            result = result + 1
        assert not torch.is_inference_mode_enabled()
        return result.clone()

    def plain(unet):
        seen.extend((unet(IMAGE) * 1).is_inference() for _ in range(4))
        return IMAGE

    bodies = (inference, plain, inference, plain)
    for output in run_wave(runner_of(Pipeline(lambda x: x * 2)), wave_of(*bodies)):
        assert output.error is None, output.error
    assert not any(seen)
    assert not torch.is_inference_mode_enabled()


def test_gradients_are_off_for_pipelines_that_do_not_care():
    def body(unet):
        return unet(torch.ones(1, 3, 2, 2, requires_grad=True)) * 2

    (output,) = run_wave(runner_of(Pipeline(lambda x: x * 2)), wave_of(body))
    assert not picture(output).requires_grad


def test_context_variables_belong_to_a_request():
    variable = ContextVar("variable", default="nobody's")
    seen = []

    def body(name):
        def run(unet):
            variable.set(name)
            for _ in range(3):
                unet(IMAGE)
                assert variable.get() == name
            return IMAGE

        return run

    pipeline = Pipeline(lambda x: seen.append(variable.get()) or x)
    for output in run_wave(runner_of(pipeline), wave_of(body("a"), body("b"))):
        assert output.error is None, output.error
    assert sorted(seen) == ["a"] * 3 + ["b"] * 3
    assert variable.get() == "nobody's"


@pytest.mark.parametrize("merge", [False, True])
def test_calls_under_different_modes_are_not_merged(merge):
    dtypes = []
    pipeline = Pipeline(lambda x: dtypes.append((x @ x).dtype) or x * 2)
    matrix = torch.randn(2, 2)

    def usual(unet):
        return unet(matrix).reshape(1, 1, 2, 2)

    def mixed(unet):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return unet(matrix + 1).reshape(1, 1, 2, 2)

    run_wave(runner_of(pipeline, merge=merge), wave_of(usual, mixed))
    assert dtypes == [torch.float32, torch.bfloat16]
