"""From a pipeline's tensors to pictures: a stage on the device, a stage on the host.

The device stage runs in the worker, on the side stream, and decides what is copied. The host stage
runs in the engine's process, off the event loop, and makes what the caller asked for. Neither knows
of processes or rings, and without a device stage nothing here imports torch.
"""

from .device import denormalize, quantize
from .encode import encode, to_pil
from .options import (
    OUTPUT_TYPES,
    QUANTIZED_TYPES,
    VIDEO_TYPE,
    PostprocessOptions,
    check_output_options,
)
from .postprocessor import Postprocessor, RawPostprocessor, SignedPostprocessor
from .registry import get_postprocessor, register_postprocessor
from .video import MISSING_PYAV, VideoInfo, encode_video, has_pyav, read_video_info

__all__ = [
    "MISSING_PYAV",
    "OUTPUT_TYPES",
    "QUANTIZED_TYPES",
    "VIDEO_TYPE",
    "PostprocessOptions",
    "Postprocessor",
    "RawPostprocessor",
    "SignedPostprocessor",
    "VideoInfo",
    "check_output_options",
    "denormalize",
    "encode",
    "encode_video",
    "get_postprocessor",
    "has_pyav",
    "quantize",
    "read_video_info",
    "register_postprocessor",
    "to_pil",
]
