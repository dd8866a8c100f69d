"""Pipelines with random weights: they run, they are deterministic, the full sizes are real."""

import diffusers
import pytest
import torch
from PIL import Image

from sidestream.workers.models import families, families_full, families_tiny, load_pipeline
from sidestream.workers.models.tokenizers import END_ID, START_ID, word_tokenizer
from sidestream.workers.models.wan_chunks import WanChunksPipeline

CLASSES = {
    "sd15": diffusers.StableDiffusionPipeline,
    "sd15-img2img": diffusers.StableDiffusionImg2ImgPipeline,
    "sd15-inpaint": diffusers.StableDiffusionInpaintPipeline,
    "sdxl": diffusers.StableDiffusionXLPipeline,
    "sd3": diffusers.StableDiffusion3Pipeline,
    "flux": diffusers.FluxPipeline,
    "wan": diffusers.WanPipeline,
    "wan-chunks": WanChunksPipeline,
}
FRAMES = {"wan": 9, "wan-chunks": 13}
# Millions of parameters, as published with each release.
FULL_SIZES = {
    "sd15-full": {"unet": 860, "vae": 84, "text_encoder": 123},
    "sdxl-full": {"unet": 2567, "vae": 84, "text_encoder": 123, "text_encoder_2": 695},
    "sd3-full": {"transformer": 2028, "text_encoder_2": 695, "text_encoder_3": 4762},
    "flux-full": {"transformer": 11891, "text_encoder": 123, "text_encoder_2": 4762},
    "wan-full": {"transformer": 1419, "vae": 127, "text_encoder": 5681},
}


def run(pipeline, family, prompt="a cat", seed=1):
    edits = {}
    if family.startswith("sd15-"):
        edits["image"] = Image.new("RGB", (64, 64), (200, 30, 40))
    if family == "sd15-inpaint":
        edits["mask_image"] = Image.new("L", (64, 64), 255)
    generator = torch.Generator().manual_seed(seed)
    arguments = pipeline.sidestream_defaults | edits
    with torch.inference_mode():
        return pipeline(prompt, generator=generator, output_type="pt", **arguments)[0]


def weights(pipeline):
    modules = pipeline.components.values()
    return [w for m in modules if isinstance(m, torch.nn.Module) for w in m.parameters()]


def test_every_family_is_tried_here():
    assert CLASSES.keys() == families_tiny.FAMILIES.keys()
    assert FULL_SIZES.keys() == families_full.FAMILIES.keys()


@pytest.mark.parametrize("family", CLASSES)
def test_a_tiny_family_runs_and_heeds_prompt_and_seed(family):
    pipeline = load_pipeline(f"random:{family}", {}, device="cpu", dtype=None)
    assert type(pipeline) is CLASSES[family]
    one = run(pipeline, family)
    frames = FRAMES.get(family)
    assert one.shape == ((1, frames, 3, 32, 32) if frames else (1, 3, 64, 64))
    assert 0 <= one.min() < one.max() <= 1
    assert torch.equal(one, run(pipeline, family))
    assert not torch.equal(one, run(pipeline, family, prompt="a xylophone"))
    assert not torch.equal(one, run(pipeline, family, seed=2))


def test_a_seed_decides_the_weights_and_leaves_the_callers_generator_alone():
    state = torch.get_rng_state()
    first, second, other = (
        weights(families.load("sd3", {"seed": seed}, device="cpu", dtype=None))
        for seed in (7, 7, 8)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, first, second))
    assert not all(map(torch.equal, first, other))


@pytest.mark.parametrize("family", FULL_SIZES)
def test_a_full_size_family_has_the_parameters_of_its_release(family):
    pipeline = families.load(family, {}, device="meta", dtype="bf16")
    for name, millions in FULL_SIZES[family].items():
        module = getattr(pipeline, name)
        assert round(sum(p.numel() for p in module.parameters()) / 1e6) == millions
        assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
        assert {p.device.type for p in module.parameters()} == {"meta"}
    assert torch.get_default_dtype() == torch.float32
    assert torch.empty(1).device.type == "cpu"


def test_the_tables_of_a_scheduler_stay_exact_beside_half_precision_weights():
    scheduler = families.load("sdxl-full", {}, device="meta", dtype="bf16").scheduler
    assert scheduler.betas.dtype == torch.float32
    assert torch.equal(scheduler.betas, diffusers.EulerDiscreteScheduler().betas)


def test_the_tokenizer_knows_words_and_spells_out_others():
    tokenizer = word_tokenizer(16)
    known = tokenizer("A red CAT").input_ids
    assert [known[0], known[-1], len(known)] == [START_ID, END_ID, 5]
    assert tokenizer("zebra 12").input_ids != tokenizer("zebra 13").input_ids
    assert tokenizer.unk_token_id not in tokenizer("zebra, café (12:30)!").input_ids
    assert len(tokenizer("red " * 99, truncation=True).input_ids) == 16
    assert word_tokenizer(16, start=False)("cat").input_ids[1:] == [END_ID]
