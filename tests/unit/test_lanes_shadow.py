"""The host's knowledge of tensors on the device. The device is torch's "meta": it holds no values,
so whoever wants to read them from there gets an error."""

from __future__ import annotations

import copy
import pickle

import diffusers
import pytest
import torch

from sidestream.workers.lanes.shadow import BROUGHT_LIMIT, KNOWN_LIMIT, HostShadow

from .lane_helpers import Component, picture, rows, run_wave, runner_of

SCHEDULERS = [
    *("DDIMScheduler", "DDPMScheduler", "PNDMScheduler", "LCMScheduler", "SASolverScheduler"),
    *("EulerDiscreteScheduler", "EulerAncestralDiscreteScheduler", "HeunDiscreteScheduler"),
    *("DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "UniPCMultistepScheduler"),
    "FlowMatchEulerDiscreteScheduler",
]


@pytest.fixture
def shadow():
    with HostShadow("meta", pinned=False) as mode:
        yield mode


@pytest.fixture
def times(shadow):
    return torch.tensor([900, 500, 500, 100]).to("meta")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_need_not_ask_the_device(name, shadow):
    scheduler = getattr(diffusers, name)()
    scheduler.set_timesteps(6, device="meta")
    sample = torch.empty(1, 4, 8, 8, device="meta")
    for time in scheduler.timesteps:
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(sample, time)
        sample = scheduler.step(torch.empty_like(sample), time, sample, return_dict=False)[0]
    assert sample.is_meta


@pytest.mark.parametrize(
    "ask",
    [
        lambda times: [int(time) for time in times],
        lambda times: times.tolist(),
        lambda times: times.cpu().tolist(),
        lambda times: times.to("cpu").tolist(),
        lambda times: times.to("cpu", torch.float64).tolist(),
        lambda times: [times[index].item() for index in range(4)],
        lambda times: times[1:3].tolist(),
        lambda times: (times == 500).nonzero()[1].item(),
        lambda times: (times == times[1]).nonzero(as_tuple=True)[0].tolist(),
        lambda times: times[(times == 500).nonzero()[1][0] + 1].item(),
        lambda times: bool(times[3] - 200 >= 0),
        lambda times: (times * 0.1 + 1).tolist(),
        lambda times: torch.cat([times[:1], times[1:].repeat_interleave(2)]).tolist(),
        lambda times: torch.arange(1000.0)[times[0]].item(),
        lambda times: torch.arange(1000.0)[times].tolist(),
        lambda times: [one.item() for one in times.unbind()],
        lambda times: torch.tensor([1.5, 2], device=times.device).tolist(),
        lambda times: float(torch.as_tensor(7, device=times.device)),
    ],
)
def test_answers_are_those_of_the_device(ask, times):
    expected = ask(torch.tensor([900, 500, 500, 100]))
    assert ask(times) == expected


def test_results_stay_on_the_device(times):
    assert (times == 500).nonzero().is_meta
    assert (times + 1).is_meta
    assert all(time.is_meta for time in times)


@pytest.mark.parametrize(
    "write",
    [
        lambda times: times.add_(1),
        lambda times: times[1:].zero_(),
        lambda times: times.copy_(torch.zeros(4, dtype=torch.int64)),
        lambda times: times.data.zero_(),
        lambda times: setattr(times, "data", torch.zeros_like(times)),
        lambda times: times.data_ptr(),
        lambda times: times.untyped_storage(),
        lambda times: torch.batch_norm(
            *(torch.ones(2, 4, device="meta"), None, None, times, times),
            *(True, 0.1, 1e-5, False),
        ),
    ],
)
def test_what_was_written_on_is_known_no_longer(write, times):
    write(times)
    with pytest.raises(RuntimeError, match="meta"):
        times[0].item()


def test_a_copy_is_not_taken_for_the_original(times):
    for copied in (copy.deepcopy(times), copy.copy(times), times.clone()):
        with pytest.raises(RuntimeError, match="meta"):
            copied[0].item()
    assert times[0].item() == 900


def test_what_is_known_does_not_travel_with_a_tensor(shadow):
    with torch._C.DisableTorchFunction():
        plain = pickle.dumps(torch.zeros(2, device="meta"))
    assert len(pickle.dumps(torch.zeros(2).to("meta"))) == len(plain)


def test_an_index_of_bytes_is_a_mask(times):
    index = torch.tensor(1, dtype=torch.uint8, device="meta")
    with pytest.raises(RuntimeError, match="meta"):  # its shape depends on the mask's values
        times[index]


def test_large_results_are_not_computed_on_the_host(shadow, monkeypatch):
    one = torch.ones(2, 1).to("meta")
    seen = []
    monkeypatch.setattr(HostShadow, "_know", lambda self, tensor, values: seen.append(tensor))
    one.repeat_interleave(50_000_000, 0)
    assert seen == []


def test_arguments_by_name_are_taken(times):
    times.copy_(other=torch.zeros(4, dtype=torch.int64))
    assert [part.is_meta for part in torch.unbind(input=times)] == [True] * 4


def test_what_is_known_goes_with_the_tensor(shadow):
    for _ in range(10):
        torch.zeros(4).to("meta")
    assert len(shadow._shadows) <= 1


def test_what_the_source_becomes_does_not_matter(shadow):
    source = torch.arange(4)
    brought = source.to("meta")
    source.zero_()
    assert brought.tolist() == [0, 1, 2, 3]
    brought.cpu().zero_()
    assert brought.tolist() == [0, 1, 2, 3]


def test_brought_tensors_are_like_those_that_torch_brings(shadow):
    source = torch.randn(2, 3, 4, dtype=torch.float64).permute(2, 0, 1)
    brought = source.to("meta", torch.float32)
    with torch._C.DisableTorchFunction():
        expected = source.to("meta", torch.float32)
    assert (brought.shape, brought.stride(), brought.dtype) == (
        expected.shape,
        expected.stride(),
        expected.dtype,
    )


def test_large_tensors_are_brought_as_ever(shadow):
    small = torch.zeros(KNOWN_LIMIT // 4).to("meta")
    assert small[0].item() == 0
    for size in (KNOWN_LIMIT, BROUGHT_LIMIT):
        with pytest.raises(RuntimeError, match="meta"):
            torch.zeros(size).to("meta")[0].item()


def test_wrong_arguments_get_the_error_of_torch(shadow):
    with pytest.raises(RuntimeError):
        torch.zeros(1).to("nowhere")
    with pytest.raises(TypeError):
        torch.zeros(1).to("meta", nothing=1)
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(torch.zeros(2).to("meta"))


def test_a_lane_keeps_its_modes_to_itself_and_its_components():
    seen = []

    def component(sample):
        seen.append(torch.empty(1).device.type)
        return sample * 2

    class Placing:
        def __init__(self):
            self.unet = Component(component)
            self.components = {"unet": self.unet}

        def __call__(self, sample, where):
            with torch.device(where):
                result = self.unet(sample)
                assert torch.empty(1).device.type == where
            return [self.unet(result)]

    runner = runner_of(Placing())
    places = ("meta", "cpu", "meta")
    outputs = run_wave(runner, [{"sample": rows(n), "where": w} for n, w in enumerate(places)])
    for index, output in enumerate(outputs):
        assert torch.equal(picture(output), rows(index) * 4)
    assert seen == [*places, "cpu", "cpu", "cpu"]
    assert torch.empty(1).device.type == "cpu"


def test_a_default_device_is_its_lanes_too():
    class Settling:
        def __init__(self):
            self.unet = Component(lambda sample: sample * 2)
            self.components = {"unet": self.unet}

        def __call__(self, sample):
            torch.set_default_device("meta")
            result = self.unet(sample)
            assert torch.empty(1).is_meta
            return [result]

    runner = runner_of(Settling())
    runner._hub.shadow = HostShadow("meta", pinned=False)  # as where there is a device
    for _ in range(2):
        outputs = run_wave(runner, [{"sample": rows(index)} for index in range(2)])
        for index, output in enumerate(outputs):
            assert torch.equal(picture(output), rows(index) * 2)
    assert not torch.empty(1).is_meta
