"""The estimate of the clean sample: exact when the model's prediction is, for every scheduler."""

from __future__ import annotations

import diffusers
import pytest
import torch

from sidestream.workers.clean_sample import SchedulerStep, clean_sample

# diffusers' own: deprecated algorithms, and NumPy of long ago
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*algorithm_type:FutureWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning"),
]

FLOW = ("FlowMatchEuler", "FlowMatchHeun", "FlowMatchLCM", "LTXEulerAncestralRF")
BY_SIGMA = ("EulerDiscrete", "EulerAncestralDiscrete", "HeunDiscrete")
BY_TIME = ("DDIM", "DDPM", "PNDM", "LCM", "TCD", "DDIMParallel")
MULTISTEP = (
    ("DPMSolverMultistep", {}),
    ("DPMSolverMultistep", {"algorithm_type": "sde-dpmsolver++"}),
    ("DPMSolverMultistep", {"algorithm_type": "sde-dpmsolver", "final_sigmas_type": "sigma_min"}),
    ("DPMSolverSinglestep", {}),
    ("UniPCMultistep", {}),
    ("UniPCMultistep", {"predict_x0": False}),
    ("DEISMultistep", {}),
    ("SASolver", {}),
    ("SASolver", {"algorithm_type": "noise_prediction"}),
)
FLOW_MULTISTEP = ("DPMSolverMultistep", "UniPCMultistep", "DEISMultistep")


def make(name, **config):
    names = (f"{name}Scheduler", f"{name}DiscreteScheduler")
    return next(getattr(diffusers, n) for n in names if hasattr(diffusers, n))(**config)


class Walk:
    """Takes the steps of a scheduler, with a model that knows the clean sample exactly."""

    def __init__(self, scheduler, *, steps=6, return_dict=False):
        self.scheduler = scheduler
        self._return_dict = return_dict
        self._generator = torch.Generator().manual_seed(0)
        # two outputs: the estimate is of the first; in [-1, 1], since some schedulers clip
        self.clean = torch.rand(2, 4, 5, 3, generator=self._generator) * 2 - 1
        scheduler.set_timesteps(steps)
        noise = torch.randn(self.clean.shape, generator=self._generator)
        self.sample = noise * getattr(scheduler, "init_noise_sigma", 1.0)

    def __iter__(self):
        function = type(self.scheduler).step
        for timestep in self.scheduler.timesteps:
            # as pipelines do, which for some schedulers finds the place in the schedule
            if hasattr(self.scheduler, "scale_model_input"):
                self.scheduler.scale_model_input(self.sample, timestep)
            args = (self.predict(timestep), timestep, self.sample)
            kwargs = {"return_dict": self._return_dict}
            result = self.scheduler.step(*args, **kwargs)
            yield SchedulerStep(self.scheduler, function, args, kwargs, result)
            self.sample = result.prev_sample if self._return_dict else result[0]

    def predict(self, timestep):
        alpha, sigma = self.level(timestep)
        epsilon = (self.sample - alpha * self.clean) / sigma
        kind = self.scheduler.config.get("prediction_type") or "flow_prediction"
        if kind == "flow_prediction":
            return (self.sample - self.clean) / sigma
        return {
            "epsilon": epsilon,
            "sample": self.clean,
            "v_prediction": alpha * epsilon - sigma * self.clean,
        }[kind]

    def level(self, timestep):
        product = self.scheduler.alphas_cumprod[timestep]
        return product.sqrt(), (1 - product).sqrt()


class SigmaWalk(Walk):
    """Noise is added on top: sample = clean + sigma * noise."""

    def level(self, timestep):
        scheduler = self.scheduler
        return 1.0, scheduler.sigmas[scheduler.step_index or 0]

    def predict(self, timestep):
        if self.scheduler.config.prediction_type != "v_prediction":
            return super().predict(timestep)
        sigma = self.level(timestep)[1]
        root = (sigma**2 + 1).sqrt()
        return (self.sample / root**2 - self.clean) * root / sigma


class SolverWalk(Walk):
    """The noise level is a number, which the scheduler turns into shares."""

    def level(self, timestep):
        scheduler = self.scheduler
        sigma = scheduler.sigmas[scheduler.step_index or 0]
        return scheduler._sigma_to_alpha_sigma_t(sigma)


class FlowWalk(SigmaWalk):
    """From noise to sample in a straight line."""

    def predict(self, timestep):
        return (self.sample - self.clean) / self.level(timestep)[1]


def check(walk, tolerance=2e-4):
    estimates = [clean_sample(step) for step in walk]
    assert len(estimates) >= 5
    for estimate in estimates:
        assert estimate.shape == (1, 4, 5, 3)
        torch.testing.assert_close(estimate, walk.clean[:1], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in BY_TIME for kind in ("epsilon", "v_prediction")),
        *((name, "sample") for name in BY_TIME if name != "PNDM"),
    ],
)
def test_schedulers_that_go_by_training_time_steps(name, kind):
    config = {"skip_prk_steps": True} if name == "PNDM" else {}
    check(Walk(make(name, prediction_type=kind, **config)))


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", BY_SIGMA)
def test_schedulers_that_go_by_noise_level(name, kind):
    check(SigmaWalk(make(name, prediction_type=kind)), 2e-3)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize(("name", "config"), MULTISTEP)
def test_schedulers_that_look_back(name, config, kind):
    check(SolverWalk(make(name, prediction_type=kind, **config)), 5e-3)


@pytest.mark.parametrize("name", FLOW_MULTISTEP)
def test_schedulers_that_look_back_along_a_flow(name):
    config = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
    check(FlowWalk(make(name, **config)))


@pytest.mark.parametrize("name", FLOW)
def test_flow_matching(name):
    check(FlowWalk(make(name)))


def test_flow_matching_of_a_pipeline_that_notes_its_own_settings():
    scheduler = make("FlowMatchEuler")
    scheduler.register_to_config(sigma_data=1.0)
    check(FlowWalk(scheduler))


def test_flow_matching_that_counts_the_noise_the_other_way():
    scheduler = make("FlowMatchEuler", invert_sigmas=True)

    class Inverted(FlowWalk):
        def predict(self, timestep):
            return (self.clean - self.sample) / (1 - self.level(timestep)[1])

    check(Inverted(scheduler))


@pytest.mark.parametrize(
    "name", ["DDIM", "EulerDiscrete", "LCM", "FlowMatchEuler", "UniPCMultistep"]
)
def test_results_as_objects_say_the_same(name):
    config = (
        {"prediction_type": "flow_prediction", "use_flow_sigmas": True} if "Uni" in name else {}
    )
    kind = Walk if name in BY_TIME else SigmaWalk if name in BY_SIGMA else FlowWalk
    estimates = []
    for return_dict in (False, True):
        torch.manual_seed(0)  # LCM draws noise
        walk = kind(make(name, **config), return_dict=return_dict)
        estimates.append([clean_sample(step) for step in walk])
    assert torch.equal(torch.cat(estimates[0]), torch.cat(estimates[1]))


def test_a_scheduler_that_tells_nothing_shows_its_sample_in_memory_of_its_own():
    class Plain:
        def step(self, output, time, sample):
            return (sample - output,)

    sample = torch.ones(2, 3)
    result = Plain().step(sample / 2, 1, sample)
    step = SchedulerStep(Plain(), Plain.step, (sample / 2, 1, sample), {}, result)
    estimate = clean_sample(step)
    result[0].zero_()
    assert torch.equal(estimate, torch.full((1, 3), 0.5))


def test_a_scheduler_without_tensors_shows_nothing():
    class Words:
        def step(self, output):
            return (output,)

    assert clean_sample(SchedulerStep(Words(), Words.step, ("a",), {}, ("a",))) is None


def test_a_consistency_model_is_not_taken_for_a_flow():
    scheduler = diffusers.CMStochasticIterativeScheduler()
    scheduler.set_timesteps(4)
    sample = torch.ones(1, 3, 2, 2)
    timestep = scheduler.timesteps[0]
    scheduler.scale_model_input(sample, timestep)
    result = scheduler.step(sample, timestep, sample, return_dict=False)
    step = SchedulerStep(scheduler, type(scheduler).step, (sample, timestep, sample), {}, result)
    assert torch.equal(clean_sample(step), result[0])


def test_learned_variance_is_left_out():
    scheduler = make("TCD")
    scheduler.set_timesteps(4)
    timestep = scheduler.timesteps[0]
    sample, output = torch.ones(1, 2, 3, 3), torch.full((1, 2, 3, 3), 0.5)
    result = scheduler.step(output, timestep, sample, return_dict=False)
    wide = torch.cat([output, torch.full_like(output, 9.0)], dim=1)
    steps = [
        SchedulerStep(scheduler, type(scheduler).step, (given, timestep, sample), {}, result)
        for given in (output, wide)
    ]
    assert torch.equal(clean_sample(steps[0]), clean_sample(steps[1]))
