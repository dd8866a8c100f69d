"""How large a worker's output ring is: as configured, or as the model's largest output wants it.

With "auto" a ring begins small, which is enough for anything, since what is too large for it
travels in pieces. Once the warm-up has shown what the model makes, the ring grows to what keeps
that fast: the outputs that may be on their way at a time fit into half of it, which is what may be
used before results are copied out. Large outputs are rare, and memory takes its time to get: of
those only a few are to fit.
"""

from __future__ import annotations

import logging

from .config import MEBIBYTE, EngineConfig
from .errors import StartupError
from .memory import allowed_addresses, allowed_file

START = 64 * MEBIBYTE
"""What "auto" begins with, and the least that it chooses."""
UNKNOWN = 256 * MEBIBYTE
"""What it chooses if nobody knows what the model makes: without a warm-up."""
GENEROUS = 512 * MEBIBYTE
"""What it chooses at most for having room for all outputs that may be on their way."""
FEW = 4
"""So many outputs fit into half of the ring, however large they are."""
CEILING = 4096 * MEBIBYTE
"""The most that it chooses, which takes seconds at start-up."""
SHARE = 4
"""It takes at most one part in so many of the memory that is free, for all workers together."""
WHOLE = 4
"""An output that has at most one part in so many of the ring is read where it lies; see
`PayloadRing.chunk_bytes`."""

logger = logging.getLogger("sidestream")


def limit_of(config: EngineConfig, available: int) -> int:
    """Return the bytes that each worker's ring may come to have.

    Args:
      config: what is wanted.
      available: bytes of memory that can be had.

    Raises:
      StartupError: the rings that are configured need more.
    """
    wanted, workers = config.output_ring_bytes, config.num_workers
    if wanted == "auto":
        shares = (available // (SHARE * workers), allowed_addresses() // (SHARE * workers))
        # A segment is one file, with the other rings in it.
        return max(START, min(CEILING, *shares, allowed_file() // 2))
    if wanted * workers > available:
        rings = "a ring" if workers == 1 else f"{workers} rings"
        raise StartupError(
            f"output_ring_bytes: {rings} of {_told(wanted)} need more memory than there is"
            f" ({_told(available)} can be had); 'auto' takes what is there"
        )
    return wanted


def start_of(config: EngineConfig) -> int:
    """Return the bytes that a ring begins with."""
    return START if config.output_ring_bytes == "auto" else config.output_ring_bytes


def fitting(config: EngineConfig, largest: int, limit: int) -> int:
    """Return the bytes that a ring should have; what it begins with if that is configured.

    Args:
      config: says what may be on its way at a time.
      largest: bytes of the largest output that the warm-up has seen; 0: there was none.
      limit: the most that the ring can have.
    """
    size = start_of(config)
    if config.output_ring_bytes == "auto":
        together = max(config.max_pending_outputs, config.dispatch_depth * config.max_num_seqs)
        wanted = max(min(2 * together * largest, GENEROUS), 2 * FEW * largest)
        size = min(max(size, wanted if largest else UNKNOWN), limit)
    if WHOLE * largest > size:
        logger.warning(
            "outputs of %s travel in pieces and are copied once more: the output ring has %s;"
            " output_ring_bytes=%d would carry them whole",
            _told(largest),
            _told(size),
            WHOLE * largest,
        )
    return size


def _told(nbytes: int) -> str:
    gibibyte = 1024 * MEBIBYTE
    if nbytes >= gibibyte:
        return f"{nbytes / gibibyte:.1f} GiB"
    return f"{nbytes / MEBIBYTE:.1f} MiB"
