"""The schedule of a wave: lockstep, phases within a step, bounded waiting."""

from torch import nn

from sidestream.workers.lanes.rounds import PATIENCE

from .lane_helpers import rows, run_wave, runner_of


class Scaling(nn.Module):
    """Remembers the batch size and kind of each call."""

    def __init__(self):
        super().__init__()
        self.log = []

    def forward(self, sample, kind="plain"):
        self.log.append((len(sample), kind))
        return sample * 0.5


class Pipeline:
    """Calls components as a request's program says: (component, kind) pairs."""

    def __init__(self):
        self.text_encoder = Scaling()
        self.unet = Scaling()
        self.vae = Scaling()

    def __call__(self, sample, program):
        for component, kind in program:
            sample = getattr(self, component)(sample, kind=kind)
        return sample


STEP = [("unet", "negative"), ("unet", "positive")]


def warmed(*kinds, width=8):
    """Return a pipeline and a runner that has merged calls of these kinds before."""
    pipeline = Pipeline()
    runner = runner_of(pipeline, merge=True)
    program = [("text_encoder", "plain"), *[("unet", kind) for kind in kinds], ("vae", "plain")]
    run_wave(runner, [request(n, program, width) for n in range(2)])
    for module in (pipeline.text_encoder, pipeline.unet, pipeline.vae):
        module.log.clear()
    return pipeline, runner


def request(seed, program, width=8):
    return {"sample": rows(seed)[:, :width].clone(), "program": program}


def test_a_wave_in_lockstep_merges_every_call():
    pipeline, runner = warmed("negative", "positive")
    program = [("text_encoder", "plain"), *STEP * 3, ("vae", "plain")]
    run_wave(runner, [request(n, program) for n in range(4)])
    assert pipeline.text_encoder.log == [(8, "plain")]
    assert pipeline.unet.log == [(8, "negative"), (8, "positive")] * 3
    assert pipeline.vae.log == [(8, "plain")]


def test_requests_out_of_phase_meet():
    """One request skips its first negative call, and would never meet the other."""
    pipeline, runner = warmed("negative", "positive")
    wave = [request(0, STEP * 6), request(1, STEP[1:] + STEP * 5)]
    run_wave(runner, wave)
    merged = [entry for entry in pipeline.unet.log if entry[0] == 4]
    assert len(merged) == 11
    assert pipeline.unet.log[0] == (2, "negative")


def test_the_larger_group_runs_and_the_other_waits_for_it():
    pipeline, runner = warmed("negative", "positive")
    run_wave(runner, [request(0, STEP * 4), request(1, STEP * 4), request(2, STEP[1:] + STEP * 3)])
    assert pipeline.unet.log[0] == (4, "negative")
    assert pipeline.unet.log[1:] == [(6, "positive"), (6, "negative")] * 3 + [(6, "positive")]


def test_prompts_of_different_lengths_do_not_part_requests():
    """Each encodes its own; nobody waits for a call that will not come, and all meet afterwards."""

    class Encoding(Pipeline):
        def __call__(self, prompt, sample, program):
            sample = sample + self.text_encoder(prompt)[:, :1]
            return super().__call__(sample, program)

    pipeline = Encoding()
    runner = runner_of(pipeline, merge=True)
    program = [*STEP * 3, ("vae", "plain")]

    def wave():
        pipeline.unet.log.clear()
        prompts = [rows(n)[:, : 3 + n] for n in range(3)]
        run_wave(runner, [{"prompt": p, **request(n, program)} for n, p in enumerate(prompts)])

    wave()
    wave()
    assert pipeline.text_encoder.log == [(2, "plain")] * 6
    assert pipeline.unet.log == [(6, "negative"), (6, "positive")] * 3


def test_nobody_waits_for_longer_than_patience():
    """The large group never comes to the call that the other one waits for."""
    pipeline, runner = warmed("negative", "positive")
    many = [("unet", "negative")] * 20
    lonely = [("text_encoder", "plain"), ("vae", "plain")]
    order = []
    hooks = [
        module.register_forward_hook(lambda m, a, k, name=name: order.append(name))
        for name, module in vars(pipeline).items()
    ]
    run_wave(runner, [request(0, many), request(1, many), request(2, lonely)])
    for hook in hooks:
        hook.remove()
    assert order[: PATIENCE + 2] == ["unet"] * (PATIENCE + 1) + ["text_encoder"]
    assert order.index("vae") == 2 * (PATIENCE + 1) + 1


def test_requests_that_can_never_meet_do_not_wait():
    pipeline, runner = warmed("negative", "positive")
    wave = [request(0, STEP * 4), request(1, STEP * 4), request(2, STEP * 4, width=4)]
    shapes = []
    pipeline.unet.register_forward_hook(lambda m, a, result: shapes.append(tuple(result.shape)))
    run_wave(runner, wave)
    assert shapes == [(4, 8), (2, 4)] * 8


class Scheduler:
    def set_timesteps(self, count):
        self.timesteps = list(range(count))

    def step(self, sample):
        return sample


class Stepping(Pipeline):
    def __init__(self):
        super().__init__()
        self.scheduler = Scheduler()

    def __call__(self, sample, num_inference_steps):
        self.scheduler.set_timesteps(num_inference_steps)
        for _ in self.scheduler.timesteps:
            sample = self.scheduler.step(self.unet(sample))
        return self.vae(sample)


def test_a_request_that_is_finishing_does_not_wait_for_the_others():
    pipeline, order = Stepping(), []
    runner = runner_of(pipeline, merge=True)

    def wave(*counts):
        return [{"sample": rows(n), "num_inference_steps": c} for n, c in enumerate(counts)]

    run_wave(runner, wave(1, 1))
    pipeline.vae.register_forward_hook(lambda *_: order.append("vae"))
    pipeline.unet.register_forward_hook(lambda *_: order.append("unet"))
    run_wave(runner, wave(2, 9, 9))
    assert order == ["unet"] * 3 + ["vae"] + ["unet"] * 6 + ["vae"]
