"""Cancelling a request between two component calls, at every one of them."""

import pytest
import torch
from torch import nn

from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import Component, Events, call_of, picture, plain, run_wave, runner_of

IMAGE = torch.zeros(1, 3, 2, 2)
FAMILIES = ["sd15", "sdxl", "sd3", "flux", "wan"]


class Calls:
    """Counts the real component calls of a pipeline, and whose turn it is after each."""

    def __init__(self, pipeline):
        self.count = 0
        self._handles = [
            module.register_forward_pre_hook(self._called)
            for module in pipeline.components.values()
            if isinstance(module, nn.Module) and not hasattr(module, "decode")
        ]
        vae = pipeline.vae
        self._vae, self._decode = vae, vae.decode
        vae.decode = self._decoded

    def _called(self, module, args):
        self.count += 1

    def _decoded(self, *args, **kwargs):
        self.count += 1
        return self._decode(*args, **kwargs)

    def close(self):
        del self._vae.decode
        for handle in self._handles:
            handle.remove()


@pytest.fixture(scope="module", params=FAMILIES)
def pipeline(request):
    return load_pipeline(f"random:{request.param}", {}, device="cpu", dtype=None)


@pytest.fixture
def calls(pipeline):
    counted = Calls(pipeline)
    yield counted
    counted.close()


def small(pipeline, index, **changes):
    return call_of(pipeline, index, num_inference_steps=2, **changes)


def test_a_request_is_cancelled_before_any_of_its_calls(pipeline, calls):
    runner = runner_of(pipeline)
    assert picture(run_wave(runner, [small(pipeline, 0)])[0]).numel()
    total = calls.count
    assert total >= 4
    for allowed in range(total):
        calls.count = 0
        request = RunnerRequest("a", small(pipeline, 0), lambda k=allowed: calls.count >= k)
        (output,) = run_wave(runner, [request])
        assert output.aborted, allowed
        assert output.tensors == {}
        assert output.error is None
        assert calls.count == allowed, "a component was called after the flag was seen"
    calls.count = 0
    request = RunnerRequest("a", small(pipeline, 0), lambda: calls.count >= total + 1)
    assert not run_wave(runner, [request])[0].aborted


def test_after_a_cancelled_request_the_next_one_is_right_at_another_size(pipeline, calls):
    wanted = plain(pipeline, small(pipeline, 1, height=48, width=32))
    runner = runner_of(pipeline)
    calls.count = 0
    run_wave(runner, [small(pipeline, 0)])
    for allowed in range(0, calls.count, 2):
        calls.count = 0
        request = RunnerRequest("a", small(pipeline, 0), lambda k=allowed: calls.count >= k)
        assert run_wave(runner, [request])[0].aborted
        (output,) = run_wave(runner, [small(pipeline, 1, height=48, width=32)])
        assert torch.equal(picture(output), wanted)


@pytest.mark.parametrize("merge", [False, True], ids=["interleaved", "merged"])
def test_cancelling_one_of_a_wave_leaves_the_others_alone(pipeline, calls, merge):
    wanted = [plain(pipeline, small(pipeline, index)) for index in range(3)]
    runner = runner_of(pipeline, merge=merge)
    if merge:
        run_wave(runner, [small(pipeline, index) for index in range(3)])
    calls.count = 0
    run_wave(runner, [small(pipeline, index) for index in range(3)])
    for allowed in range(0, calls.count, 3):
        calls.count = 0
        wave = [
            RunnerRequest("0", small(pipeline, 0)),
            RunnerRequest("1", small(pipeline, 1), lambda k=allowed: calls.count >= k),
            RunnerRequest("2", small(pipeline, 2)),
        ]
        first, second, third = run_wave(runner, wave)
        assert second.aborted or second.tensors
        for output, expected in ((first, wanted[0]), (third, wanted[2])):
            assert torch.allclose(picture(output), expected, atol=1e-5 if merge else 0, rtol=0)


# ---------------------------------------------------------------------- pipelines that resist


class Stubborn:
    """Catches everything that its module raises, and goes on."""

    def __init__(self):
        self.unet = Component(lambda x: x + 1)
        self.vae = Component(lambda x: x * 2)
        self.refused = 0

    def __call__(self, image):
        for _ in range(5):
            try:
                image = self.unet(image)
            except BaseException:
                self.refused += 1
        try:
            return self.vae(image)
        except BaseException:
            return image


def test_a_pipeline_that_swallows_its_cancellation_runs_no_component_again():
    pipeline = Stubborn()
    request = RunnerRequest(
        "a", {"image": torch.zeros(1, 3, 2, 2)}, lambda: pipeline.unet.calls > 1
    )
    (output,) = run_wave(runner_of(pipeline), [request])
    assert output.aborted
    assert output.tensors == {}
    assert (pipeline.unet.calls, pipeline.vae.calls) == (2, 0)


def test_a_pipeline_cleans_up_when_it_is_cancelled_and_calls_nothing_while_it_does():
    cleaned = []

    class Tidy(Stubborn):
        def __call__(self, image):
            try:
                return self.unet(self.unet(image))
            finally:
                cleaned.append(True)
                self.vae(image)

    pipeline = Tidy()
    request = RunnerRequest(
        "a", {"image": torch.zeros(1, 3, 2, 2)}, lambda: pipeline.unet.calls > 0
    )
    (output,) = run_wave(runner_of(pipeline), [request])
    assert output.aborted
    assert cleaned == [True]
    assert (pipeline.unet.calls, pipeline.vae.calls) == (1, 0)


def test_a_request_that_is_cancelled_before_it_starts_never_runs():
    pipeline = Stubborn()
    request = RunnerRequest("a", {"image": IMAGE}, lambda: True)
    (output,) = run_wave(runner_of(pipeline), [request])
    assert output.aborted
    assert pipeline.unet.calls == 0


def test_cancelling_while_the_others_calls_of_a_group_run():
    """The second lane's flag is raised by the first lane's call in the same round."""
    pipeline = Stubborn()
    wave = [
        RunnerRequest("0", {"image": IMAGE}),
        RunnerRequest("1", {"image": IMAGE}, lambda: pipeline.unet.calls >= 1),
    ]
    first, second = run_wave(runner_of(pipeline), wave)
    assert second.aborted
    assert picture(first).unique().tolist() == [10.0]
    assert pipeline.unet.calls == 5


def test_a_wave_is_unwound_when_the_listener_fails():
    pipeline = Stubborn()

    def fail(output):
        raise ConnectionError("nobody is there")

    wave = [RunnerRequest(str(n), {"image": IMAGE}) for n in range(3)]
    runner = runner_of(pipeline)
    with pytest.raises(ConnectionError):
        runner.execute_model_batch(wave, Events(fail))
    pipeline.unet.calls = 0
    assert picture(run_wave(runner, [{"image": IMAGE}])[0]).unique().tolist() == [10.0]
