"""`DiffusionWorker`: one device, one pipeline, and what turns messages into runs of it.

It sets the device up, loads the pipeline, owns the runner and the output thread, and reports each
request's two phases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from ..ipc_ext import Segment
from ..ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    Configure,
    Execute,
    InputPart,
    NewRequestData,
    RemoteError,
    StepProgress,
    Timings,
)
from ..postprocess import QUANTIZED_TYPES, get_postprocessor
from . import faults
from .async_output import AsyncOutputThread, Send
from .capabilities import CHUNK_ARGUMENT
from .inbox import Inbox
from .inputs import InputStore
from .model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from .models import load_pipeline
from .output_queue import PendingOutput
from .output_ring import OutputRing
from .outputs import owned
from .platform import Mark, platform_for
from .previews import Previewer, find_previewer
from .remote import ABORTED, as_remote, remote_error
from .ring_writer import Tensors
from .streams import Streams

_SET_HERE = ("generator", "output_type")
"""Arguments that each run gets from the worker, if the pipeline takes them."""
PROGRESS_NS = 1_000_000
"""Steps that take less are not all told: each would wake the engine up."""


class DiffusionWorker:
    """Loads what `configuration` names, and runs waves of requests on it.

    Args:
      configuration: from the engine.
      segment: the worker's end of it.
      send: how messages leave the worker, from any thread.
    """

    def __init__(self, configuration: Configure, segment: Segment, send: Send) -> None:
        self._control = segment.control
        self._send = send
        self._platform = platform_for(_resolved(configuration.device))
        device = str(self._platform.device)
        pipeline = load_pipeline(
            configuration.model,
            configuration.model_options,
            device=device,
            dtype=configuration.dtype,
            lora=configuration.lora,
            compiled=configuration.compile,
        )
        self._runner = DiffusionModelRunner(
            pipeline,
            self._platform,
            merge=configuration.merge,
            graph_budget=configuration.graph_budget,
        )
        self._capabilities = self._runner.capabilities()
        own_steps = configuration.mode == "step" and self._capabilities["step_protocol"]
        if own_steps and self._capabilities["lora"]:
            raise ValueError(
                "lora: in step mode, a pipeline that runs its own steps has no adapters"
            )
        self._defaults = dict(getattr(pipeline, "sidestream_defaults", None) or {})
        self._inputs = InputStore(segment.inputs, device)
        outputs = segment.outputs
        self._ring = OutputRing(segment, self._platform)
        self._ring.open(configuration.output_ring_bytes)
        self._output_thread = AsyncOutputThread(
            outputs,
            self._platform,
            self._device_stage(configuration),
            self._is_cancelled,
            send,
            configuration.max_pending_outputs,
        )
        self._step_reports = _Reports(self)
        self._streams = Streams(
            self._output_thread,
            self._platform,
            self._capabilities,
            self._find_previewer(pipeline, configuration),
            outputs.chunk_bytes,
        )
        self._exposed: dict[str, Callable[..., Any]] = {
            "runner_statistics": self._runner.statistics,
            "device_statistics": self._device_statistics,
            "open_output_ring": self._ring.open,
        }

    def __enter__(self) -> DiffusionWorker:
        self._output_thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._runner.abandon_steps()
        self._output_thread.close()
        self._ring.close()

    def capabilities(self) -> dict[str, Any]:
        """Tell what a request may and must say, and where it runs."""
        required = [name for name in self._capabilities["required"] if name not in _SET_HERE]
        device = str(self._platform.device)
        own = {"required": required, "device": device}
        return {**self._capabilities, **own, **self._streams.capabilities}

    def take_input(self, part: InputPart) -> None:
        """Keep a piece of an array for a request that comes later."""
        self._inputs.take(part)

    def call(self, method: str, *args: Any) -> Any:
        """Call an exposed method.

        Raises:
          ValueError: there is none of this name.
        """
        if method not in self._exposed:
            raise ValueError(f"no method {method!r}; there are {', '.join(self._exposed)}")
        self._runner.release_thread()
        return self._exposed[method](*args)

    def _device_statistics(self) -> dict[str, Any]:
        return {
            "device": str(self._platform.device),
            **self._ring.statistics(),
            **self._platform.memory_info(),
        }

    def execute_model_batch(self, requests: Sequence[NewRequestData], inbox: Inbox) -> None:
        """Run one wave to completion; phases are reported as they end.

        Args:
          requests: the wave.
          inbox: the next one is taken from there while this one waits for the device.
        """
        faults.point("executing")
        reports = _Reports(self)
        upcoming = _Upcoming(self, inbox, reports)
        self._runner.execute_model_batch(reports.follow(requests), reports, upcoming)

    def execute_stepwise(self, new: Sequence[NewRequestData], scheduled: Sequence[int]) -> None:
        """Run one tick: take requests on, and advance those scheduled by one denoising step."""
        faults.point("executing")
        reports = self._step_reports
        started = reports.follow(new)
        names = [name for id_ in scheduled if (name := reports.name_of(id_)) is not None]
        taken = self._runner.execute_stepwise(started, names, reports)
        progress = tuple(
            StepProgress(reports.id_of(request_id), step, total)
            for request_id, step, total in taken
        )
        self._send(AsyncDiffusionOutput(AsyncOutputKind.STEP_DONE, progress=progress))
        faults.point("step_done")

    def _runnable(self, request: NewRequestData) -> RunnerRequest:
        accepted = self._capabilities["arguments"]
        kwargs = {**self._defaults, **request.call, **self._inputs.claim(request.async_output_id)}
        if "generator" in accepted:
            generators = [torch.Generator("cpu").manual_seed(seed) for seed in request.seeds]
            kwargs["generator"] = generators if len(generators) > 1 else generators[0]
        if "output_type" in accepted:
            kwargs["output_type"] = "latent" if request.output_type == "latent" else "pt"
        if request.chunks and self._capabilities["chunks"]:
            kwargs[CHUNK_ARGUMENT] = self._streams.on_chunk(request)
        return RunnerRequest(
            request.request_id,
            kwargs,
            cancelled=lambda: self._is_cancelled(request),
            seed=request.seeds[0],
            tap=self._streams.tap(request, kwargs),
            lora=request.lora,
        )

    def _is_cancelled(self, request: NewRequestData) -> bool:
        return self._control.is_cancelled(request.cancel_slot, request.async_output_id)

    def _find_previewer(self, pipeline: Any, configuration: Configure) -> Previewer | None:
        """Look for one where it can be used: requests in lanes that go step by step."""
        if configuration.mode != "step" or self._capabilities["step_protocol"]:
            return None
        return find_previewer(pipeline)

    def _device_stage(self, configuration: Configure) -> Callable[[Tensors, str], Tensors]:
        stage = get_postprocessor(self._capabilities["pipeline"]).device_stage
        if configuration.device_stage:
            return stage
        # As floats: the host quantises them then.
        return lambda tensors, output_type: stage(
            tensors, "pt" if output_type in QUANTIZED_TYPES else output_type
        )


def _resolved(device: str) -> str:
    """Settle "auto" and "auto:N": CUDA where there is one."""
    name, colon, index = device.partition(":")
    if name != "auto":
        return device
    return f"cuda{colon}{index}" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, slots=True)
class _Upcoming:
    """The next wave, as it is in the inbox."""

    worker: DiffusionWorker
    inbox: Inbox
    reports: _Reports

    def is_there(self) -> bool:
        """Whether nothing comes before the next wave but arrays, which are taken in."""
        while isinstance(message := self.inbox.peek(), InputPart):
            self.worker.take_input(message)
            self.inbox.take()
        return isinstance(message, Execute)

    def take(self) -> Sequence[RunnerRequest]:
        """Take it out, and note that its forwards begin now."""
        message = self.inbox.take()
        assert isinstance(message, Execute)
        faults.point("executing")
        return self.reports.follow(message.requests)


@dataclass(slots=True)
class _Followed:
    """A request that runs, and what was told of it."""

    request: NewRequestData
    start: Mark
    told: int
    """When a step was told last, or the request began; ns of CLOCK_MONOTONIC."""
    untold: tuple[AsyncDiffusionOutput, ...] = ()
    """The latest step, if it was not told: it leaves with the request's end."""


class _Reports:
    """Hears what becomes of requests, on the runner's thread, and reports it."""

    def __init__(self, worker: DiffusionWorker) -> None:
        self._worker = worker
        self._requests: dict[str, _Followed] = {}
        self._names: dict[int, str] = {}

    def follow(self, requests: Sequence[NewRequestData]) -> list[RunnerRequest]:
        """Make requests runnable, and note that their forwards begin now."""
        if not requests:
            return []
        start = self._worker._platform.mark()
        for request in requests:
            self._requests[request.request_id] = _Followed(request, start, start.host_ns)
            self._names[request.async_output_id] = request.request_id
        return [self._worker._runnable(request) for request in requests]

    def name_of(self, async_output_id: int) -> str | None:
        """Return the request of an output id, None if it has ended."""
        return self._names.get(async_output_id)

    def id_of(self, request_id: str) -> int:
        """Return the output id of a request that has not ended."""
        return self._requests[request_id].request.async_output_id

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        followed = self._requests[request_id]
        message = AsyncDiffusionOutput(
            AsyncOutputKind.PROGRESS,
            async_output_id=followed.request.async_output_id,
            step=step,
            total=total,
        )
        now = time.monotonic_ns()
        if now - followed.told < PROGRESS_NS:
            followed.untold = (message,)
        else:
            followed.told, followed.untold = now, ()
            self._worker._send(message, droppable=True)

    def on_done(self, output: RunnerOutput) -> None:
        followed = self._requests.pop(output.request_id)
        request, start = followed.request, followed.start
        del self._names[request.async_output_id]
        worker = self._worker
        error = _error_of(output)
        if error is None:
            try:
                output.tensors = owned(output.tensors)
                made = worker._platform.mark()
            except Exception as lost:  # the device, by what it was given before
                error = remote_error(lost, fatal=worker._platform.is_fatal(lost))
        done = AsyncDiffusionOutput(
            AsyncOutputKind.COMPUTE_DONE, async_output_id=request.async_output_id, error=error
        )
        if error is None:
            faults.point("computed")
            end = made if output.waited is None else Mark(made.host_ns, output.waited)
            pending = PendingOutput(request, output.tensors, start, end, made.event)
            worker._output_thread.submit(pending, *followed.untold, done)
        else:
            worker._output_thread.withdraw(request)
            # No output follows that would tell.
            done.timings = Timings(forward_start=start.host_ns, forward_end=time.monotonic_ns())
            worker._send(*followed.untold, done)
        faults.point("compute_done")


def _error_of(output: RunnerOutput) -> RemoteError | None:
    if output.aborted:
        return ABORTED
    if output.error is None:
        return None
    return as_remote(output.error_type or "Exception", output.error, fatal=output.fatal)
