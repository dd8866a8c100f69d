"""Fault points: with ``SIDESTREAM_FAULT=POINT[:N]`` in its environment, a worker kills itself at a
step of the protocol.

For tests of what the engine does then. Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "attached",
    "configured",
    "loaded",
    "greeted",
    "executing",
    "computed",
    "compute_done",
    "reserved",
    "copied",
    "output_ready",
    "step_done",
    "stopping",
)
"""In the order in which a request's life passes them."""

_armed, _, _count = os.environ.get("SIDESTREAM_FAULT", "").partition(":")
_left = int(_count or 1)


def point(name: str) -> None:
    """Pass a fault point: the N-th pass of the armed one is the last."""
    global _left
    if name == _armed:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
