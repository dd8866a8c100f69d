"""Merging is decided by a probe: what it proves, what it refuses, and that it leaves no trace."""

import pytest
import torch
from diffusers import StableDiffusionPAGPipeline

from sidestream.workers.lanes.call import NotMergeable
from sidestream.workers.lanes.probe import Inconclusive, Probe
from sidestream.workers.lanes.readings import JOIN, SHARE, SPREAD
from sidestream.workers.model_runner import RunnerRequest
from sidestream.workers.models import load_pipeline

from .lane_helpers import (
    Component,
    Mixer,
    call_of,
    picture,
    plain,
    rows,
    run_wave,
    runner_of,
)


def find(module, *calls):
    """Probe a module with two calls, as the batcher does."""
    counts = [len(call["sample"]) for call in calls]
    results = [module(**call) for call in calls]
    return Probe(lambda arguments: module(**arguments), calls, counts, results).find()


def call(seed, count=2, **arguments):
    return {"sample": rows(seed, count), **arguments}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def test_rows_are_joined():
    reading = find(
        Mixer(),
        call(1, timestep=torch.tensor([5.0, 5.0]), condition=rows(3)),
        call(2, timestep=torch.tensor([5.0, 5.0]), condition=rows(4)),
    )
    assert reading.describe() == "joined"


def test_scalar_times_are_spread_though_they_are_equal_during_the_probe():
    reading = find(
        Mixer(),
        call(1, timestep=torch.tensor(5.0), condition=rows(3)),
        call(2, timestep=torch.tensor(5.0), condition=rows(4)),
    )
    assert reading.roles["timestep",] == SPREAD


def test_requests_of_different_batch_sizes_are_joined():
    reading = find(
        Mixer(),
        call(1, 1, timestep=torch.tensor(5.0), condition=rows(3, 1)),
        call(2, 4, timestep=torch.tensor(7.0), condition=rows(4, 4)),
    )
    assert reading.chunks == 1


def test_tables_are_shared():
    table = torch.linspace(0, 1, 8)
    module = Component(lambda sample, table: sample * table)
    reading = find(module, call(1, table=table), call(2, table=table.clone()))
    assert reading.roles["table",] == SHARE


def test_a_table_whose_length_is_the_batch_size_is_not_taken_for_rows():
    """A condition that is broadcast inside: right when concatenated only by accident."""
    table = rows(9, 2)
    module = Component(lambda sample, table: sample + table[:2].sum(0))
    reading = find(module, call(1, table=table), call(2, table=table.clone()))
    assert reading.roles["table",] == SHARE


def test_one_row_for_all_rows_is_repeated():
    module = Component(lambda sample, condition: sample * 2 + condition)
    reading = find(module, call(1, condition=rows(3, 1)), call(2, condition=rows(4, 1)))
    assert reading.roles["condition",] == SPREAD


def test_several_arguments_may_have_one_row_for_all_rows():
    """That the frames are as many as the rows says nothing."""
    module = Component(lambda sample, frames, mask: sample + torch.cat([frames, mask], 1).sum(1))
    frames = [rows(n, 2)[None] for n in (3, 4)]
    mask = torch.ones(1, 2, 8)
    reading = find(
        module, call(1, frames=frames[0], mask=mask), call(2, frames=frames[1], mask=mask)
    )
    assert reading.roles["frames",] == reading.roles["mask",] == SPREAD


def test_arguments_that_are_nearly_equal_are_told_apart():
    """Moving such numbers about makes no difference that shows."""
    module = Component(lambda sample, offset: sample + offset)
    offsets = [100 + 0.1 * rows(3), 100 + 0.1 * rows(4)]
    reading = find(module, call(1, offset=offsets[0]), call(2, offset=offsets[1]))
    assert reading.describe() == "joined"
    assert not reading.equal


def test_several_tables_may_be_as_long_as_the_batch():
    def turned(sample, timestep, tables):
        return sample * tables[0][0] + tables[1][-1] + timestep[:, None]

    tables = (rows(7, 2), rows(8, 2))
    times = torch.tensor([5.0, 5.0])
    reading = find(
        Component(turned),
        call(1, timestep=times, tables=tables),
        call(2, timestep=times.clone(), tables=tables),
    )
    assert {reading.roles["tables", n] for n in range(2)} == {SHARE}
    assert reading.roles["timestep",] == JOIN


def test_the_first_row_of_a_joined_argument_is_not_enough():
    """Joining is plausible, raises nothing, and is wrong for all requests but the first."""
    module = Component(lambda sample, mask: sample * mask[:1])
    with pytest.raises(NotMergeable, match="differ"):
        find(module, call(1, mask=rows(3)), call(2, mask=rows(4)))


def test_the_batch_axis_may_be_the_second():
    """Concatenating layers instead of samples would be a plausible result and a wrong one."""
    module = Component(lambda sample, layers: sample + layers[0] * 2 + layers[1])
    reading = find(
        module,
        call(1, layers=torch.stack([rows(3), rows(4)])),
        call(2, layers=torch.stack([rows(5), rows(6)])),
    )
    assert reading.roles["layers",].axis == 1


@pytest.mark.parametrize("weight", [1e-4, 5e-4, 1.0])
def test_rows_that_are_mixed_up_a_little_are_not_taken_for_rounding(weight):
    """Merging a call with itself changes its result too: rows meet those of the other half."""
    module = Component(lambda sample: sample + weight * sample.roll(len(sample) // 2, 0).sin())
    assert find(module, call(1), call(2)).chunks == 2


def test_a_component_that_enlarges_rounding_is_merged():
    """A batch is computed in another order: what that changes is measured, not assumed."""

    def chaotic(sample):
        columns = range(8) if len(sample) == 64 else (3, 0, 6, 1, 7, 4, 2, 5)
        rounded = sum(1e3 * sample[:, n] for n in columns) - 1e3 * sample.double().sum(-1)
        return rounded.float()[:, None] + sample

    assert find(Component(chaotic), call(1, 64), call(2, 64)).chunks == 1


def test_chunks_of_a_batch_stay_together():
    def perturbed(sample):
        negative, positive, changed = sample.chunk(3)
        return torch.cat([negative, positive + negative.roll(1, -1), changed - positive])

    reading = find(Component(perturbed), call(1, 3), call(2, 3))
    assert reading.chunks == 3


def test_rows_that_influence_each_other_are_never_merged():
    module = Component(lambda sample: sample - sample.mean(0))
    with pytest.raises(NotMergeable, match="differ"):
        find(module, call(1), call(2))


def test_lists_with_one_entry_for_each_sample_are_concatenated():
    module = Component(lambda sample: [row - row.mean() for row in sample])
    first = {"sample": list(rows(1).reshape(2, 4, 2))}
    second = {"sample": list(rows(2).reshape(2, 4, 2))}
    reading = find(module, first, second)
    assert reading.roles["sample",].kind == "entries"
    assert reading.outputs[()].kind == "entries"


def test_all_lists_may_hold_one_entry_for_each_sample():
    def function(sample, texts):
        return [row - row.mean() + text.sum() for row, text in zip(sample, texts, strict=True)]

    def request(seed, *lengths):
        numbers = torch.Generator().manual_seed(seed)
        texts = [torch.randn(length, 3, generator=numbers) for length in lengths]
        return {"sample": list(rows(seed).reshape(2, 4, 2)), "texts": texts}

    reading = find(Component(function), request(1, 3, 5), request(2, 6, 2))
    assert {reading.roles[name,].kind for name in ("sample", "texts")} == {"entries"}


def test_lists_with_one_entry_for_each_layer_are_merged_entry_by_entry():
    module = Component(lambda sample, residuals: [sample + part for part in residuals])
    reading = find(
        module, call(1, residuals=[rows(3), rows(4)]), call(2, residuals=[rows(5), rows(6)])
    )
    assert reading.roles["residuals",].kind == "each"
    assert reading.roles["residuals", 1].kind == "join"


def test_equal_calls_are_told_apart_by_varying_them():
    same = {"sample": rows(1), "timestep": torch.tensor(3.0), "condition": rows(2)}
    assert find(Mixer(), same, dict(same)).chunks == 1
    first_only = Component(lambda sample, layers: sample + layers[0])
    layers = torch.stack([rows(3), rows(4)])
    reading = find(first_only, call(1, layers=layers), call(1, layers=layers))
    assert reading.roles["layers",] != SHARE._replace(kind="join", axis=0)


def test_a_component_that_ignores_its_input_proves_nothing():
    module = Component(lambda sample: torch.ones(len(sample), 4))
    with pytest.raises(Inconclusive):
        find(module, call(1), call(2))


def test_unused_generators_do_not_matter_and_used_ones_forbid_merging():
    def noisy(sample, generator):
        return sample + torch.randn(sample.shape, generator=generator)

    def generator(seed):
        return torch.Generator().manual_seed(seed)

    unused = Component(lambda sample, generator: sample * 2)
    assert find(
        unused, call(1, generator=generator(1)), call(2, generator=generator(2))
    ).roles.keys() == {("sample",)}
    with pytest.raises(NotMergeable, match="draws from a generator"):
        find(
            Component(noisy),
            call(1, generator=generator(1)),
            call(2, generator=generator(2)),
        )


# ---------------------------------------------------------------------- through the runner


class OneModule:
    """A pipeline that calls its module once in each step."""

    def __init__(self, unet):
        self.unet = unet

    def __call__(self, sample, num_inference_steps=3, **arguments):
        for _ in range(num_inference_steps):
            sample = self.unet(sample, **arguments)
        return sample


def results(pipeline, calls):
    return [pipeline(**call) for call in calls]


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        (lambda sample: sample - sample.mean(0), [{}, {}], "differ"),
        (lambda sample, mask: sample * mask[:1], [{"mask": rows(3)}, {"mask": rows(4)}], "differ"),
    ],
    ids=["rows influence each other", "only the first row counts"],
)
def test_where_naive_concatenation_is_wrong_requests_run_unmerged_and_right(
    function, arguments, reason
):
    pipeline = OneModule(Component(function))
    calls = [call(seed, **extra) for seed, extra in enumerate(arguments)]
    expected = results(pipeline, calls)
    naive = function(torch.cat([c["sample"] for c in calls]), **arguments[0])
    assert not torch.allclose(naive.split(2)[1], function(calls[1]["sample"], **arguments[1]))
    runner = runner_of(pipeline, merge=True)
    for _ in range(2):
        outputs = run_wave(runner, [dict(c) for c in calls])
        for output, wanted in zip(outputs, expected, strict=True):
            assert torch.equal(output.tensors["output"], wanted)
    statistics = runner.statistics()
    assert statistics["merged_calls"] == 0
    assert statistics["probes"] == 1
    (refused,) = statistics["refused"]
    assert refused["component"] == "unet"
    assert reason in refused["reason"]


def test_a_component_that_draws_global_random_numbers_is_never_merged():
    pipeline = OneModule(Component(lambda sample: sample + torch.randn(sample.shape) * 1e-9))
    runner = runner_of(pipeline, merge=True)
    alone = [run_wave(runner_of(pipeline), [call(n)])[0].tensors["output"] for n in range(2)]
    assert alone[0].shape == (2, 8)
    run_wave(runner, [call(1), call(2)])
    assert runner.statistics()["merged_calls"] == 0
    assert "random" in runner.statistics()["refused"][0]["reason"]


def test_a_probe_draws_nothing_from_the_requests_random_numbers():
    """The noise comes from outside of the component, between two merged calls."""

    class Noisy(OneModule):
        def __call__(self, sample):
            for _ in range(3):
                sample = self.unet(sample) + torch.randn(sample.shape)
            return sample

    pipeline = Noisy(Component(lambda sample: sample * 0.5))
    expected = []
    for seed in range(3):
        torch.manual_seed(seed)
        expected.append(pipeline(rows(seed)))
    runner = runner_of(pipeline, merge=True)
    wave = [RunnerRequest(str(n), {"sample": rows(n)}, seed=n) for n in range(3)]
    for output, wanted in zip(run_wave(runner, wave), expected, strict=True):
        assert torch.allclose(output.tensors["output"], wanted, atol=1e-6)
    assert runner.statistics()["merged_calls"] == 2


def test_what_cannot_be_told_apart_has_to_stay_equal():
    """A style is looked up in a table with a row for each, of which requests use one."""
    styles = rows(7, 2)
    pipeline = OneModule(Component(lambda sample, style: sample + styles[style]))
    runner = runner_of(pipeline, merge=True)
    for pair, merged in (((0, 0), 2), ((0, 0), 5), ((0, 1), 7), ((1, 0), 10)):
        calls = [call(n, style=torch.tensor([s, s])) for n, s in enumerate(pair)]
        expected = results(pipeline, calls)
        for output, wanted in zip(run_wave(runner, calls), expected, strict=True):
            assert torch.allclose(output.tensors["output"], wanted, atol=1e-6)
        assert runner.statistics()["merged_calls"] == merged


def test_a_component_that_empties_the_lists_it_is_given_is_merged():
    def emptying(sample, residuals):
        while residuals:
            sample = sample * 0.5 + residuals.pop(0)
        return sample

    class Guided(OneModule):
        def __call__(self, sample, residuals):
            for _ in range(3):
                sample = self.unet(sample, residuals=list(residuals))
            return sample

    pipeline = Guided(Component(emptying))
    calls = [call(n, residuals=[rows(n + 5), rows(n + 9)]) for n in range(3)]
    expected = results(pipeline, calls)
    runner = runner_of(pipeline, merge=True)
    for output, wanted in zip(run_wave(runner, calls), expected, strict=True):
        assert torch.allclose(output.tensors["output"], wanted, atol=1e-6)
    assert runner.statistics()["merged_calls"] == 2


def into_a_tensor(sample, held):
    return held["state"].add_(sample).clone()


def into_a_dict(sample, held):
    held["state"] = held["state"] + sample
    return held["state"]


@pytest.mark.parametrize("write", [into_a_tensor, into_a_dict])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_component_that_writes_into_its_arguments_is_not_merged(write, mode):
    """A merged call would write into copies."""

    class Remembering(OneModule):
        @mode()
        def __call__(self, sample):
            held = {"state": torch.zeros_like(sample)}
            for _ in range(4):
                sample = self.unet(sample, held=held) * 0.5 + held["state"]
            return sample

    pipeline = Remembering(Component(write))
    calls = [call(n) for n in range(3)]
    expected = results(pipeline, calls)
    runner = runner_of(pipeline, merge=True)
    for _ in range(2):
        for output, wanted in zip(run_wave(runner, calls), expected, strict=True):
            assert torch.equal(output.tensors["output"], wanted)
    assert runner.statistics()["merged_calls"] == 0
    (refused,) = runner.statistics()["refused"]
    assert refused["reason"] == "it changes its arguments"


def test_equal_shared_tables_merge_and_different_ones_do_not():
    pipeline = OneModule(Component(lambda sample, table: sample * table))
    runner = runner_of(pipeline, merge=True)
    tables = [torch.linspace(0, 1, 8), torch.linspace(1, 2, 8)]
    run_wave(runner, [call(n, table=tables[0]) for n in range(2)])
    assert runner.statistics()["merged_calls"] == 2
    calls = [call(n, table=table) for n, table in enumerate(tables)]
    expected = results(pipeline, calls)
    for output, wanted in zip(run_wave(runner, calls), expected, strict=True):
        assert torch.equal(output.tensors["output"], wanted)
    assert runner.statistics()["merged_calls"] == 2


def test_perturbed_attention_guidance_merges_in_chunks():
    parts = load_pipeline("random:sd15", {}, device="cpu", dtype=None)
    pipeline = StableDiffusionPAGPipeline(
        **parts.components, requires_safety_checker=False, pag_applied_layers=["mid", "up"]
    )
    pipeline.sidestream_defaults = {**parts.sidestream_defaults, "pag_scale": 3.0}
    pipeline.set_progress_bar_config(disable=True)
    expected = [plain(pipeline, call_of(pipeline, n)) for n in range(3)]
    interleaved = run_wave(runner_of(pipeline), [call_of(pipeline, n) for n in range(3)])
    for output, wanted in zip(interleaved, expected, strict=True):
        assert torch.equal(picture(output), wanted)
    runner = runner_of(pipeline, merge=True)
    for output, wanted in zip(
        run_wave(runner, [call_of(pipeline, n) for n in range(3)]), expected, strict=True
    ):
        assert torch.allclose(picture(output), wanted, atol=1e-5, rtol=0)
    assert runner.statistics()["merged_calls"] > 0
    assert runner.statistics()["refused"] == []
