"""The table of `claims`, searched: every order in which honest parties can act, to its end."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from sidestream.engine.claims import (
    LEFT,
    TABLE,
    ClaimEvent as Event,
    ClaimState as State,
    Effect,
    ProtocolError,
    mermaid,
    transition,
)

OUTPUT = (Event.OUTPUT_PART, Event.OUTPUT_READY)
OUTCOME = (Effect.DELIVER, Effect.FAIL)
HELD = (State.RUNNING, State.COMPUTED, State.READY)
"""A worker has the request and its caller is there."""


class Step(NamedTuple):
    """A transition that was taken."""

    event: Event
    state: State
    effects: tuple[Effect, ...]


class Story(NamedTuple):
    """All that happened to a request."""

    steps: tuple[Step, ...]

    @property
    def events(self) -> list[Event]:
        return [step.event for step in self.steps]

    @property
    def effects(self) -> list[Effect]:
        return [effect for step in self.steps for effect in step.effects]

    @property
    def state(self) -> State:
        return self.steps[-1].state


# Each party acts in its own order; between them, any order is possible.
FORWARDS = [
    [(Event.COMPUTE_FAILED,)],
    [(Event.COMPUTE_DONE,), (Event.OUTPUT_READY,)],
    [(Event.COMPUTE_DONE,), (Event.OUTPUT_PART, Event.OUTPUT_PART, Event.OUTPUT_READY)],
    [(Event.COMPUTE_DONE,), (Event.PREVIEW, Event.CHUNK, Event.OUTPUT_READY)],
    [(Event.COMPUTE_FAILED,), (Event.PREVIEW, Event.CHUNK)],
]
PROGRESS = [[], [(Event.PROGRESS, Event.PROGRESS)]]
CALLERS = [[], [(Event.LEAVE,)], [(Event.LEAVE, Event.LEAVE)]]
ENGINES = [[], [(Event.LOST,)]]
CASTS = [
    [*forward, *progress, *caller, *engine]
    for forward, progress, caller, engine in itertools.product(FORWARDS, PROGRESS, CALLERS, ENGINES)
]
NEWS = {Event.PROGRESS, Event.PREVIEW, Event.CHUNK}
WORKERS_WORDS = {
    *NEWS,
    Event.OUTPUT_PART,
    Event.OUTPUT_READY,
    Event.COMPUTE_DONE,
    Event.COMPUTE_FAILED,
}


def interleavings(parties: list[tuple[Event, ...]]) -> Iterator[list[Event]]:
    """Yield every order that keeps each party's own."""
    if not parties:
        yield []
    for index, (first, *rest) in enumerate(parties):
        others = [*parties[:index], *([tuple(rest)] if rest else []), *parties[index + 1 :]]
        for order in interleavings(others):
            yield [first, *order]


def possible(order: list[Event], dispatched_at: int) -> list[Event]:
    """Put the dispatch into an order, and drop what cannot come: a worker says nothing before it
    was given the request, nor once it is lost; a request that was left before is never given."""
    before, after = order[:dispatched_at], order[dispatched_at:]
    if {Event.LEAVE, Event.LOST} & set(before):
        return [event for event in order if event not in WORKERS_WORDS]
    events = [*before, Event.DISPATCH, *after]
    if Event.LOST in events:
        lost = events.index(Event.LOST)
        events = [
            event for i, event in enumerate(events) if i <= lost or event not in WORKERS_WORDS
        ]
    return events


def all_orders() -> set[tuple[Event, ...]]:
    orders = set()
    for cast in CASTS:
        for order in interleavings(cast):
            for dispatched_at in range(len(order) + 1):
                if not WORKERS_WORDS & set(order[:dispatched_at]):
                    orders.add(tuple(possible(order, dispatched_at)))
    return orders


def tell(order: tuple[Event, ...]) -> Story:
    """Follow the table; a transition that it lacks fails the test."""
    steps = []
    state = State.QUEUED
    for event in order:
        if state is State.CLOSED and event in NEWS:
            continue  # the claim is gone: the ledger drops the message without asking the table
        state, effects = transition(state, event)
        steps.append(Step(event, state, effects))
    return Story(tuple(steps))


@pytest.fixture(scope="module")
def stories() -> list[Story]:
    """Everything that can happen to a request."""
    return [tell(order) for order in sorted(all_orders(), key=str)]


def test_the_search_reaches_the_whole_table(stories):
    taken = set()
    for story in stories:
        state = State.QUEUED
        for step in story.steps:
            taken.add((state, step.event))
            state = step.state
    assert taken == {(state, event) for state, row in TABLE.items() for event in row}
    assert len(stories) > 2000


def test_invariant_1_one_life_one_end(stories):
    """Every request ends, once, and its caller gets exactly one outcome or had left before it."""
    for story in stories:
        assert story.state is State.CLOSED
        assert story.effects.count(Effect.CLOSE) == 1
        closing = next(i for i, step in enumerate(story.steps) if Effect.CLOSE in step.effects)
        left = Event.LEAVE in story.events[: closing + 1]
        outcomes = [effect for effect in story.effects if effect in OUTCOME]
        assert len(outcomes) == (0 if left else 1)


def test_invariant_3_every_end_gives_everything_back(stories):
    for story in stories:
        count = Counter(story.effects)
        assert count[Effect.FREE] == (Event.DISPATCH in story.events)
        assert count[Effect.FLAG] <= 1
        assert count[Effect.UNSCHEDULE] <= 1
        # The scheduler's life ends with the caller's exit or with the forward, whichever is first.
        assert count[Effect.UNSCHEDULE] or count[Effect.FREE]


def test_all_bytes_are_delivered_or_dropped(stories):
    for story in stories:
        kept = False
        for step in story.steps:
            if step.event in OUTPUT:
                assert (Effect.KEEP in step.effects) != (Effect.DROP in step.effects)
            for effect in step.effects:
                if effect is Effect.KEEP:
                    kept = True
                elif effect in (Effect.DROP, Effect.DELIVER):
                    assert effect is Effect.DROP or kept
                    kept = False
        assert not kept


def test_a_result_is_delivered_as_soon_as_both_phases_are_over_whatever_their_order(stories):
    both = {Event.COMPUTE_DONE, Event.OUTPUT_READY}
    for story in stories:
        for index, step in enumerate(story.steps):
            so_far = set(story.events[: index + 1])
            completed = step.event in both and both <= so_far
            left = bool(so_far & {Event.LEAVE, Event.LOST})
            assert (Effect.DELIVER in step.effects) == (completed and not left)


def test_the_running_slot_is_free_when_the_forward_ends(stories):
    """Not when the output comes: that is the point of two phases."""
    for story in stories:
        for step in story.steps:
            if step.event in (Event.COMPUTE_DONE, Event.COMPUTE_FAILED):
                assert Effect.FREE in step.effects
            elif Effect.FREE in step.effects:
                assert step.event is Event.LOST


def test_after_the_caller_left_nothing_is_kept_and_nobody_told(stories):
    told = {Effect.KEEP, Effect.TELL, Effect.START, *OUTCOME}
    for story in stories:
        if Event.LEAVE in story.events:
            left = story.events.index(Event.LEAVE)
            assert not told & set(Story(story.steps[left:]).effects)


def test_the_flag_is_raised_when_a_caller_leaves_what_a_worker_holds(stories):
    for story in stories:
        for index, step in enumerate(story.steps):
            before = story.steps[index - 1].state if index else State.QUEUED
            holds = before in HELD
            assert (Effect.FLAG in step.effects) == (step.event is Event.LEAVE and holds)
            if step.event is Event.LEAVE and holds:
                assert step.state in LEFT


# -- the table itself


def test_a_closed_claim_only_takes_what_the_engine_itself_may_repeat():
    assert TABLE[State.CLOSED].keys() == {Event.LEAVE, Event.LOST}
    for target, effects in TABLE[State.CLOSED].values():
        assert (target, effects) == (State.CLOSED, ())


@pytest.mark.parametrize("event", [Event.LEAVE, Event.LOST])
def test_callers_may_leave_and_workers_die_in_any_state(event):
    for state in State:
        transition(state, event)


@pytest.mark.parametrize(
    ("state", "event"),
    [(state, event) for state in State for event in Event if event not in TABLE[state]],
    ids=lambda value: value.name,
)
def test_what_no_honest_worker_does_is_an_error(state, event):
    with pytest.raises(ProtocolError, match=f"{event.name} cannot follow in state {state.name}"):
        transition(state, event)


OCCASIONS = {
    Effect.START: lambda state, event: event is Event.DISPATCH,
    Effect.TELL: lambda state, event: event is Event.PROGRESS and state is State.RUNNING,
    Effect.KEEP: lambda state, event: event in OUTPUT and state in HELD,
    Effect.SHOW: lambda state, event: event is Event.PREVIEW and state in HELD[:2],
    Effect.PASS: lambda state, event: event is Event.CHUNK and state in HELD[:2],
    Effect.DROP: lambda state, event: (
        (event in OUTPUT and state in LEFT)
        or (event in (Event.PREVIEW, Event.CHUNK) and state in LEFT)
        or (event in (Event.COMPUTE_FAILED, Event.LEAVE, Event.LOST) and state in HELD)
    ),
    Effect.UNSCHEDULE: lambda state, event: (
        (event is Event.LEAVE and state in (State.QUEUED, State.RUNNING, State.READY))
        or (event is Event.LOST and state is State.QUEUED)
    ),
}


@pytest.mark.parametrize("effect", OCCASIONS, ids=lambda effect: effect.name)
def test_an_effect_has_its_occasions(effect):
    for state, row in TABLE.items():
        for event, (_, effects) in row.items():
            assert effects.count(effect) == OCCASIONS[effect](state, event), (state, event)


def test_closing_comes_last():
    for row in TABLE.values():
        for _, effects in row.values():
            assert Effect.CLOSE not in effects[:-1]


def test_everything_in_the_table_says_what_it_means():
    assert TABLE.keys() == set(State)
    used = {effect for row in TABLE.values() for _, effects in row.values() for effect in effects}
    assert used == set(Effect)
    for member in itertools.chain(State, Event, Effect):
        assert len(member.value) > 3


def test_the_diagram_has_every_change_of_state():
    lines = mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for state, row in TABLE.items():
        for event, (target, _) in row.items():
            start = f"    {state.name} --> {target.name}:"
            arrows = [line for line in lines if line.startswith(start)]
            assert len(arrows) == (state is not target)
            assert all(event.name in arrow for arrow in arrows)
