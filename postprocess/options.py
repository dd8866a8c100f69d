"""What a caller can ask for: output types, and the options of the encoders."""

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

ENCODED_TYPES = ("png", "jpeg", "webp")
PICTURE_TYPES = ("pil", *ENCODED_TYPES)
VIDEO_TYPE = "mp4"
QUANTIZED_TYPES = (*PICTURE_TYPES, "uint8", VIDEO_TYPE)
"""Types made of 8-bit samples; for these the device sends 8-bit samples."""
OUTPUT_TYPES = (*PICTURE_TYPES, "uint8", "np", "pt", "latent", "raw", VIDEO_TYPE)
"""All output types:

* ``"pil"``: PIL image;
* ``"png"``, ``"jpeg"``, ``"webp"``: bytes of a file;
* ``"uint8"``: numpy array (H, W, C), 0..255;
* ``"np"``: numpy array (H, W, C), float32, 0..1, as in diffusers;
* ``"pt"``: torch tensor (C, H, W), 0..1, in the pipeline's own float type;
* ``"latent"``: `HostTensor` of one output's latents;
* ``"raw"``: `HostTensor` of everything that the pipeline returned for the request;
* ``"mp4"``: bytes of a file with a whole video, see `encode_video`; needs ``sidestream[video]``.

For the types before "mp4", each video is a list of frames, if pictures are PIL images or bytes, and
an array with a first axis for the frames otherwise.
"""


FAST_LEVEL = 1
"""Level of PNG for which there is an encoder of our own."""


class PostprocessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the encoders.

    Args:
        quality: Of JPEG, WebP and MP4, 1..100.
        compress_level: Of PNG, 0..9. Level 1 takes less time than any other, 0 included (`png`); 6
            takes tens of times as long, for a file that is a few percent smaller.
        lossless: Whether WebP keeps every sample; `quality` is then the effort.
        fps: Frames per second of MP4, 1..120.

    Raises:
        ValueError: A value is out of range.
    """

    quality: int = 90
    compress_level: int = FAST_LEVEL
    lossless: bool = False
    fps: int = 16

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be 1 to 100, not {self.quality}")
        if not 0 <= self.compress_level <= 9:
            raise ValueError(f"compress_level must be 0 to 9, not {self.compress_level}")
        if not 1 <= self.fps <= 120:
            raise ValueError(f"fps must be 1 to 120, not {self.fps}")


OPTION_NAMES = PostprocessOptions.__struct_fields__


def check_output_options(
    output_type: str, options: PostprocessOptions | Mapping[str, Any] | None = None
) -> PostprocessOptions:
    """Check an output type and its options.

    Args:
        output_type: One of `OUTPUT_TYPES`.
        options: `PostprocessOptions`, or its fields by name; None: the defaults.

    Returns:
        The options.

    Raises:
        ValueError: No such output type or option, or a bad value; names the valid ones.
    """
    if output_type not in OUTPUT_TYPES:
        raise ValueError(f"unknown output type {output_type!r}; valid: {', '.join(OUTPUT_TYPES)}")
    if isinstance(options, PostprocessOptions):
        return options
    given = dict(options or {})
    for name in given:
        if name not in OPTION_NAMES:
            close = difflib.get_close_matches(str(name), OPTION_NAMES, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"unknown option {name!r}; {hint}valid: {', '.join(OPTION_NAMES)}")
    try:
        return msgspec.convert(given, PostprocessOptions)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
