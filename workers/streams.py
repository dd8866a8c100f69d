"""What a request tells before it ends: previews after some of its steps, and finished chunks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..ipc_ext.messages import NewRequestData
from .async_output import AsyncOutputThread
from .output_queue import PendingPreview
from .outputs import owned, tensors_of
from .platform import Platform
from .previews import LONGEST, Draw, Previewer, PreviewTap, is_preview_step

_SIZES = ("height", "width", "num_frames", "layers")
"""Arguments that say how a pipeline lays its latents out."""


class Streams:
    """Joins requests to the output thread.

    Args:
      output_thread: makes and sends what they tell.
      platform: of the device.
      capabilities: of the pipeline, see `capabilities_of`.
      previewer: None: no request has previews.
      room: bytes that a preview may have.
    """

    def __init__(
        self,
        output_thread: AsyncOutputThread,
        platform: Platform,
        capabilities: Mapping[str, Any],
        previewer: Previewer | None,
        room: int,
    ) -> None:
        self._output_thread = output_thread
        self._platform = platform
        self._previewer = previewer
        self._longest = min(LONGEST, math.isqrt(room // 3))
        sizes = {**capabilities["defaults"], **_given(capabilities)}
        self._sizes = {name: sizes[name] for name in _SIZES if name in sizes}
        self.capabilities = {"previews": previewer is not None, "chunks": capabilities["chunks"]}

    def tap(self, request: NewRequestData, call: Mapping[str, Any]) -> PreviewTap | None:
        """Return what is to watch a request's steps; None if no preview is wanted.

        Args:
          request: as it came.
          call: what the pipeline is called with.
        """
        if self._previewer is None or not (request.preview_steps or request.preview_every):
            return None
        sizes = {**self._sizes, **{name: call[name] for name in _SIZES if call.get(name)}}
        return PreviewTap(
            partial(is_preview_step, steps=request.preview_steps, every=request.preview_every),
            partial(self._previewer.draw, call=sizes, longest=self._longest),
            partial(self._offer, request),
        )

    def on_chunk(self, request: NewRequestData) -> Callable[[Any], None]:
        """Return what a pipeline is to call with each finished part of a request's output.

        It takes what a pipeline may return, and blocks while too much waits to be delivered.
        """
        indices = itertools.count()
        latent = request.output_type == "latent"

        def on_chunk(chunk: Any) -> None:
            tensors = owned(tensors_of(chunk, latent=latent))
            event = self._platform.record_device_event()
            self._output_thread.submit_chunk(request, next(indices), tensors, event)

        return on_chunk

    def _offer(self, request: NewRequestData, step: int, draw: Draw) -> None:
        event = self._platform.record_device_event()
        self._output_thread.submit_preview(PendingPreview(request, step, draw, event))


def _given(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {name: capabilities[name] for name in ("height", "width")}
    return {name: value for name, value in sizes.items() if value is not None}
