"""What `RequestScheduler` chooses: order, company, windows, and that nobody starves."""

import heapq
import math

import pytest
from hypothesis import given, strategies as st

from sidestream.engine.sched import RequestScheduler, RunnerOutput, SchedulerRequestState


def make(*, running=100, **policy):
    scheduler = RequestScheduler(**policy)
    scheduler.initialize(max_num_running_reqs=running)
    return scheduler


def add(scheduler, request_id, now=0.0, **fields):
    scheduler.add_request(SchedulerRequestState(request_id, **fields), now)


def wave(scheduler, now=0.0):
    output = scheduler.schedule(now)
    return "" if output is None else "".join(output.scheduled_request_ids)


def waves(scheduler, now=0.0):
    """Return the waves that can be scheduled now."""
    return list(iter(lambda: wave(scheduler, now), ""))


# -- order


def test_first_come_first_served():
    scheduler = make()
    for request_id in "cab":
        add(scheduler, request_id)
    assert waves(scheduler) == ["c", "a", "b"]


def test_higher_priorities_go_first():
    scheduler = make()
    for request_id, priority in zip("abcde", (0, 2, -1, 2, 1), strict=True):
        add(scheduler, request_id, priority=priority)
    assert waves(scheduler) == ["b", "d", "e", "a", "c"]


def test_waiting_raises_the_priority():
    scheduler = make(ageing_s=10.0)
    add(scheduler, "a", now=0.0)
    add(scheduler, "b", now=25.0, priority=2)
    assert wave(scheduler, now=29.0) == "a"  # two steps, and it came first


@pytest.mark.parametrize(("now", "first"), [(9.9, "b"), (10.0, "a")])
def test_one_step_takes_the_ageing_time(now, first):
    scheduler = make(ageing_s=10.0)
    add(scheduler, "a", now=0.0)
    add(scheduler, "b", now=5.0, priority=1)
    assert wave(scheduler, now=now) == first


# -- company


def test_a_wave_holds_requests_of_one_key():
    scheduler = make(max_num_seqs=3)
    for request_id, key in zip("abcdefg", "xyxxyxx", strict=True):
        add(scheduler, request_id, key=key)
    assert waves(scheduler) == ["acd", "be", "fg"]


def test_a_wave_is_in_order_of_priority():
    scheduler = make(max_num_seqs=3)
    for request_id, priority in zip("abc", (0, 5, 9), strict=True):
        add(scheduler, request_id, priority=priority)
    assert wave(scheduler) == "cba"


def test_keys_are_compared_not_identified():
    scheduler = make(max_num_seqs=2)
    add(scheduler, "a", key=("size", 64))
    add(scheduler, "b", key=("si" + "ze", 64.0))
    assert wave(scheduler) == "ab"


def test_the_head_takes_company_over_those_between():
    """No head-of-line blocking: an incompatible request in between does not end the wave."""
    scheduler = make(max_num_seqs=2)
    for request_id, key in zip("abc", "xyx", strict=True):
        add(scheduler, request_id, key=key)
    assert waves(scheduler) == ["ac", "b"]


@pytest.mark.parametrize(("look_ahead", "first"), [(3, "a"), (4, "ad")])
def test_company_is_looked_for_so_far(look_ahead, first):
    scheduler = make(max_num_seqs=2, look_ahead=look_ahead)
    for request_id, key in zip("abcd", "xyzx", strict=True):
        add(scheduler, request_id, key=key)
    assert wave(scheduler) == first


# -- windows


def test_without_a_window_nobody_waits():
    scheduler = make(max_num_seqs=4)
    add(scheduler, "a")
    assert scheduler.next_decision(0.0) is None
    assert wave(scheduler) == "a"


def test_a_wave_waits_for_company_until_its_window_ends():
    scheduler = make(max_num_seqs=4, max_wait_s=0.5)
    add(scheduler, "a", now=1.0)
    assert wave(scheduler, now=1.0) == ""
    assert scheduler.next_decision(1.0) == 1.5
    add(scheduler, "b", now=1.4)
    assert wave(scheduler, now=1.4) == ""
    assert scheduler.next_decision(1.4) == 1.5  # the oldest decides
    assert wave(scheduler, now=1.5) == "ab"
    assert scheduler.next_decision(1.5) is None


def test_a_full_wave_goes_at_once():
    scheduler = make(max_num_seqs=2, max_wait_s=60.0)
    for request_id in "abc":
        add(scheduler, request_id)
    assert waves(scheduler) == ["ab"]
    assert scheduler.next_decision(0.0) == 60.0


def test_a_full_group_passes_a_head_that_waits():
    scheduler = make(max_num_seqs=2, max_wait_s=1.0)
    add(scheduler, "a", now=0.0, key="x")
    add(scheduler, "b", now=0.1, key="y")
    add(scheduler, "c", now=0.2, key="y")
    assert waves(scheduler, now=0.3) == ["bc"]
    assert waves(scheduler, now=1.0) == ["a"]


def test_a_wave_that_fills_the_last_places_is_full():
    scheduler = make(max_num_seqs=4, max_wait_s=1.0, running=1)
    add(scheduler, "a")
    assert wave(scheduler) == "a"


def test_the_next_decision_is_the_first_window_to_end():
    scheduler = make(max_num_seqs=2, max_wait_s=1.0)
    add(scheduler, "a", now=0.5, key="x")
    add(scheduler, "b", now=0.2, key="y")
    assert scheduler.next_decision(0.6) == 1.2


def test_no_decision_is_due_while_there_is_no_room():
    scheduler = make(max_num_seqs=2, max_wait_s=1.0, running=2)
    add(scheduler, "a")
    add(scheduler, "b")
    assert wave(scheduler) == "ab"
    add(scheduler, "c", now=0.5)
    assert wave(scheduler, now=2.0) == ""
    assert scheduler.next_decision(2.0) is None  # a place is what it waits for


POLICIES = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_wait_s": st.sampled_from([0.0, 0.5, 7.0]),
        "look_ahead": st.integers(1, 8),
        "ageing_s": st.sampled_from([0.1, 1.0, 10.0]),
        "running": st.integers(1, 8),
    }
)
ARRIVALS = st.lists(
    st.tuples(st.floats(0, 5), st.sampled_from("xyz"), st.integers(-20, 20)), max_size=40
)


@given(POLICIES, ARRIVALS, st.floats(0.1, 3))
def test_following_the_decisions_schedules_everybody(policy, arrivals, forward):
    """Sleep from decision to decision, as the engine does, while waves take `forward` seconds."""
    scheduler = make(**policy)
    events = [(time, "arrive", index) for index, (time, _, _) in enumerate(arrivals)]
    heapq.heapify(events)
    scheduled = set()
    while events:
        now, what, which = heapq.heappop(events)
        if what == "arrive":
            _, key, priority = arrivals[which]
            add(scheduler, str(which), now=now, key=key, priority=priority)
        elif what == "finish":
            scheduler.update_from_output([RunnerOutput(str(which))])
        while output := scheduler.schedule(now):
            assert len({arrivals[int(one)][1] for one in output.scheduled_request_ids}) == 1
            assert len(output.scheduled_request_ids) <= policy["max_num_seqs"]
            assert scheduler.num_running <= policy["running"]
            for request_id in output.scheduled_request_ids:
                scheduled.add(request_id)
                heapq.heappush(events, (now + forward, "finish", int(request_id)))
        decision = scheduler.next_decision(now)
        if decision is not None:
            assert decision > now
            heapq.heappush(events, (decision, "decide", -1))
    assert scheduled == set(map(str, range(len(arrivals))))
    assert (scheduler.num_waiting, scheduler.num_running) == (0, 0)


@given(
    st.integers(0, 30), st.sampled_from([1.0, 2.5]), st.sampled_from([0.0, 3.0]), st.integers(1, 3)
)
def test_a_flood_of_higher_priorities_starves_nobody(priority, ageing_s, max_wait_s, look_ahead):
    """One rival arrives each second for ever; the request goes within a time that can be told."""
    scheduler = make(
        max_num_seqs=2, ageing_s=ageing_s, max_wait_s=max_wait_s, look_ahead=look_ahead, running=2
    )
    add(scheduler, "mine")
    bound = math.ceil((priority + 1) * ageing_s + max_wait_s) + 2
    for second in range(bound + 1):
        add(scheduler, f"rival {second}", now=second, priority=priority, key=second)
        if output := scheduler.schedule(second):
            if "mine" in output.scheduled_request_ids:
                return
            scheduler.update_from_output(map(RunnerOutput, output.scheduled_request_ids))
    pytest.fail(f"still waiting after {bound} s")
