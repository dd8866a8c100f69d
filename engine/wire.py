"""Between claims and messages: what is sent of a request, and what a message means for it."""

from __future__ import annotations

from ..ipc_ext.messages import (
    AsyncDiffusionOutput,
    AsyncOutputKind,
    NewRequestData,
    RemoteError,
)
from .claims import ClaimEvent, ProtocolError
from .delivery import Claim
from .errors import ExecutionError, RequestAborted
from .trace import Outcome


def event_of(message: AsyncDiffusionOutput) -> ClaimEvent:
    """Tell what a message says of its claim.

    Raises:
      ProtocolError: it is not about one.
    """
    match message.kind:
        case AsyncOutputKind.COMPUTE_DONE:
            return ClaimEvent.COMPUTE_DONE if message.error is None else ClaimEvent.COMPUTE_FAILED
        case AsyncOutputKind.OUTPUT_READY:
            return ClaimEvent.OUTPUT_READY if message.final else ClaimEvent.OUTPUT_PART
        case AsyncOutputKind.PREVIEW:
            return ClaimEvent.PREVIEW
        case AsyncOutputKind.CHUNK:
            return ClaimEvent.CHUNK
        case AsyncOutputKind.PROGRESS:
            return ClaimEvent.PROGRESS
        case _:
            raise ProtocolError(f"{message.kind.name} is not about a request")


def outcome_of(claim: Claim) -> Outcome:
    """Tell what a caller who leaves has got."""
    mailbox = claim.mailbox
    if mailbox.error is not None and not isinstance(mailbox.error, RequestAborted):
        return "failed"
    return "completed" if mailbox.collected else "aborted"


def as_exception(error: RemoteError, claim: Claim) -> BaseException:
    """Make the error that a caller gets of what a worker tells."""
    if error.aborted:
        return RequestAborted(f"request {claim.request_id!r} was aborted")
    return ExecutionError(error.type, error.text)


def wire(claim: Claim) -> NewRequestData:
    """Make what a worker is told of a request that it is given."""
    prepared = claim.prepared
    return NewRequestData(
        request_id=claim.request_id,
        async_output_id=claim.async_output_id,
        cancel_slot=claim.cancel_slot,
        call=prepared.call,
        seeds=prepared.seeds,
        output_type=prepared.request.sampling.output_type,
        preview_steps=prepared.request.sampling.preview_steps,
        preview_every=prepared.request.sampling.preview_every,
        chunks=prepared.chunks,
        lora=prepared.request.sampling.lora,
    )
