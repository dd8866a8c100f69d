"""The MP4 encoder: its files are decoded again, and are the videos that they were made of."""

import io
import subprocess
import sys
import tracemalloc

import av
import numpy as np
import pytest

from sidestream.engine import RequestError, SamplingParams
from sidestream.ipc_ext.tensors import HostTensor
from sidestream.postprocess import (
    PostprocessOptions,
    Postprocessor,
    encode_video,
    read_video_info,
)


def moving(frames=7, height=48, width=80, channels=3):
    """Make a video of smooth colours that move."""
    t, y, x = np.mgrid[0:frames, 0:height, 0:width]
    waves = [np.sin((x + 3 * t) / 20), np.sin((y + 2 * t) / 15), np.sin((x + y - t) / 30)]
    video = np.stack([*waves, np.zeros_like(waves[0])], -1)[..., :channels]
    return (127 + 100 * video).astype(np.uint8)


def encoded(video, **options):
    return encode_video(video, PostprocessOptions(**options))


def decoded(data):
    with av.open(io.BytesIO(data)) as mp4:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in mp4.decode(video=0)])


def difference(one, other):
    return np.abs(one.astype(int) - other.astype(int))


@pytest.mark.parametrize("fps", [1, 8, 24, 120])
def test_a_video_is_what_it_was(fps):
    video = moving()
    data = encoded(video, fps=fps)
    assert read_video_info(data) == (80, 48, 7, fps)
    with av.open(io.BytesIO(data)) as mp4:
        (stream,) = mp4.streams
        assert (stream.codec.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert float(stream.duration * stream.time_base) == pytest.approx(7 / fps, rel=0.01)
    error = difference(decoded(data), video)
    assert error.mean() < 4
    assert error.max() < 40


@pytest.mark.parametrize(
    "color", [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (200, 30, 90)]
)
def test_colors_are_kept(color):
    video = np.full((3, 16, 16, 3), color, np.uint8)
    data = encoded(video)
    assert difference(decoded(data), video).max() <= 3
    with av.open(io.BytesIO(data)) as mp4:  # else players guess, by the size of the picture
        codec = mp4.streams.video[0].codec_context
        assert (codec.color_primaries, codec.color_trc, codec.colorspace) == (1, 1, 1)
        assert codec.color_range == 1


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (33, 64), (32, 65), (33, 65), (720, 1280)])
def test_an_odd_size_grows_to_an_even_one_and_nothing_is_lost(size):
    video = moving(2, *size)
    data = encoded(video)
    height, width = (side + side % 2 for side in size)
    assert read_video_info(data)[:3] == (width, height, 2)
    grown = np.pad(video, ((0, 0), (0, size[0] % 2), (0, size[1] % 2), (0, 0)), "edge")
    assert difference(decoded(data), grown).mean() < 4


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels(channels):
    video = moving(channels=channels)
    pixels = decoded(encoded(video))
    expected = np.repeat(video, 3, -1) if channels == 1 else video[..., :3]
    assert difference(pixels, expected).mean() < 4


def test_the_index_is_in_front_of_the_frames():
    for count in (1, 300):
        data = encoded(np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), np.uint8))
        assert read_video_info(data).frames == count
        assert 0 < data.index(b"moov") < data.index(b"mdat")


def test_quality_matters():
    noisy = np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), np.uint8)
    low, middle, high = (len(encoded(noisy, quality=quality)) for quality in (1, 90, 100))
    assert low < middle < high


def test_frames_are_read_where_they_are():
    video = moving(frames=4, height=1024, width=1024)
    video.flags.writeable = False  # as ring memory is
    encoded(video[:1])  # what is imported and allocated once
    tracemalloc.start()
    try:
        data = encoded(video)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < video.nbytes // 4 + len(data), "not one frame was copied by numpy"


def test_it_is_a_stage_for_the_outputs_of_pipelines():
    videos = np.stack([moving(), 255 - moving()])
    tensor = HostTensor(videos.tobytes(), "uint8", videos.shape)
    got = Postprocessor().host_stage({"frames": tensor}, "mp4", {"fps": 8})
    assert [read_video_info(data) for data in got] == [(80, 48, 7, 8)] * 2
    for data, video in zip(got, videos, strict=True):
        assert difference(decoded(data), video).mean() < 4


@pytest.mark.parametrize("shape", [(8, 8, 3), (0, 8, 8, 3), (2, 8, 0, 3), (2, 8, 8, 2), (4,)])
def test_what_is_no_video_is_refused(shape):
    with pytest.raises(ValueError, match="no video"):
        encoded(np.zeros(shape, np.uint8))


def test_what_h264_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="cannot encode 70000x2 as mp4"):
        encoded(np.zeros((1, 2, 70_000, 3), np.uint8))


def test_without_pyav_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    with pytest.raises(ValueError, match=r"sidestream\[video\]"):
        encoded(moving())
    with pytest.raises(RequestError, match=r"output_type .*pip install 'sidestream\[video\]'"):
        SamplingParams(output_type="mp4")


def test_pictures_need_no_pyav():
    code = "import sys, sidestream.postprocess, sidestream.engine; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
