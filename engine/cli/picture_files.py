"""Files for outputs: names that say what is inside, and never take an existing file's place."""

from __future__ import annotations

import io
import itertools
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...postprocess import PostprocessOptions, encode, to_pil

NAME_LIMIT = 60
"""Characters of a prompt that go into a name."""

Samples = npt.NDArray[np.uint8]


def slug(text: str) -> str:
    """Return what of a prompt can stand in a file's name: "A red circle!" -> "a-red-circle"."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", ascii_text.lower())
    return words[:NAME_LIMIT].strip("-") or "picture"


@dataclass(frozen=True)
class PictureFiles:
    """Writes pictures and videos into a folder.

    Args:
      folder: exists.
      file_format: "png", "jpeg", "webp" or "mp4". A video becomes one animated file, but for JPEG,
        which cannot hold one, a folder of frames. "mp4" is for videos that are encoded already.
      quality: of JPEG and WebP, 1..100.
      fps: frames per second of a video.
    """

    folder: Path
    file_format: str = "png"
    quality: int = 90
    fps: int = 16

    def save(self, samples: Samples | bytes, stem: str) -> Path:
        """Write one output and return where.

        Args:
          samples: (H, W, C) or, for a video, (F, H, W, C), uint8; or what is to be in the file.
          stem: the name; if it is taken, a number is added.

        Raises:
          OSError: it cannot be written.
          ValueError: it is no picture, or the format cannot hold it.
        """
        if isinstance(samples, bytes):
            return self._write(samples, stem)
        if samples.ndim not in (3, 4) or samples.shape[-1] not in (1, 3, 4) or 0 in samples.shape:
            raise ValueError(f"the model returned a tensor of shape {samples.shape}, no picture")
        if samples.ndim == 3:
            return self._write(self._encode(samples), stem)
        if self.file_format != "jpeg":
            return self._write(self._animate(samples), stem)
        return self._write_frames(samples, stem)

    def preview(self, stem: str) -> PreviewFile:
        """Return the file beside an output that shows what it may become."""
        return PreviewFile(self, stem)

    def _encode(self, samples: Samples) -> bytes:
        return encode(samples, self.file_format, PostprocessOptions(quality=self.quality))

    def _animate(self, video: Samples) -> bytes:
        first, *others = map(to_pil, video)
        settings: dict[str, Any] = {"quality": self.quality} if self.file_format == "webp" else {}
        file = io.BytesIO()
        first.save(
            file,
            self.file_format,
            save_all=True,
            append_images=others,
            duration=round(1000 / self.fps),
            **settings,
        )
        return file.getvalue()

    def _write(self, data: bytes, stem: str) -> Path:
        path = self.claim(stem, f".{self.file_format}", _create)
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink()
            raise
        return path

    def _write_frames(self, video: Samples, stem: str) -> Path:
        folder = self.claim(stem, "", Path.mkdir)
        for index, frame in enumerate(video):
            (folder / f"{index:05}.jpeg").write_bytes(self._encode(frame))
        return folder

    def claim(self, stem: str, suffix: str, create: Callable[[Path], None]) -> Path:
        """Create the first of stem, stem-2, stem-3... that nothing has, and return it."""
        for number in itertools.count(1):
            path = self.folder / (f"{stem}-{number}{suffix}" if number > 1 else stem + suffix)
            try:
                create(path)
            except FileExistsError:
                continue
            return path
        raise AssertionError("counting does not end")


class PreviewFile:
    """``STEM.preview.png``: replaced as better previews come, each time at once and as a whole.

    It is there from the first preview until the output is; if that never comes, it stays.

    Args:
      files: where it is.
      stem: of the output's name; a number is added if there is such a preview already.
    """

    def __init__(self, files: PictureFiles, stem: str) -> None:
        self._files = files
        self._stem = stem
        self._path: Path | None = None

    def show(self, samples: Samples) -> None:
        """Write a preview in place of the last one.

        Args:
          samples: (H, W, 3), uint8.

        Raises:
          OSError: it cannot be written.
        """
        if self._path is None:
            self._path = self._files.claim(self._stem, ".preview.png", _create)
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(encode(samples, "png", PostprocessOptions()))
            new.replace(self._path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def remove(self) -> None:
        """Take the preview away: the output is there."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def _create(path: Path) -> None:
    path.touch(exist_ok=False)
