"""Which sizes a pipeline refuses."""

import inspect
import math
import re
from typing import Any

from .asking import is_of_diffusers, refusal_of

_PRIME = 1021
"""A side that is a multiple of nothing that matters."""
_ROUNDS = 4
_RULE = re.compile(r"(?:height|width)\b[^.]*\bdivisible by (\d+)", re.IGNORECASE)


def size_multiple(pipeline: Any) -> int:
    """Return what height and width have to be multiples of, 1 where that is not known.

    Neither the VAE's scale factor nor a signature tells: patches count too, and many pipelines
    round what they are given. So they are asked (`refusal_of`).

    Args:
        pipeline: Not changed.
    """
    if not is_of_diffusers(pipeline) or not {"prompt", "height", "width"} <= _arguments(pipeline):
        return 1
    multiple = 1
    for _ in range(_ROUNDS):
        side = _PRIME * multiple
        rule = _RULE.search(refusal_of(pipeline, prompt="a", height=side, width=side))
        if rule is None:
            break
        multiple = math.lcm(multiple, int(rule[1]))
    return multiple


def smallest_side(pipeline: Any) -> int:
    """Return the least height and width of which something is left when a pipeline has rounded them
    down to what its VAE and the patches of its transformer can have, 1 where that is not known.

    Args:
        pipeline: Not changed.
    """
    scale = getattr(pipeline, "vae_scale_factor", None)
    if not is_of_diffusers(pipeline) or type(scale) is not int:
        return 1
    names = _arguments(pipeline)
    if not {"height", "width"} <= names or "use_resolution_binning" in names:  # to those it knows
        return 1
    return scale * (2 if hasattr(pipeline, "transformer") else 1)


def _arguments(pipeline: Any) -> frozenset[str]:
    return frozenset(inspect.signature(type(pipeline).__call__).parameters)
