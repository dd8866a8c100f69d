"""Pictures that clients send, decoded within limits and off the event loop."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import trio
from fastapi import UploadFile
from PIL import Image, ImageOps

from .errors import ApiError
from .input_bytes import InputShare

FORMATS = ("PNG", "JPEG", "WEBP")
BYTES_OF_PIXEL = 7
"""Four in Pillow's memory, and three in the engine's copy, until it is in the worker's ring."""
_DECODING = trio.CapacityLimiter(2)
"""Pictures that are decoded at a time: each takes some bytes for every pixel."""
_NOT_DECODABLE = (OSError, ValueError, SyntaxError, KeyError, TypeError, IndexError, struct.error)
"""What Pillow raises for files that are damaged, or made to be."""


async def read_picture(
    file: UploadFile,
    name: str,
    max_pixels: int,
    share: InputShare,
    finish: Callable[[Image.Image], Image.Image],
) -> Image.Image:
    """Decode an uploaded file.

    Args:
      file: as it came.
      name: of its field.
      max_pixels: width x height; refused before it is decoded.
      share: keeps it; without room there, it is not decoded either.
      finish: makes of it what is wanted.

    Raises:
      ApiError: it is no picture of a format that is read here, damaged, or too large, or there is
        no room for it now.
    """
    data = await file.read()

    def take(pixels: int) -> None:
        trio.from_thread.run_sync(share.take, kept_bytes(pixels))

    def decoded() -> Image.Image:
        return finish(decode(data, name, max_pixels, take))

    return await trio.to_thread.run_sync(decoded, limiter=_DECODING)


def kept_bytes(pixels: int) -> int:
    """Return what a picture takes until its request has ended."""
    return BYTES_OF_PIXEL * pixels


def decode(data: bytes, name: str, max_pixels: int, take: Callable[[int], None]) -> Image.Image:
    """Decode a picture, upright; see `read_picture`.

    Args:
      data: the file.
      name: of its field.
      max_pixels: width x height.
      take: called with its pixels before it is decoded; may raise.
    """
    too_large = ApiError(
        413, f"{name}: a picture may have {max_pixels} pixels", code="too_large", param=name
    )
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise too_large
            take(image.width * image.height)
            image.load()
            return ImageOps.exif_transpose(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise too_large from None
    except _NOT_DECODABLE as error:
        raise ApiError(
            400,
            f"{name}: no picture that can be read; valid are PNG, JPEG and WebP",
            code="invalid_image",
            param=name,
        ) from error


def opaque(picture: Image.Image) -> Image.Image:
    """Return a picture as RGB."""
    return picture.convert("RGB")


def repaint_mask(mask: Image.Image) -> Image.Image:
    """Return what diffusers takes for a mask: white where the picture is to be painted anew.

    In the OpenAI API that is where the mask is transparent; a mask without transparency is taken as
    it is.
    """
    if mask.has_transparency_data:
        return ImageOps.invert(mask.convert("RGBA").getchannel("A"))
    return mask.convert("L")
