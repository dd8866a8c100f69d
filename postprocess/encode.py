"""Pictures as files in memory: PNG, JPEG, WebP; all but fast PNGs by way of Pillow."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from .options import FAST_LEVEL, PostprocessOptions
from .png import encode_png

Samples = npt.NDArray[np.uint8]


def to_pil(samples: Samples) -> Image.Image:
    """Make a PIL image.

    Args:
        samples: (H, W, C), uint8; C is 1 (mode "L"), 3 ("RGB") or 4 ("RGBA").
    """
    return Image.fromarray(samples[..., 0] if samples.shape[-1] == 1 else samples)


def encode(samples: Samples, output_type: str, options: PostprocessOptions) -> bytes:
    """Encode a picture.

    Args:
        samples: (H, W, C), uint8; C is 1, 3 or 4. JPEG drops the fourth.
        output_type: "png", "jpeg" or "webp".
        options: Quality and effort.

    Raises:
        ValueError: The picture is larger than the format allows.
    """
    if output_type == "png" and options.compress_level == FAST_LEVEL and samples.size:
        return encode_png(samples)
    image = to_pil(samples)
    if output_type == "jpeg" and image.mode == "RGBA":
        image = image.convert("RGB")
    file = io.BytesIO()
    try:
        image.save(file, output_type, **_arguments(output_type, options))
    except (OSError, ValueError) as error:  # Pillow's word for: too many pixels for this format
        raise ValueError(
            f"cannot encode {image.width}x{image.height} as {output_type}: {error}"
        ) from error
    return file.getvalue()


def _arguments(output_type: str, options: PostprocessOptions) -> dict[str, Any]:
    if output_type == "png":
        return {"compress_level": options.compress_level}
    if output_type == "jpeg":
        return {"quality": options.quality}
    return {"quality": options.quality, "lossless": options.lossless}
