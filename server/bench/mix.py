"""`Kind`: a kind of request, and mixes of them: ``"steps=4:7, steps=40 size=256x256:3"``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .printable import printable

SHORT_NAMES = {
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "format": "output_format",
}
"""Names that `sidestream generate` has for fields of the API."""
DEEPEST = 64
"""Lists and objects in one another, in a field."""


@dataclass(frozen=True)
class Kind:
    """A kind of request.

    Args:
      name: how it was written, which is how reports call it.
      fields: of a request's body.
      weight: how often it comes, in proportion to the others'.
    """

    name: str = "requests"
    fields: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0


def parse_mix(text: str) -> list[Kind]:
    """Read a mix: kinds with commas between them, each ``NAME=VALUE ... [:WEIGHT]``.

    Raises:
      ValueError: it is none.
    """
    kinds = [_parse_kind(part.strip()) for part in text.split(",")]
    names = [kind.name for kind in kinds]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"'{printable(name)}' is there twice")
    if math.isinf(sum(kind.weight for kind in kinds)):
        raise ValueError("the sum of the weights is no finite number")
    return kinds


def _parse_kind(text: str) -> Kind:
    name, colon, weight = (part.strip() for part in text.rpartition(":"))
    if not colon:
        name, weight = text, "1"
    fields = dict(parse_field(word) for word in name.split())
    if not fields:
        raise ValueError(
            f"'{printable(text)}' is no kind of request; write NAME=VALUE NAME=VALUE:WEIGHT"
        )
    return Kind(name, fields, _parse_weight(weight))


def _parse_weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"'{printable(text)}' is no weight; it is a number above 0")
    return weight


def parse_field(text: str) -> tuple[str, Any]:
    """Read ``NAME=VALUE``: numbers, true and false are what they look like, all else is text.

    Raises:
      ValueError: there is no name, or no value, or JSON cannot hold it.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"'{printable(text)}' is not NAME=VALUE")
    try:
        read = _value(value)
        json.dumps({name: read}, allow_nan=False, ensure_ascii=False).encode()
        is_deep = _depth(read) > DEEPEST
    except RecursionError:
        is_deep = True
    except ValueError as error:
        raise ValueError(f"'{printable(text)}' cannot be sent as JSON in UTF-8") from error
    if is_deep:
        raise ValueError(f"'{printable(text)}' is nested more than {DEEPEST} deep")
    return SHORT_NAMES.get(name, name), read


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0
