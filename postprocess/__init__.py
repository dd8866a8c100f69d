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
    PostprocessOptions,
    check_output_options,
)
from .postprocessor import Postprocessor, RawPostprocessor, SignedPostprocessor
from .registry import get_postprocessor, register_postprocessor

__all__ = [
    "OUTPUT_TYPES",
    "QUANTIZED_TYPES",
    "PostprocessOptions",
    "Postprocessor",
    "RawPostprocessor",
    "SignedPostprocessor",
    "check_output_options",
    "denormalize",
    "encode",
    "get_postprocessor",
    "quantize",
    "register_postprocessor",
    "to_pil",
]
