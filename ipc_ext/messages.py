"""The envelopes that cross the rings: msgpack structs, tagged, unknown fields refused.

Engine to worker (`Message`): one `Configure`, then any number of `InputPart`, `Execute` (request
mode) or `ExecuteStep` (step mode), and `Rpc`, then `Stop`.
Worker to engine: frames of one or more `AsyncDiffusionOutput`, each routed by its `kind`. Messages
of one frame come together: one push, one wake-up.

Each dispatched request is known on the wire by its `async_output_id`: a 64-bit number that is never
used twice. It is the claim on the request's output and the ticket of its cancel flag.

The worker answers every request of an `Execute`, and every new one of an `ExecuteStep`, with
exactly one COMPUTE_DONE. If that carries no error, exactly one OUTPUT_READY with `final` set
follows or has already come; before it, pieces of large tensors arrive in OUTPUT_READY envelopes
whose `final` is false. Each `ExecuteStep` is answered by exactly one STEP_DONE, after the
COMPUTE_DONE of the requests that ended in it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from .payload_ring import Handle
from .tensors import TensorDescriptor

CALL_LIMIT = 65_536
"""Bytes that a request's plain arguments may take; arrays travel apart."""
ERROR_TEXT_LIMIT = 16_384
"""Characters of a remote traceback that travel; the end of a traceback says the most, so the end is
kept."""


class AsyncOutputKind(enum.Enum):
    """What an envelope from a worker says."""

    RPC_RESULT = "rpc_result"
    """The answer to `Configure` or `Rpc`, an error included."""
    COMPUTE_DONE = "compute_done"
    """The forward has ended; the device is free for the next request."""
    OUTPUT_READY = "output_ready"
    """Output bytes are in the output payload ring."""
    PROGRESS = "progress"
    """A denoising step was taken. May be dropped."""
    PREVIEW = "preview"
    """An intermediate picture. May be dropped."""
    CHUNK = "chunk"
    """A finished part of an output, such as the first frames of a video; the whole follows."""
    STEP_DONE = "step_done"
    """A tick has been executed: where its requests stand."""


class Envelope(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The strictness that all envelopes share."""


class TensorPiece(Envelope):
    """A contiguous run of bytes of one named tensor, lying in a payload ring."""

    name: str
    descriptor: TensorDescriptor
    handle: Handle
    at: int = 0
    """Where the piece starts in the tensor, bytes."""


class RemoteError(Envelope):
    """What went wrong in a worker."""

    type: str
    """The exception's class name."""
    text: str
    """The traceback, its last `ERROR_TEXT_LIMIT` characters."""
    aborted: bool = False
    """The request ended because its cancel flag was seen, not because anything failed."""
    fatal: bool = False
    """The device context is poisoned: nothing more can run in this worker."""


class Timings(Envelope):
    """When a request's phases took place: nanoseconds of CLOCK_MONOTONIC, which all processes of a
    machine share."""

    forward_start: int = 0
    forward_end: int = 0
    copy_start: int = 0
    copy_end: int = 0


class StepProgress(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a request stands after a tick."""

    async_output_id: int
    step: int
    """Denoising steps taken."""
    total: int | None
    """Steps to take, None while that is not known."""


class AsyncDiffusionOutput(Envelope):
    """One message from a worker; `kind` says which fields are set."""

    kind: AsyncOutputKind
    rpc_id: int | None = None
    async_output_id: int | None = None
    result: Any = None
    output: tuple[TensorPiece, ...] = ()
    final: bool = True
    error: RemoteError | None = None
    step: int = 0
    """Denoising steps taken; of a CHUNK its index, from 0."""
    total: int | None = None
    progress: tuple[StepProgress, ...] = ()
    """Of a STEP_DONE: the requests that the tick named and that go on."""
    timings: Timings | None = None


class Configure(Envelope, tag=True):
    """The first message: what to load. Answered by an RPC_RESULT with `rpc_id` 0 that carries the
    capabilities."""

    model: str
    model_options: dict[str, Any]
    device: str
    dtype: str | None
    worker_index: int
    max_pending_outputs: int
    output_ring_bytes: int
    """What the output ring has at first; see `Segment.open_outputs`."""
    mode: Literal["request", "step"]
    merge: bool
    device_stage: bool
    graph_budget: int | None
    """Bytes of device memory for recorded component calls; 0: none; None: the worker decides."""
    lora: dict[str, str] = {}
    """Adapters to load beside the model: names, and where each is."""
    compile: Literal["off", "blocks", "whole"] = "off"


Form = Literal["torch", "numpy", "pil"]
"""What a pipeline can be handed as an array."""


class InputPart(Envelope, tag=True):
    """A piece of an input tensor, sent ahead of the `Execute` that uses it."""

    async_output_id: int
    piece: TensorPiece
    """Its name is that of the pipeline's argument, or ``argument.index`` for an item of a list."""
    form: Form = "torch"
    """What the pipeline is to receive."""


class NewRequestData(Envelope):
    """A request as a worker sees it."""

    request_id: str
    async_output_id: int
    cancel_slot: int
    call: dict[str, Any]
    """Arguments for the pipeline that are plain data; tensors came ahead as `InputPart`."""
    seeds: tuple[int, ...]
    """One for each output of the request."""
    output_type: str
    preview_steps: int = 0
    """How many previews are wanted, evenly spaced over the steps."""
    preview_every: int = 0
    """After every how many steps a preview is wanted."""
    chunks: bool = False
    """Whether finished parts are wanted as they come."""
    lora: dict[str, float] = {}
    """Adapters that are at work in it, with their scales."""


class Execute(Envelope, tag=True):
    """Run one wave of requests to completion."""

    requests: tuple[NewRequestData, ...]


class ExecuteStep(Envelope, tag=True):
    """Take new requests on, and advance the named ones by one denoising step each (a tick).

    A request that is not named, and has not ended, is kept where it is. One whose cancel flag is up
    ends, whether it is named or not.
    """

    new: tuple[NewRequestData, ...] = ()
    scheduled: tuple[int, ...] = ()
    """`async_output_id` of each request to advance, new ones among them; those that have ended in
    the meantime are passed over."""


class Rpc(Envelope, tag=True):
    """Call an exposed method of the worker; answered by an RPC_RESULT."""

    rpc_id: int
    method: str
    args: list[Any] = []


class Stop(Envelope, tag=True):
    """Finish what is queued, then leave."""


Message = Configure | InputPart | Execute | ExecuteStep | Rpc | Stop


def _codec(type_: Any) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    return msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(type_).decode


encode_message: Callable[[Message], bytes]
decode_message: Callable[[bytes], Message]
encode_outputs: Callable[[Sequence[AsyncDiffusionOutput]], bytes]
decode_outputs: Callable[[bytes], list[AsyncDiffusionOutput]]

encode_message, decode_message = _codec(Message)
encode_outputs, decode_outputs = _codec(list[AsyncDiffusionOutput])
