"""What the served model can be asked for, as its pipeline's signature tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Capabilities = Mapping[str, Any]
"""Of a pipeline; see `DiffusionEngine.capabilities`."""

EDIT_ARGUMENTS = {"image": "image", "mask": "mask_image", "strength": "strength"}
"""What pipelines call the fields that only edits have."""
_OF_A_PICTURE = ("strength", "mask_image")
"""Arguments that say what is to become of a picture, and mean nothing without one."""


def takes(capabilities: Capabilities, argument: str) -> bool:
    """Return whether the pipeline takes an argument."""
    return capabilities["accepts_any"] or argument in capabilities["arguments"]


def needs_picture(capabilities: Capabilities) -> bool:
    """Return whether it is certain that the pipeline makes nothing without a picture.

    Of others that take one, no signature tells: those that edit need it, and some that make
    pictures of texts take one besides.
    """
    arguments = capabilities["arguments"]
    if "image" not in arguments:
        return False
    if capabilities["media"] == "video":
        return bool(capabilities["from_image"]) and not capabilities.get("image_optional", False)
    return "image" in capabilities["required"] or any(name in arguments for name in _OF_A_PICTURE)
