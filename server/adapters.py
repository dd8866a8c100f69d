"""The field `lora`: which adapters are at work in a request, and how strong each is."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from ..engine.request import SCALE_LIMIT

Scale = Annotated[float, Field(strict=True, ge=-SCALE_LIMIT, le=SCALE_LIMIT, allow_inf_nan=False)]


def _with_scales(value: Any) -> Any:
    """Give names that come without a scale the scale 1; read what a form has as text."""
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith("{"):
            return {text: 1.0} if text else {}
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("must be the name of an adapter, or an object in JSON") from None
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return dict.fromkeys(value, 1.0)
    return value


_SCALES = {
    "type": "object",
    "additionalProperties": {"type": "number", "minimum": -SCALE_LIMIT, "maximum": SCALE_LIMIT},
}
Lora = Annotated[
    dict[str, Scale],
    BeforeValidator(_with_scales),
    WithJsonSchema(
        {"anyOf": [_SCALES, {"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
    ),
]
