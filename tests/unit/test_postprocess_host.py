"""The host stage: what callers get for each output type, options, and the registry."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from PIL import Image

from sidestream.ipc_ext.tensors import HostTensor
from sidestream.postprocess import (
    OUTPUT_TYPES,
    QUANTIZED_TYPES,
    PostprocessOptions,
    Postprocessor,
    SignedPostprocessor,
    check_output_options,
    get_postprocessor,
    read_video_info,
    register_postprocessor,
)


def host(tensor):
    """Carry a tensor to the host as a worker does."""
    data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return HostTensor(data, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def outputs(tensor, output_type, options=None, *, name="images", device=True):
    """Send a tensor through both stages, or through the host's alone."""
    processor, tensors = Postprocessor(), {name: tensor}
    if device:
        tensors = processor.device_stage(tensors, output_type)
    carried = {key: host(value) for key, value in tensors.items()}
    return processor.host_stage(carried, output_type=output_type, options=options)


def pictures(count=2, channels=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(count + channels)
    return torch.rand(count, channels, 8, 12, generator=generator).to(dtype)


@pytest.mark.parametrize("device", [True, False], ids=["device-stage", "host-only"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pictures_equal_those_of_diffusers(dtype, device):
    tensor = pictures(dtype=dtype)
    processor = VaeImageProcessor(do_normalize=False)
    for got, expected in zip(
        outputs(tensor, "pil", device=device), processor.postprocess(tensor, "pil"), strict=True
    ):
        assert got.mode == expected.mode == "RGB"
        assert np.array_equal(np.asarray(got), np.asarray(expected))
    arrays = outputs(tensor, "np", device=device)
    assert all(array.dtype == np.float32 and array.flags.c_contiguous for array in arrays)
    assert np.array_equal(np.stack(arrays), processor.postprocess(tensor, "np"))
    assert torch.equal(torch.stack(outputs(tensor, "pt", device=device)), tensor)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
def test_channels_decide_the_mode(channels, mode):
    tensor = pictures(1, channels)
    (image,) = outputs(tensor, "pil")
    assert (image.mode, image.size) == (mode, (12, 8))
    (array,) = outputs(tensor, "uint8")
    assert array.shape == (8, 12, channels)
    (data,) = outputs(tensor, "png")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), np.asarray(image))


@pytest.mark.parametrize("output_type", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_encoded_pictures_can_be_read_and_look_the_same(output_type, channels):
    tensor = torch.full((1, channels, 8, 12), 0.6)
    (data,) = outputs(tensor, output_type)
    image = Image.open(io.BytesIO(data))
    assert image.format == output_type.upper()
    assert image.size == (12, 8)
    assert np.abs(np.asarray(image.convert("L")).astype(int) - 153).max() <= 3


def test_encoder_options_matter():
    tensor = pictures(1)
    assert len(outputs(tensor, "jpeg", {"quality": 10})[0]) < len(outputs(tensor, "jpeg")[0])
    assert len(outputs(tensor, "webp", {"quality": 10})[0]) < len(outputs(tensor, "webp")[0])
    stored, packed = (
        outputs(tensor.round(), "png", PostprocessOptions(compress_level=level))[0]
        for level in (0, 9)
    )
    assert len(packed) < len(stored)
    (lossless,) = outputs(tensor, "webp", {"lossless": True})
    (array,) = outputs(tensor, "uint8")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(lossless))), array)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": 0}, "quality must be 1 to 100, not 0"),
        ({"quality": 101}, "quality must be 1 to 100, not 101"),
        ({"compress_level": 10}, "compress_level must be 0 to 9, not 10"),
        ({"compress_level": -1}, "compress_level must be 0 to 9, not -1"),
        ({"quality": "best"}, r"Expected `int`, got `str` - at `\$.quality`"),
        ({"fps": 0}, "fps must be 1 to 120, not 0"),
        ({"fps": 121}, "fps must be 1 to 120, not 121"),
        ({"qualty": 5}, "'qualty'; did you mean 'quality'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        check_output_options("jpeg", options)
    with pytest.raises(ValueError, match=message):
        outputs(pictures(1), "jpeg", options)


def test_an_unknown_output_type_is_refused_and_the_valid_ones_named():
    with pytest.raises(ValueError, match="'tiff'; valid: pil, png, jpeg, webp, uint8, np, pt"):
        check_output_options("tiff")


def test_options_default_and_pass_through():
    assert check_output_options("png") == PostprocessOptions()
    options = PostprocessOptions(quality=3)
    assert check_output_options("png", options) is options


def test_a_picture_that_the_format_cannot_hold_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="cannot encode 17000x1 as webp"):
        outputs(torch.zeros(1, 3, 1, 17000), "webp")


@pytest.mark.parametrize("output_type", OUTPUT_TYPES)
def test_videos_come_one_by_one(output_type):
    frames = torch.rand(2, 5, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    got = outputs(frames, output_type, name="frames")
    if output_type == "raw":
        (tensor,) = got
        assert tensor.shape == (2, 5, 3, 8, 12)
        return
    if output_type == "mp4":
        assert [read_video_info(video)[:3] for video in got] == [(12, 8, 5)] * 2
        return
    assert len(got) == 2
    for index, video in enumerate(got):
        if output_type in ("pil", "png", "jpeg", "webp"):
            assert len(video) == 5
            images = video if output_type == "pil" else [Image.open(io.BytesIO(f)) for f in video]
            assert [image.size for image in images] == [(12, 8)] * 5
        elif output_type in ("pt", "latent"):
            tensor = video if output_type == "pt" else video.torch()
            assert torch.equal(tensor, frames[index])
        else:
            assert video.shape == (5, 8, 12, 3)
            assert video.dtype == (np.uint8 if output_type == "uint8" else np.float32)


def test_latents_are_parted_and_raw_tensors_are_not():
    latents = torch.randn(3, 4, 5).to(torch.bfloat16)
    got = outputs(latents, "latent", name="latents")
    assert [tensor.shape for tensor in got] == [(4, 5)] * 3
    assert torch.equal(torch.stack([tensor.torch() for tensor in got]), latents)
    (raw,) = outputs(latents, "raw", name="latents")
    assert (raw.dtype, raw.shape) == ("bfloat16", (3, 4, 5))
    assert torch.equal(raw.torch(), latents)


def test_arrays_of_bytes_are_the_received_memory_itself():
    tensor = host(torch.arange(24, dtype=torch.uint8).view(1, 2, 4, 3))
    (array,) = Postprocessor().host_stage({"images": tensor}, "uint8")
    assert np.shares_memory(array, tensor.numpy())


@pytest.mark.parametrize("output_type", OUTPUT_TYPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_synthetic_tensors_arrive_as_they_are(output_type, dtype):
    processor = get_postprocessor("SyntheticPipeline")
    sent = processor.device_stage({"images": torch.full((2, 16), 250, dtype=dtype)}, output_type)
    got = processor.host_stage({"images": host(sent["images"])}, output_type)
    if output_type == "uint8":
        assert [(row.shape, row.dtype) for row in got] == [((16,), np.uint8)] * 2
        assert (np.stack(got) == 250).all()
    else:
        (tensor,) = got
        assert tensor.shape == (2, 16)
        assert tensor.dtype == str(dtype).removeprefix("torch.")
        assert (tensor.numpy() == 250).all()


def test_signed_floats_are_mapped_whichever_type_is_asked_for():
    decoded = pictures() * 2 - 1
    processor = get_postprocessor("IFPipeline")
    assert isinstance(processor, SignedPostprocessor)
    for output_type in ("np", "uint8"):
        expected = VaeImageProcessor().postprocess(decoded, "np" if output_type == "np" else "pil")
        sent = processor.device_stage({"images": decoded}, output_type)
        got = processor.host_stage({k: host(v) for k, v in sent.items()}, output_type)
        for one, other in zip(got, expected, strict=True):
            assert np.array_equal(one, np.asarray(other))


class Inverted(Postprocessor):
    """What a user may write."""

    def to_unit_range(self, tensor):
        return 1 - tensor


def test_a_registered_postprocessor_is_found_by_class_name():
    inverted = Inverted()
    register_postprocessor("InvertedPipeline", inverted)
    assert get_postprocessor("InvertedPipeline") is inverted
    white = inverted.device_stage({"images": torch.zeros(1, 3, 2, 2)}, "pil")["images"]
    assert (white == 255).all()
    assert type(get_postprocessor("SomeOtherPipeline")) is Postprocessor


def test_import_paths_are_resolved_when_needed():
    path = "sidestream.postprocess.postprocessor:SignedPostprocessor"
    register_postprocessor("LatePipeline", path)
    first = get_postprocessor("LatePipeline")
    assert isinstance(first, SignedPostprocessor)
    assert get_postprocessor("LatePipeline") is first
    assert isinstance(get_postprocessor(path), SignedPostprocessor)


@pytest.mark.parametrize(
    "path",
    ["no_such_module:name", "sidestream.postprocess:nothing", "sidestream.postprocess:encode"],
)
def test_wrong_import_paths_say_what_is_wrong(path):
    with pytest.raises(ValueError, match=f"postprocessor '{path}'"):
        get_postprocessor(path)


def test_the_package_does_not_import_torch():
    code = "import sys, sidestream.postprocess; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_quantized_types_are_those_made_of_bytes():
    assert set(QUANTIZED_TYPES) == {"pil", "png", "jpeg", "webp", "uint8", "mp4"}


@pytest.mark.parametrize(
    "processor", ["StableDiffusionPipeline", "SyntheticPipeline", "IFPipeline"]
)
@pytest.mark.parametrize("output_type", OUTPUT_TYPES)
def test_previews_are_pictures_as_they_are_for_every_pipeline(output_type, processor):
    samples = torch.arange(4 * 6 * 3).reshape(4, 6, 3).to(torch.uint8)
    stage = get_postprocessor(processor).preview_stage
    (image,) = stage({"preview": host(samples)}, output_type)
    if output_type in ("png", "jpeg", "webp"):
        image = Image.open(io.BytesIO(image))
    pictures = ("pil", "png", "jpeg", "webp")
    assert isinstance(image, Image.Image if output_type in pictures else np.ndarray)
    pixels = np.asarray(image)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (4, 6, 3))
    if output_type not in ("jpeg", "webp"):
        assert np.array_equal(pixels, samples.numpy())


def test_options_of_the_encoder_count_for_previews():
    noise = torch.randint(256, (32, 32, 3), generator=torch.Generator().manual_seed(0))
    preview = {"preview": host(noise.to(torch.uint8))}
    sizes = [
        len(Postprocessor().preview_stage(preview, "jpeg", {"quality": quality})[0])
        for quality in (10, 95)
    ]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("tensor", [torch.zeros(4, 6, 3), torch.zeros(4, 6, 4).byte()])
def test_what_is_no_preview_is_refused(tensor):
    with pytest.raises(ValueError, match="is no preview"):
        Postprocessor().preview_stage({"preview": host(tensor)}, "pil")
