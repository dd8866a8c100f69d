"""PNG files of our own are read by others, and hold the samples that went in."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from sidestream.postprocess import check_output_options, encode, png

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
DEFLATES = [pytest.param(png.isal_zlib, id="isal"), pytest.param(None, id="zlib")]


@pytest.fixture(params=DEFLATES)
def deflate(request, monkeypatch):
    """Encode with the one deflate and the other."""
    monkeypatch.setattr(png, "isal_zlib", request.param)


def read(file):
    with Image.open(io.BytesIO(file)) as image:
        image.verify()
    with Image.open(io.BytesIO(file)) as image:
        samples = np.asarray(image)
        return image.mode, samples if samples.ndim == 3 else samples[..., None]


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(sorted(MODES)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2000),
)
def test_samples_come_back(height, width, channels, seed, stripe):
    samples = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    samples[height // 3 : height // 2] = 7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(png, "STRIPE", stripe)
        mode, decoded = read(png.encode_png(samples))
    assert mode == MODES[channels]
    assert np.array_equal(decoded, samples)


@pytest.mark.usefixtures("deflate")
@pytest.mark.parametrize("shape", [(1, 1, 3), (300, 1000, 3), (3, 200_000, 4), (1000, 1, 1)])
def test_large_and_narrow_pictures_come_back(shape):
    samples = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    assert np.array_equal(read(png.encode_png(samples))[1], samples)


@pytest.mark.usefixtures("deflate")
def test_views_of_other_memory_come_back():
    whole = np.random.default_rng(0).integers(0, 256, (40, 60, 4), np.uint8)
    whole.flags.writeable = False
    for samples in (whole[::2, ::-3, :3], whole.transpose(1, 0, 2)):
        assert np.array_equal(read(png.encode_png(samples))[1], samples)


@pytest.mark.usefixtures("deflate")
def test_a_smooth_picture_is_small():
    ramp = np.add.outer(np.arange(256), np.arange(256)) // 2
    samples = np.repeat(ramp.astype(np.uint8)[..., None], 3, axis=2)
    assert len(png.encode_png(samples)) < samples.nbytes / 10


def test_level_1_is_ours_and_the_others_are_those_of_pillow():
    samples = np.random.default_rng(0).integers(0, 2, (64, 64, 3), np.uint8) * 255
    files = {
        level: encode(samples, "png", check_output_options("png", {"compress_level": level}))
        for level in (0, 1, 9)
    }
    assert (
        files[1] == encode(samples, "png", check_output_options("png")) == png.encode_png(samples)
    )
    assert len(files[9]) < len(files[1]) < len(files[0])
    for file in files.values():
        assert np.array_equal(read(file)[1], samples)
        assert struct.unpack(">I", file[8:12]) == (13,)
