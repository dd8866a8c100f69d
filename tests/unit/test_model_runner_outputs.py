"""What pipelines return becomes named tensors, and what they take is described."""

from dataclasses import dataclass
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch
from diffusers.pipelines.stable_diffusion import StableDiffusionPipelineOutput
from PIL import Image

from sidestream.workers.capabilities import capabilities_of
from sidestream.workers.models import load_pipeline
from sidestream.workers.outputs import tensors_of

from .lane_helpers import run_wave, runner_of

IMAGES = torch.rand(2, 3, 8, 8)
FRAMES = torch.rand(1, 5, 3, 8, 8)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (IMAGES, {"images": IMAGES}),
        (FRAMES, {"frames": FRAMES}),
        ((IMAGES,), {"images": IMAGES}),
        ((IMAGES, None), {"images": IMAGES}),
        (SimpleNamespace(images=IMAGES), {"images": IMAGES}),
        ({"images": IMAGES, "mask": IMAGES[:, :1]}, {"images": IMAGES, "mask": IMAGES[:, :1]}),
        (StableDiffusionPipelineOutput(IMAGES, None), {"images": IMAGES}),
        (
            StableDiffusionPipelineOutput(IMAGES, [True, False]),
            {"images": IMAGES, "nsfw_content_detected": torch.tensor([True, False])},
        ),
        (SimpleNamespace(images=list(IMAGES)), {"images": IMAGES}),
        (SimpleNamespace(images=IMAGES.permute(0, 2, 3, 1).numpy()), {"images": IMAGES}),
        (SimpleNamespace(frames=FRAMES.permute(0, 1, 3, 4, 2).numpy()), {"frames": FRAMES}),
        ({0: IMAGES}, {"0": IMAGES}),
        (torch.zeros(7), {"output": torch.zeros(7)}),
        (SimpleNamespace(audios=np.zeros((2, 100))), {"audios": torch.zeros(2, 100).double()}),
    ],
)
def test_results_become_named_tensors(result, expected):
    tensors = tensors_of(result)
    assert list(tensors) == list(expected)
    for name, wanted in expected.items():
        assert tensors[name].dtype == wanted.dtype
        assert torch.equal(tensors[name], wanted)


def test_pil_images_become_tensors_in_the_unit_interval():
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    tensors = tensors_of(SimpleNamespace(images=[Image.fromarray(pixels)]))
    assert tensors["images"].shape == (1, 3, 8, 8)
    assert (
        (tensors["images"][0].permute(1, 2, 0) * 255).round().byte().equal(torch.from_numpy(pixels))
    )


def test_videos_of_pil_images_become_frames():
    picture = Image.new("RGB", (4, 6), (255, 0, 0))
    tensors = tensors_of(SimpleNamespace(frames=[[picture] * 5]))
    assert tensors["frames"].shape == (1, 5, 3, 6, 4)


def test_latents_are_named_so():
    assert list(tensors_of(SimpleNamespace(images=IMAGES), latent=True)) == ["latents"]


@dataclass(slots=True)
class Slotted:
    images: object
    extra: object


def test_what_is_nested_is_named_after_where_it_is():
    small = torch.rand(3, 4, 4)
    tensors = tensors_of(Slotted([IMAGES[0], small], {"mask": small, "all": ["text", [small]]}))
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        "images_0": (3, 8, 8),
        "images_1": (3, 4, 4),
        "extra_mask": (3, 4, 4),
        "extra_all_1": (1, 3, 4, 4),
    }
    assert list(tensors_of((IMAGES, Slotted(None, small)))) == ["images", "output_1_extra"]


@pytest.mark.parametrize("result", [None, "text", SimpleNamespace(images=None), ()])
def test_a_result_without_tensors_is_an_error(result):
    with pytest.raises(TypeError, match="no tensor"):
        tensors_of(result)


def test_a_result_without_tensors_fails_its_request():
    (output,) = run_wave(runner_of(lambda: "text"), [{}])
    assert output.error_type == "TypeError"


def test_several_tensors_arrive_together():
    @dataclass
    class Output:
        images: torch.Tensor
        depth: torch.Tensor

    (output,) = run_wave(runner_of(lambda: Output(IMAGES, IMAGES[:, :1])), [{}])
    assert output.error is None
    assert list(output.tensors) == ["images", "depth"]


# ---------------------------------------------------------------------- capabilities


@pytest.mark.parametrize(
    ("family", "media", "size", "count"),
    [
        ("sd15", "image", (64, 64), "num_images_per_prompt"),
        ("flux", "image", (64, 64), "num_images_per_prompt"),
        ("wan", "video", (32, 32), "num_videos_per_prompt"),
    ],
)
def test_capabilities_of_a_diffusers_pipeline(family, media, size, count):
    pipeline = load_pipeline(f"random:{family}", {}, device="cpu", dtype=None)
    capabilities = runner_of(pipeline).capabilities()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(capabilities)) == capabilities
    assert capabilities["pipeline"] == type(pipeline).__name__
    assert capabilities["media"] == media
    assert (capabilities["height"], capabilities["width"]) == size
    assert capabilities["num_outputs"] == count
    assert {"prompt", "height", "generator", "output_type"} <= set(capabilities["arguments"])
    assert capabilities["required"] == []
    assert capabilities["defaults"]["num_inference_steps"] == 4
    assert capabilities["has_scheduler"]
    assert not capabilities["accepts_any"], "its **kwargs are there for old names"


def test_capabilities_of_a_small_pipeline():
    class Small:
        def __init__(self):
            self.sidestream_defaults = {"strength": 0.5}
            self.sidestream_lora = ("ink",)

        def __call__(self, image, strength, *, mode="fast", callback=print, **more):
            return image

    capabilities = capabilities_of(Small())
    assert capabilities == {
        "pipeline": "Small",
        "size_multiple": 1,
        "smallest_side": 1,
        "needs_prompt": False,
        "image_optional": False,
        "arguments": ["image", "strength", "mode", "callback"],
        "required": ["image"],
        "defaults": {"mode": "fast", "strength": 0.5},
        "accepts_any": True,
        "height": None,
        "width": None,
        "media": "image",
        "num_outputs": None,
        "has_scheduler": False,
        "from_image": True,
        "chunks": False,
        "lora": ["ink"],
    }


def test_default_sizes_are_those_that_the_pipeline_would_choose():
    pipeline = load_pipeline("random:sdxl", {}, device="cpu", dtype=None)
    pipeline.sidestream_defaults = {}
    capabilities = capabilities_of(pipeline)
    expected = pipeline.default_sample_size * pipeline.vae_scale_factor
    assert (capabilities["height"], capabilities["width"]) == (expected, expected)


def test_no_tensor_is_lost_to_another_of_its_name():
    one, two = torch.zeros(1, 3, 4, 4), torch.ones(1, 3, 4, 4)
    found = tensors_of({"a": {"b": one}, "a_b": two})
    assert torch.equal(found["a_b"], one)
    assert torch.equal(found["a_b_2"], two)
    found = tensors_of({"images": one, "latents": two}, latent=True)
    assert torch.equal(found["latents"], one)
    assert torch.equal(found["latents_2"], two)
