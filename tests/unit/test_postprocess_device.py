"""The device stage: bytes equal to those of diffusers, and only what is worth copying."""

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.video_processor import VideoProcessor
from hypothesis import given, settings, strategies as st

from sidestream.postprocess import (
    OUTPUT_TYPES,
    QUANTIZED_TYPES,
    Postprocessor,
    RawPostprocessor,
    SignedPostprocessor,
    denormalize,
    get_postprocessor,
    quantize,
)

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def reference(tensor):
    """Return the bytes that diffusers makes of (n, C, H, W) in [0, 1]."""
    images = VaeImageProcessor.numpy_to_pil(VaeImageProcessor.pt_to_numpy(tensor))
    return np.stack([np.asarray(image) for image in images])


def every_value(dtype):
    """Return each 16-bit float in [0, 1], as pictures of 3 channels."""
    everything = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    values = everything[(everything >= 0) & (everything <= 1)]
    return values.repeat(3)[: len(values) // 3 * 3].view(1, 3, -1, 1)


def near_the_rounding_borders():
    """Return the float32 values next to each border between two bytes, and next to each byte."""
    exact = torch.arange(511, dtype=torch.float64) / 510
    middle = exact.to(torch.float32)
    below = torch.nextafter(middle, torch.tensor(-1.0))
    above = torch.nextafter(middle, torch.tensor(2.0))
    return torch.cat([middle, below, above]).clamp(0, 1).view(1, 3, -1, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_equal_diffusers_for_every_16_bit_float(dtype):
    tensor = every_value(dtype)
    assert tensor.numel() > 15_000
    assert np.array_equal(quantize(tensor).numpy(), reference(tensor))


def test_bytes_equal_diffusers_at_the_borders_between_bytes():
    tensor = near_the_rounding_borders()
    assert np.array_equal(quantize(tensor).numpy(), reference(tensor))


@given(
    values=st.lists(st.floats(0, 1, width=32), min_size=12, max_size=12),
    dtype=st.sampled_from(FLOATS),
)
@settings(max_examples=300, deadline=None)
def test_bytes_equal_diffusers_for_any_picture(values, dtype):
    tensor = torch.tensor(values).to(dtype).view(2, 3, 1, 2)
    assert np.array_equal(quantize(tensor).numpy(), reference(tensor))


@given(
    values=st.lists(st.floats(-4, 4, width=16), min_size=6, max_size=6),
    dtype=st.sampled_from(FLOATS),
)
@settings(max_examples=200, deadline=None)
def test_signed_pictures_equal_diffusers_decoder_output(values, dtype):
    decoded = torch.tensor(values).to(dtype).view(1, 3, 1, 2)
    images = VaeImageProcessor().postprocess(decoded, "pil")
    stage = SignedPostprocessor().device_stage
    assert np.array_equal(stage({"images": decoded}, "uint8")["images"][0], np.asarray(images[0]))
    expected = VaeImageProcessor().postprocess(decoded, "pt")
    assert torch.equal(stage({"images": decoded}, "pt")["images"], expected)
    assert torch.equal(denormalize(decoded), expected)


def test_frames_equal_diffusers():
    decoded = torch.rand(2, 3, 4, 5, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1
    processor = VideoProcessor()
    frames = processor.postprocess_video(decoded, "pt")
    got = Postprocessor().device_stage({"frames": frames}, "pil")["frames"]
    assert got.shape == (2, 4, 5, 6, 3)
    for video, images in zip(got, processor.postprocess_video(decoded, "pil"), strict=True):
        for frame, image in zip(video, images, strict=True):
            assert np.array_equal(frame, np.asarray(image))


def test_values_that_a_pipeline_did_not_clamp_are_clamped():
    values = [-0.1, 1.1, -float("inf"), float("inf"), -300.0, 300.0]
    got = quantize(torch.tensor(values).view(6, 1, 1, 1))
    assert got.flatten().tolist() == [0, 255, 0, 255, 0, 255]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_pictures_become_contiguous_channels_last_and_the_input_stays(channels, dtype):
    tensor = torch.rand(2, channels, 4, 5).to(dtype)
    kept = tensor.clone()
    got = quantize(tensor)
    assert got.shape == (2, 4, 5, channels)
    assert got.dtype == torch.uint8
    assert got.is_contiguous()
    assert torch.equal(tensor, kept)


def test_bytes_are_only_rearranged():
    tensor = torch.arange(24, dtype=torch.uint8).view(1, 3, 2, 4)
    assert torch.equal(quantize(tensor), tensor.permute(0, 2, 3, 1))


@pytest.mark.parametrize("shape", [(4, 5), (1, 7), (2, 16, 8, 8), (1, 2, 8, 8)])
def test_what_is_no_picture_is_refused(shape):
    with pytest.raises(ValueError, match=r"holds no pictures.*'raw'"):
        Postprocessor().device_stage({"images": torch.zeros(shape)}, "pil")


@pytest.mark.parametrize("output_type", OUTPUT_TYPES)
def test_only_what_the_type_needs_is_sent(output_type):
    images = torch.rand(1, 3, 4, 4).to(torch.bfloat16)
    name = "latents" if output_type == "latent" else "images"
    flags = torch.tensor([False])
    tensors = {"nsfw_content_detected": flags, name: images}
    got = Postprocessor().device_stage(tensors, output_type)
    if output_type == "raw":
        assert got.keys() == tensors.keys()
    else:
        assert got.keys() == {name}
        quantized = output_type in QUANTIZED_TYPES
        assert got[name].dtype == (torch.uint8 if quantized else torch.bfloat16)


def test_latents_and_raw_tensors_pass_unchanged_but_contiguous():
    tensor = torch.rand(1, 16, 4, 6).transpose(2, 3)
    for name, output_type in (("latents", "latent"), ("images", "raw"), ("images", "pt")):
        got = Postprocessor().device_stage({name: tensor}, output_type)[name]
        assert got.is_contiguous()
        assert torch.equal(got, tensor)


def test_a_pipeline_without_media_says_what_it_returned():
    with pytest.raises(ValueError, match=r"returned audios, neither.*'raw'"):
        Postprocessor().device_stage({"audios": torch.zeros(1, 9)}, "pil")


@pytest.mark.parametrize("output_type", OUTPUT_TYPES)
def test_the_synthetic_model_is_not_converted_except_to_bytes(output_type):
    tensor = torch.full((1, 3, 2, 5), 250, dtype=torch.bfloat16)
    processor = get_postprocessor("SyntheticPipeline")
    assert isinstance(processor, RawPostprocessor)
    got = processor.device_stage({"images": tensor}, output_type)["images"]
    assert got.shape == ((1, 2, 5, 3) if output_type == "uint8" else tensor.shape)
    assert got.dtype == (torch.uint8 if output_type == "uint8" else torch.bfloat16)
    assert (got == 250).all()
