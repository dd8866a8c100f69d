"""PNG files, written fast: every row is filtered by the one above it, and deflated once, lightly.

Trying all five filters for each row, as libraries do, takes most of their time, and saves little on
pictures that a model makes.
"""

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from isal import isal_zlib
except ImportError:  # there is no build of it for this processor
    isal_zlib = None  # type: ignore[assignment]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOR_TYPES = {1: 0, 3: 2, 4: 6}
"""Of a number of channels (PNG specification, 11.2.1)."""
UP = 2
"""The filter that takes the difference to the row above (9.2)."""
STRIPE = 1 << 18
"""Bytes that are filtered at a time: few enough for a core's cache, and for the interpreter's lock,
which copying them into the file takes."""


def encode_png(samples: npt.NDArray[np.uint8]) -> bytes:
    """Encode a picture, losslessly.

    Args:
        samples: (H, W, C), uint8; C is 1, 3 or 4.

    Returns:
        The file. Its bytes depend on which deflate is installed; its samples do not.
    """
    height, width, channels = samples.shape
    file = io.BytesIO()
    file.write(SIGNATURE)
    header = struct.pack(">IIBBBBB", width, height, 8, COLOR_TYPES[channels], 0, 0, 0)
    _write_chunk(file, b"IHDR", header)
    deflate = _deflate()
    above = np.zeros((1, width * channels), np.uint8)
    rows = max(1, STRIPE // (width * channels))
    for top in range(0, height, rows):
        stripe = samples[top : top + rows].reshape(-1, width * channels)
        if data := deflate.compress(_filtered(stripe, above)):
            _write_chunk(file, b"IDAT", data)
        above = stripe[-1:]
    _write_chunk(file, b"IDAT", deflate.flush())
    _write_chunk(file, b"IEND", b"")
    return file.getvalue()


def _deflate() -> Any:
    """Return a compressor; both kinds let other threads run while they work."""
    return zlib.compressobj(1) if isal_zlib is None else isal_zlib.compressobj(1)


def _filtered(rows: npt.NDArray[np.uint8], above: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return rows as differences to the row above each, and in front of each the filter's number.

    Args:
        rows: (N, B), uint8.
        above: (1, B), uint8: the row above the first.
    """
    filtered = np.empty((rows.shape[0], rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = UP
    np.subtract(rows[:1], above, out=filtered[:1, 1:])
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    return filtered


def _write_chunk(file: io.BytesIO, kind: bytes, data: bytes) -> None:
    file.write(struct.pack(">I", len(data)) + kind)
    file.write(data)
    file.write(struct.pack(">I", zlib.crc32(data, zlib.crc32(kind))))
