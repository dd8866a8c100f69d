"""Pictures from a pipeline whose start somebody may delay or prevent, by a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from painters import PaintingPipeline, painter

GATE = "SIDESTREAM_TEST_GATE"
"""Environment variable with the path of the file: while it is there nothing starts, and nothing
ever does if it is not empty."""


def guarded(device: str, **options: object) -> PaintingPipeline:
    """Make one; options are those of ``synthetic``."""
    gate = Path(os.environ[GATE])
    while gate.exists():
        if gate.read_text():
            raise RuntimeError("the weights are gone")
        time.sleep(0.01)
    return painter(device, **options)
