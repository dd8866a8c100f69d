"""`Postprocessor`: the two stages that every output passes, and its kinds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..ipc_ext.tensors import HostTensor
from .device import denormalize, quantize
from .encode import encode, to_pil
from .options import (
    ENCODED_TYPES,
    PICTURE_TYPES,
    QUANTIZED_TYPES,
    VIDEO_TYPE,
    PostprocessOptions,
    check_output_options,
)
from .video import encode_video

if TYPE_CHECKING:
    import torch

DeviceTensors = dict[str, "torch.Tensor"]
HostTensors = dict[str, HostTensor]
Options = PostprocessOptions | Mapping[str, Any] | None

MEDIA = ("images", "frames", "latents")
"""Names under which pipelines return what was asked for; other tensors are beside the point."""


class Postprocessor:
    """Pictures and videos in [0, 1], as almost every pipeline returns for ``output_type="pt"``.

    The rank tells them apart: (n, C, H, W) are pictures, (n, F, C, H, W) videos of F frames.
    A subclass changes a stage; see `register_postprocessor`.
    """

    def device_stage(self, tensors: DeviceTensors, output_type: str) -> DeviceTensors:
        """Prepare tensors for the copy to the host: 8-bit samples where those are wanted.

        Args:
            tensors: By name, on the device, as the pipeline returned them.
            output_type: One of `OUTPUT_TYPES`.

        Returns:
            Contiguous tensors: pictures as (n, H, W, C) bytes for the types of 8-bit samples,
            otherwise everything as it is.

        Raises:
            ValueError: 8-bit samples are wanted and there is no picture.
        """
        if output_type == "raw":
            return {name: tensor.contiguous() for name, tensor in tensors.items()}
        name = media_name(tensors)
        tensor = tensors[name]
        if output_type != "latent":
            tensor = self.to_unit_range(tensor)
        if output_type in QUANTIZED_TYPES:
            tensor = quantize(tensor)
        return {name: tensor.contiguous()}

    def to_unit_range(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Map what the pipeline returns to [0, 1], on the device."""
        return tensor

    def host_stage(
        self, tensors: HostTensors, output_type: str, options: Options = None
    ) -> list[Any]:
        """Make what the caller asked for.

        Args:
            tensors: By name, as the device stage returned them. If it did not run, pictures may
                still be channels-first floats.
            output_type: One of `OUTPUT_TYPES`, which tells the types of the outputs.
            options: Of the encoder.

        Returns:
            One entry for each output; for "raw" one for each tensor.

        Raises:
            ValueError: No such type or option, or no picture to make it of.
        """
        chosen = check_output_options(output_type, options)
        if output_type == "raw":
            return list(tensors.values())
        tensor = tensors[media_name(tensors)]
        if output_type == "latent":
            return _rows(tensor)
        if output_type == "pt":
            return list(tensor.torch())
        if output_type == "np":
            return [np.ascontiguousarray(row, np.float32) for row in _channels_last(tensor.numpy())]
        return [_finish(row, output_type, chosen) for row in _samples(tensor)]

    def preview_stage(
        self, tensors: HostTensors, output_type: str, options: Options = None
    ) -> list[Any]:
        """Make a picture of a preview, the same for all pipelines.

        Args:
            tensors: One of any name: (H, W, 3), uint8.
            output_type: One of `OUTPUT_TYPES`, of the request.
            options: Of the encoder.

        Returns:
            One entry: a PIL image, the bytes of a file, or for all other types a numpy array.

        Raises:
            ValueError: No such type or option, or the tensor is no such picture.
        """
        chosen = check_output_options(output_type, options)
        (tensor,) = tensors.values()
        if tensor.dtype != "uint8" or len(tensor.shape) != 3 or tensor.shape[-1] != 3:
            raise ValueError(f"a tensor of shape {tensor.shape} and {tensor.dtype} is no preview")
        kind = output_type if output_type in PICTURE_TYPES else "uint8"
        return [_finish(tensor.numpy(), kind, chosen)]


class SignedPostprocessor(Postprocessor):
    """Pictures in [-1, 1]: pipelines that return what their decoder did."""

    def to_unit_range(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Denormalise."""
        return denormalize(tensor)


class RawPostprocessor(Postprocessor):
    """Tensors that are no pictures: whatever the type, they arrive as the pipeline returned them.

    Only for "uint8" is something done: values that stand for 0..255 are cast on the device, and
    channels moved last as for a picture where there are four dimensions or more.
    """

    def device_stage(self, tensors: DeviceTensors, output_type: str) -> DeviceTensors:
        """Cast for "uint8", else pass everything on."""
        if output_type != "uint8":
            return {name: tensor.contiguous() for name, tensor in tensors.items()}
        import torch

        cast = {name: tensor.to(torch.uint8) for name, tensor in tensors.items()}
        return {name: quantize(t) if t.ndim >= 4 else t.contiguous() for name, t in cast.items()}

    def host_stage(
        self, tensors: HostTensors, output_type: str, options: Options = None
    ) -> list[Any]:
        """Return the tensors: numpy arrays, one for each output, for "uint8", else `HostTensor`."""
        check_output_options(output_type, options)
        if output_type != "uint8":
            return list(tensors.values())
        return [row for tensor in tensors.values() for row in self._bytes(tensor)]

    @staticmethod
    def _bytes(tensor: HostTensor) -> npt.NDArray[np.uint8]:
        if tensor.dtype == "uint8":
            return tensor.numpy()
        array = tensor.numpy()  # the device stage is off
        return (_channels_last(array) if array.ndim >= 4 else array).astype(np.uint8)


def media_name(tensors: Mapping[str, Any]) -> str:
    """Return the name of the tensor that holds the pictures, videos or latents.

    Raises:
        ValueError: There is none.
    """
    for name in MEDIA:
        if name in tensors:
            return name
    raise ValueError(
        f"the pipeline returned {', '.join(tensors)}, neither images nor frames;"
        " ask for output type 'raw'"
    )


def _rows(tensor: HostTensor) -> list[HostTensor]:
    """Part a tensor along its first axis, in the same memory."""
    count, *shape = tensor.shape
    size = tensor.nbytes // count if count else 0
    return [
        HostTensor(tensor.buffer[i * size : (i + 1) * size], tensor.dtype, shape)
        for i in range(count)
    ]


def _channels_last(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.ndim < 4:
        raise ValueError(
            f"a tensor of shape {array.shape} holds no pictures; ask for output type 'raw'"
        )
    return np.moveaxis(array, -3, -1)


def _samples(tensor: HostTensor) -> npt.NDArray[np.uint8]:
    """Return (n, ..., H, W, C) bytes, quantised here if the device did not."""
    if tensor.dtype == "uint8":
        return tensor.numpy()
    array = _channels_last(tensor.numpy()).astype(np.float32)
    return (array * 255).round().clip(0, 255).astype(np.uint8)


def _finish(row: npt.NDArray[np.uint8], output_type: str, options: PostprocessOptions) -> Any:
    """Make one output of (H, W, C) or (F, H, W, C) bytes."""
    if output_type == "uint8":
        return row
    if output_type == VIDEO_TYPE:
        return encode_video(row, options)
    if row.ndim == 4:
        return [_finish(frame, output_type, options) for frame in row]
    return encode(row, output_type, options) if output_type in ENCODED_TYPES else to_pil(row)
