"""The device stage: tensors on the device become what is worth copying to the host.

It runs in the worker, on the side stream, beside the next forward. Nothing here waits for the
device. torch is only used by way of the tensors' own methods, except for names of dtypes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CHANNELS = (1, 3, 4)


def denormalize(tensor: "torch.Tensor") -> "torch.Tensor":
    """Map [-1, 1], which decoders return, to [0, 1], as diffusers' ``VaeImageProcessor`` does.

    Args:
        tensor: Floats of any shape; the arithmetic is in their own type, as in diffusers.
    """
    return (tensor * 0.5 + 0.5).clamp(0, 1)


def quantize(tensor: "torch.Tensor") -> "torch.Tensor":
    """Turn channels-first floats in [0, 1] into channels-last bytes.

    The samples are exactly those of diffusers' ``pt_to_numpy`` and ``numpy_to_pil``: widened to
    float32, times 255, rounded half to even. Values outside [0, 1], which diffusers would let
    wrap around, are clamped.

    Args:
        tensor: (..., C, H, W) floats, or bytes, which are only rearranged. C is 1, 3 or 4.

    Returns:
        (..., H, W, C), uint8, contiguous.

    Raises:
        ValueError: The tensor does not hold pictures.
    """
    import torch

    if tensor.ndim < 3 or tensor.shape[-3] not in _CHANNELS:
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} holds no pictures (..., C, H, W);"
            " ask for output type 'raw'"
        )
    if tensor.dtype != torch.uint8:
        # The first product is a new tensor, the others reuse it.
        tensor = (tensor.float() * 255).round_().clamp_(0, 255).to(torch.uint8)
    return tensor.movedim(-3, -1).contiguous()
