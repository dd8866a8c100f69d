"""Videos as files in memory: MP4 with H.264, by way of PyAV (the extra ``sidestream[video]``).

PyAV is imported by the first video, so nothing here is needed for pictures.
"""

import importlib.util
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .options import PostprocessOptions

if TYPE_CHECKING:
    import av

Samples = npt.NDArray[np.uint8]

MISSING_PYAV = "PyAV is not installed (pip install 'sidestream[video]')"

_FORMATS = {1: "gray", 3: "rgb24", 4: "rgba"}
_PRESET = "veryfast"
"""Of x264: 3/5 of the time of "faster" and 2/5 of that of "medium", at much the same size."""
_THREADS = 4
"""Of one encoder at most; several may be at work."""
_BT709 = 1
"""What H.264 calls the primaries, the transfer function and the matrix of ITU-R BT.709."""
_LIMITED = 1
"""What H.264 calls samples from 16 to 235, as almost all videos have them."""


class VideoInfo(NamedTuple):
    """What is in a file."""

    width: int
    height: int
    frames: int
    fps: float


def has_pyav() -> bool:
    """Whether PyAV is installed, without importing it."""
    return importlib.util.find_spec("av") is not None


def encode_video(samples: Samples, options: PostprocessOptions) -> bytes:
    """Encode a video as MP4: H.264, yuv420p, BT.709, its index in front so that it can be streamed.

    yuv420p has one colour for four pixels, so an odd width or height grows by one: the last column
    or row is there twice. Other frames are read where they are.

    Args:
        samples: (F, H, W, C), uint8; C is 1, 3 or 4. The fourth channel is dropped.
        options: `fps` and `quality`; of the latter, 90 is CRF 18, and 10 less are 4 more.

    Raises:
        ValueError: It is no video, or larger than H.264 allows, or PyAV is not installed.
    """
    if not has_pyav():
        raise ValueError(MISSING_PYAV)
    import av

    if samples.ndim != 4 or samples.shape[-1] not in _FORMATS or 0 in samples.shape:
        raise ValueError(f"samples of shape {samples.shape} are no video (F, H, W, C)")
    count, height, width, channels = samples.shape
    odd = height % 2, width % 2
    file = io.BytesIO()
    try:
        # Room for the index of all frames; the muxer would otherwise put it at the end.
        with av.open(file, "w", format="mp4", options={"moov_size": str(4096 + 64 * count)}) as mp4:
            stream = _add_stream(mp4, width + odd[1], height + odd[0], options)
            for picture in samples:
                if any(odd):
                    picture = np.pad(picture, ((0, odd[0]), (0, odd[1]), (0, 0)), "edge")
                mp4.mux(stream.encode(_frame(picture, _FORMATS[channels])))
            mp4.mux(stream.encode())
    except av.FFmpegError as error:
        raise ValueError(f"cannot encode {width}x{height} as mp4: {error}") from error
    return file.getvalue()


def _add_stream(mp4: Any, width: int, height: int, options: PostprocessOptions) -> Any:
    crf = min(51, round(18 + (90 - options.quality) * 0.4))
    stream = mp4.add_stream(
        "libx264", rate=options.fps, options={"preset": _PRESET, "crf": str(crf)}
    )
    stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
    codec = stream.codec_context
    codec.thread_count = _THREADS
    codec.color_primaries = codec.color_trc = codec.colorspace = _BT709
    codec.color_range = _LIMITED
    return stream


def _frame(picture: Samples, name: str) -> "av.VideoFrame":
    """Convert a picture (H, W, C); what is contiguous is not copied before."""
    import av

    samples = np.ascontiguousarray(picture[..., 0] if name == "gray" else picture)
    frame = av.VideoFrame.from_numpy_buffer(samples, format=name)
    return frame.reformat(
        format="yuv420p",
        src_color_range="JPEG",
        dst_color_range="MPEG",
        dst_colorspace="ITU709",
        threads=1,
    )


def read_video_info(data: bytes) -> VideoInfo:
    """Read what is in a file of `encode_video`, without decoding it."""
    import av

    with av.open(io.BytesIO(data)) as mp4:
        stream = mp4.streams.video[0]
        rate = stream.average_rate or 0
        return VideoInfo(stream.width, stream.height, stream.frames, float(rate))
