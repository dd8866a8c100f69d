"""The synthetic pipeline: contents that say whose they are, time taken, failures on demand."""

import time

import numpy as np
import pytest
import torch
from PIL import Image

from sidestream.workers.models import load_pipeline


def load(dtype=None, **options):
    return load_pipeline("synthetic", options, device="cpu", dtype=dtype)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def values(images):
    """Return the fill of each output; all of its bytes must agree."""
    rows = images.flatten(1)
    assert (rows == rows[:, :1]).all()
    return [int(row) for row in rows[:, 0]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bf16", torch.bfloat16),
        ("float16", torch.float16),
        ("fp32", torch.float32),
        ("uint8", torch.uint8),
    ],
)
def test_every_value_is_exact_in_every_dtype(name, expected):
    pipeline = load(shape=[1, 2, 4], dtype=name)
    for seed in range(251):
        images = pipeline("a", generator=seeded(seed)).images
        assert images.dtype == expected
        assert values(images) == [seed]


def test_the_shape_is_that_of_one_output_and_counts_multiply():
    pipeline = load(shape=(1, 3, 8, 16))
    images = pipeline(["a", "b"], num_images_per_prompt=3, generator=seeded(249)).images
    assert images.shape == (6, 3, 8, 16)
    assert values(images) == [249, 250, 0, 1, 2, 3]


def test_each_generator_gives_its_output_its_value():
    images = load(shape=(1, 4))("a", num_images_per_prompt=2, generator=[seeded(9), seeded(4)])
    assert values(images.images) == [9, 4]


def test_a_request_may_choose_the_size_of_a_picture_but_not_of_a_vector():
    assert load()("a", height=5, width=7).images.shape == (1, 3, 5, 7)
    assert load(shape=(1, 16))("a", height=5, width=7).images.shape == (1, 16)
    assert load(shape=(1, 0))("a").images.shape == (1, 0)


@pytest.mark.parametrize(
    "inputs",
    [
        {"value": 17},
        {"image": Image.new("RGB", (4, 4), (17, 17, 17))},
        {"image": np.full((4, 4, 3), 17, np.uint8)},
        {"image": torch.full((1, 3, 4, 4), 16.8)},
        {"latents": torch.full((1, 5), 17, dtype=torch.bfloat16)},
    ],
)
def test_inputs_show_in_the_output(inputs):
    images = load()("a", num_images_per_prompt=2, generator=seeded(3), **inputs).images
    assert values(images) == [17, 17]


def test_the_denoiser_is_called_once_for_each_step_and_the_output_is_what_it_returned():
    pipeline = load(steps=3)
    calls = []

    def denoiser(sample, timestep):
        calls.append(timestep)
        return sample + 1

    pipeline.denoiser = denoiser
    assert values(pipeline("a", generator=seeded(5)).images) == [8]
    assert pipeline.num_timesteps == 3
    assert values(pipeline("a", num_inference_steps=2, generator=seeded(5)).images) == [7]
    assert calls == [0, 1, 2, 0, 1]


def test_modules_are_components_and_keep_rows_apart():
    denoiser = load().components["denoiser"]
    assert isinstance(denoiser, torch.nn.Module)
    rows = torch.rand(4, 2)
    assert torch.equal(denoiser(rows, 0), rows)


@pytest.mark.parametrize("work", ["sleep", "matmul"])
def test_a_forward_takes_at_least_its_time(work):
    pipeline = load(forward_ms=40, steps=4, work=work)
    began = time.perf_counter()
    pipeline("a")
    full = time.perf_counter() - began
    pipeline("a", num_inference_steps=1)
    quarter = time.perf_counter() - began - full
    assert full >= 0.040
    assert quarter >= 0.010


def test_sleeping_leaves_the_cpu_alone_and_matmuls_use_it():
    def cpu_seconds(work):
        pipeline = load(forward_ms=60, work=work)
        began = time.thread_time()
        pipeline("a")
        return time.thread_time() - began

    assert cpu_seconds("sleep") < cpu_seconds("matmul")


@pytest.mark.parametrize(
    ("kind", "error"), [("error", RuntimeError), ("oom", torch.OutOfMemoryError)]
)
def test_only_prompts_that_say_so_fail_and_only_at_their_step(kind, error):
    pipeline = load(steps=3, fail_at_step=1, fail_with=kind)
    steps = []
    burn = pipeline.denoiser
    pipeline.denoiser = lambda sample, step: steps.append(step) or burn(sample, step)
    with pytest.raises(error, match="synthetic failure"):
        pipeline("please fail")
    assert steps == [0]
    assert values(pipeline("please do not", value=2).images) == [2]


def test_results_come_as_object_or_tuple():
    (images,) = load()("a", return_dict=False)
    assert torch.equal(images, load()("a").images)
    with pytest.raises(ValueError, match="'pt' or 'latent'"):
        load()("a", output_type="pil")


def test_outputs_do_not_share_memory_with_each_other():
    pipeline = load(shape=(1, 2), dtype="fp32")
    first = pipeline("a", value=1).images
    first += 5
    assert values(pipeline("a", value=1).images) == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"forward_mss": 1}, "did you mean 'forward_ms'"),
        ({"forward_ms": -1}, "at least 0"),
        ({"forward_ms": float("nan")}, "at least 0"),
        ({"steps": 0}, "at least 1"),
        ({"shape": [2, 3]}, "begin with 1"),
        ({"shape": []}, "begin with 1"),
        ({"shape": [1, -3]}, "no negatives"),
        ({"dtype": "bf17"}, "did you mean 'bf16'"),
        ({"work": "nap"}, "work"),
        ({"host_sync": "never"}, "host_sync"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_the_engines_dtype_counts_where_the_options_name_none():
    assert load(dtype="bf16")("a").images.dtype == torch.bfloat16
    pipeline = load_pipeline("synthetic", {"dtype": "uint8"}, device="cpu", dtype="bf16")
    assert pipeline("a").images.dtype == torch.uint8
