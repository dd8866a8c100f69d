"""`OutputRing`: the worker's hold on the output ring: where its memory is, and whether the device
copies straight into it.

The pages are made near the device, if its place is known, and registered with it, so that a copy is
one DMA transfer. Where that is refused, copies take a way round, and say so in the statistics.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ..ipc_ext import Segment
from .numa import on_cpus
from .platform import HostMemoryError, Platform

logger = logging.getLogger("sidestream")


class OutputRing:
    """Opens the output ring of a segment, and closes it.

    Args:
      segment: the worker's end of it.
      platform: of the device that outputs come from.
    """

    def __init__(self, segment: Segment, platform: Platform) -> None:
        self._segment = segment
        self._platform = platform
        self._address = segment.outputs.address
        self._registered = False
        self._refusal: str | None = None
        self._near = False
        self._prefault_s = 0.0
        self._register_s = 0.0

    def open(self, nbytes: int) -> None:
        """Let the ring have so much memory; may be repeated with more while no copy is under way.

        Raises:
          MemoryError: there is not so much.
        """
        self.close()
        start = time.monotonic()
        self._near = False
        with on_cpus(self._platform.near_cpus()) as self._near:
            try:
                self._segment.open_outputs(nbytes)
            except OSError as error:
                raise MemoryError(
                    f"output_ring_bytes: {nbytes} bytes of shared memory cannot be had: {error}"
                ) from error
        opened = time.monotonic()
        self._register()
        self._prefault_s, self._register_s = opened - start, time.monotonic() - opened

    def _register(self) -> None:
        self._refusal = None
        try:
            self._registered = self._platform.register_host_memory(
                self._address, self._segment.outputs.capacity
            )
        except HostMemoryError as error:
            self._refusal = str(error)
            logger.warning(
                "the output ring cannot be registered with %s: %s."
                " Outputs are copied by way of a buffer, which takes longer",
                self._platform.device,
                error,
            )

    def close(self) -> None:
        """Take the registration back."""
        if self._registered:
            self._platform.unregister_host_memory(self._address)
            self._registered = False

    def statistics(self) -> dict[str, Any]:
        """Return what the ring is and what its start-up took, s."""
        return {
            "output_ring_bytes": self._segment.outputs.capacity,
            "output_ring_registered": self._registered,
            "output_ring_refusal": self._refusal,
            "output_ring_near_device": self._near,
            "output_ring_prefault_s": self._prefault_s,
            "output_ring_register_s": self._register_s,
        }
