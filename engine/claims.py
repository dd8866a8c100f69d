"""Everything that can happen to a request, as one table: states x events -> (state, effects).

Rule 1: whatever changes what a request is must be in `TABLE`. Rule 2: this file knows no Trio, no
clock, no rings. The engine looks a transition up and carries its effects out; `docs/claims.md` is
generated from the table.

A claim exists before its request is dispatched, so both orders of COMPUTE_DONE and OUTPUT_READY are
the same case. Two
parties hold a request: its caller, and the worker. LEAVE is the caller's one exit, whatever the
reason (cancelled scope, deadline, abort, consumer gone); from then on the claim only waits for the
worker to let go, takes what still arrives as bytes to free, and keeps the cancel flag's slot from
being given to somebody else.
"""

from __future__ import annotations

import enum


class ClaimState(enum.Enum):
    """Who holds the request, and which of its two phases are over."""

    QUEUED = "waiting in the scheduler; no worker has it"
    RUNNING = "dispatched; neither phase is over"
    COMPUTED = "COMPUTE_DONE came; the output is on its way"
    READY = "OUTPUT_READY came first; COMPUTE_DONE is on its way"
    LEFT_RUNNING = "the caller left; neither phase is over"
    LEFT_COMPUTED = "the caller left; the output is on its way"
    LEFT_READY = "the caller left; COMPUTE_DONE is on its way"
    CLOSED = "over"


class ClaimEvent(enum.Enum):
    """What can happen."""

    DISPATCH = "the scheduler put it in a wave"
    PROGRESS = "a denoising step was taken"
    PREVIEW = "an intermediate picture came"
    CHUNK = "a finished part of the output came, or a piece of one"
    OUTPUT_PART = "a piece of a large tensor came"
    COMPUTE_DONE = "the forward ended well"
    COMPUTE_FAILED = "the forward ended by an error or by the cancel flag; no output follows"
    OUTPUT_READY = "the output came, or its error"
    LEAVE = "the caller left"
    LOST = "the worker or the engine died"


class Effect(enum.Enum):
    """What the engine does about it."""

    START = "tell the caller that it runs"
    TELL = "tell the caller the step"
    SHOW = "show the caller the intermediate picture"
    PASS = "pass the finished part on to the caller"
    KEEP = "keep what came for the caller"
    DROP = "release the payload bytes that came, and those kept"
    FREE = "the worker's running slot is free"
    UNSCHEDULE = "the scheduler ends it as aborted"
    FLAG = "raise the cancel flag"
    DELIVER = "give the caller what was kept"
    FAIL = "give the caller the error"
    CLOSE = "remove the claim, free its cancel slot, answer who waits for the abort"


LEFT = (ClaimState.LEFT_RUNNING, ClaimState.LEFT_COMPUTED, ClaimState.LEFT_READY)
"""The states in which the caller has left and a worker still holds the request."""

_S, _E, _F = ClaimState, ClaimEvent, Effect
Transition = tuple[ClaimState, tuple[Effect, ...]]

TABLE: dict[ClaimState, dict[ClaimEvent, Transition]] = {
    _S.QUEUED: {
        _E.DISPATCH: (_S.RUNNING, (_F.START,)),
        _E.LEAVE: (_S.CLOSED, (_F.UNSCHEDULE, _F.CLOSE)),
        _E.LOST: (_S.CLOSED, (_F.UNSCHEDULE, _F.FAIL, _F.CLOSE)),
    },
    _S.RUNNING: {
        _E.PROGRESS: (_S.RUNNING, (_F.TELL,)),
        _E.PREVIEW: (_S.RUNNING, (_F.SHOW,)),
        _E.CHUNK: (_S.RUNNING, (_F.PASS,)),
        _E.OUTPUT_PART: (_S.RUNNING, (_F.KEEP,)),
        _E.COMPUTE_DONE: (_S.COMPUTED, (_F.FREE,)),
        _E.COMPUTE_FAILED: (_S.CLOSED, (_F.FREE, _F.DROP, _F.FAIL, _F.CLOSE)),
        _E.OUTPUT_READY: (_S.READY, (_F.KEEP,)),
        _E.LEAVE: (_S.LEFT_RUNNING, (_F.FLAG, _F.UNSCHEDULE, _F.DROP)),
        _E.LOST: (_S.CLOSED, (_F.FREE, _F.DROP, _F.FAIL, _F.CLOSE)),
    },
    _S.COMPUTED: {
        _E.PROGRESS: (_S.COMPUTED, ()),
        _E.PREVIEW: (_S.COMPUTED, (_F.SHOW,)),
        _E.CHUNK: (_S.COMPUTED, (_F.PASS,)),
        _E.OUTPUT_PART: (_S.COMPUTED, (_F.KEEP,)),
        _E.OUTPUT_READY: (_S.CLOSED, (_F.KEEP, _F.DELIVER, _F.CLOSE)),
        _E.LEAVE: (_S.LEFT_COMPUTED, (_F.FLAG, _F.DROP)),
        _E.LOST: (_S.CLOSED, (_F.DROP, _F.FAIL, _F.CLOSE)),
    },
    _S.READY: {
        _E.PROGRESS: (_S.READY, ()),
        _E.COMPUTE_DONE: (_S.CLOSED, (_F.FREE, _F.DELIVER, _F.CLOSE)),
        _E.LEAVE: (_S.LEFT_READY, (_F.FLAG, _F.UNSCHEDULE, _F.DROP)),
        _E.LOST: (_S.CLOSED, (_F.FREE, _F.DROP, _F.FAIL, _F.CLOSE)),
    },
    _S.LEFT_RUNNING: {
        _E.PROGRESS: (_S.LEFT_RUNNING, ()),
        _E.PREVIEW: (_S.LEFT_RUNNING, (_F.DROP,)),
        _E.CHUNK: (_S.LEFT_RUNNING, (_F.DROP,)),
        _E.OUTPUT_PART: (_S.LEFT_RUNNING, (_F.DROP,)),
        _E.COMPUTE_DONE: (_S.LEFT_COMPUTED, (_F.FREE,)),
        _E.COMPUTE_FAILED: (_S.CLOSED, (_F.FREE, _F.CLOSE)),
        _E.OUTPUT_READY: (_S.LEFT_READY, (_F.DROP,)),
        _E.LEAVE: (_S.LEFT_RUNNING, ()),
        _E.LOST: (_S.CLOSED, (_F.FREE, _F.CLOSE)),
    },
    _S.LEFT_COMPUTED: {
        _E.PROGRESS: (_S.LEFT_COMPUTED, ()),
        _E.PREVIEW: (_S.LEFT_COMPUTED, (_F.DROP,)),
        _E.CHUNK: (_S.LEFT_COMPUTED, (_F.DROP,)),
        _E.OUTPUT_PART: (_S.LEFT_COMPUTED, (_F.DROP,)),
        _E.OUTPUT_READY: (_S.CLOSED, (_F.DROP, _F.CLOSE)),
        _E.LEAVE: (_S.LEFT_COMPUTED, ()),
        _E.LOST: (_S.CLOSED, (_F.CLOSE,)),
    },
    _S.LEFT_READY: {
        _E.PROGRESS: (_S.LEFT_READY, ()),
        _E.COMPUTE_DONE: (_S.CLOSED, (_F.FREE, _F.CLOSE)),
        _E.LEAVE: (_S.LEFT_READY, ()),
        _E.LOST: (_S.CLOSED, (_F.FREE, _F.CLOSE)),
    },
    _S.CLOSED: {
        _E.LEAVE: (_S.CLOSED, ()),
        _E.LOST: (_S.CLOSED, ()),
    },
}


class ProtocolError(Exception):
    """A worker said something that cannot follow what it said before."""


def transition(state: ClaimState, event: ClaimEvent) -> Transition:
    """Look up what an event does in a state.

    Raises:
      ProtocolError: the table has no such transition.
    """
    try:
        return TABLE[state][event]
    except KeyError:
        raise ProtocolError(f"{event.name} cannot follow in state {state.name}") from None


def mermaid() -> str:
    """Draw the table as a Mermaid state diagram, with one arrow for each pair of states."""
    lines = ["stateDiagram-v2", "    [*] --> QUEUED"]
    for state, row in TABLE.items():
        arrows: dict[ClaimState, list[str]] = {}
        for event, (target, effects) in row.items():
            if target is not state:
                arrows.setdefault(target, []).append(
                    event.name + (f" / {', '.join(e.name for e in effects)}" if effects else "")
                )
        lines += [
            f"    {state.name} --> {to.name}: {'<br>'.join(why)}" for to, why in arrows.items()
        ]
    lines.append("    CLOSED --> [*]")
    return "\n".join(lines)
