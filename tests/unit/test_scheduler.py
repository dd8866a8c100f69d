"""The life that `BaseScheduler` keeps for each request: transitions, capacity, ends."""

import itertools

import pytest

from sidestream.engine.sched import (
    DiffusionRequestStatus as Status,
    DiffusionSchedulerOutput,
    RequestScheduler,
    RunnerOutput,
    SchedulerRequestState,
)
from sidestream.engine.sched.states import TRANSITIONS


@pytest.fixture
def scheduler():
    scheduler = RequestScheduler(max_num_seqs=2)
    scheduler.initialize(max_num_running_reqs=4)
    return scheduler


def add(scheduler, *request_ids, now=0.0, **fields):
    for request_id in request_ids:
        scheduler.add_request(SchedulerRequestState(request_id, **fields), now)


def wave(scheduler, now=0.0):
    output = scheduler.schedule(now)
    return () if output is None else output.scheduled_request_ids


# -- the life cycle


def test_a_new_request_waits(scheduler):
    add(scheduler, "a")
    assert scheduler.status("a") is Status.WAITING
    assert (scheduler.num_waiting, scheduler.num_running) == (1, 0)


def test_scheduling_sets_a_request_running(scheduler):
    add(scheduler, "a")
    assert scheduler.schedule(0.0) == DiffusionSchedulerOutput(("a",))
    assert scheduler.status("a") is Status.RUNNING
    assert (scheduler.num_waiting, scheduler.num_running) == (0, 1)
    assert scheduler.schedule(0.0) is None


@pytest.mark.parametrize(
    "output",
    [RunnerOutput("a"), RunnerOutput("a", error=True), RunnerOutput("a", error=True, aborted=True)],
)
def test_an_output_ends_a_running_request(scheduler, output):
    add(scheduler, "a")
    wave(scheduler)
    assert scheduler.update_from_output([output]) == ["a"]
    assert scheduler.status("a") is None
    assert scheduler.num_running == 0


def test_an_output_ends_its_own_request_whatever_the_order(scheduler):
    add(scheduler, "a", "b", "c")
    assert wave(scheduler) == ("a", "b")
    assert wave(scheduler) == ("c",)
    assert scheduler.update_from_output([RunnerOutput("c"), RunnerOutput("a")]) == ["c", "a"]
    assert scheduler.status("b") is Status.RUNNING


def test_a_missing_output_leaves_its_request_running(scheduler):
    add(scheduler, "a", "b")
    wave(scheduler)
    scheduler.update_from_output([RunnerOutput("b")])
    assert scheduler.status("a") is Status.RUNNING
    assert scheduler.update_from_output([]) == []
    assert scheduler.update_from_output([RunnerOutput("a")]) == ["a"]


def test_late_and_unknown_outputs_change_nothing(scheduler):
    add(scheduler, "a", "b", "c")
    wave(scheduler)
    scheduler.finish_request("a", Status.FINISHED_ABORTED)
    late = [RunnerOutput("a"), RunnerOutput("nobody"), RunnerOutput("c")]
    assert scheduler.update_from_output(late) == []
    assert scheduler.status("b") is Status.RUNNING
    assert scheduler.status("c") is Status.WAITING


@pytest.mark.parametrize("end", [Status.FINISHED_ABORTED, Status.FINISHED_ERROR])
def test_a_waiting_request_can_be_ended(scheduler, end):
    add(scheduler, "a", "b")
    assert scheduler.finish_request("a", end)
    assert scheduler.status("a") is None
    assert wave(scheduler) == ("b",)


def test_an_ended_request_stays_ended(scheduler):
    add(scheduler, "a")
    assert scheduler.finish_request("a", Status.FINISHED_ABORTED)
    assert not scheduler.finish_request("a", Status.FINISHED_COMPLETED)
    assert not scheduler.finish_request("nobody", Status.FINISHED_ABORTED)


def test_a_waiting_request_cannot_have_completed(scheduler):
    add(scheduler, "a")
    with pytest.raises(ValueError, match="'a' cannot go from WAITING to FINISHED_COMPLETED"):
        scheduler.finish_request("a", Status.FINISHED_COMPLETED)
    assert wave(scheduler) == ("a",)


def test_the_seeds_transitions():
    """WAITING -> RUNNING -> an end; aborting ends both; nothing leaves an end."""
    ends = {status for status in Status if status.is_finished}
    assert ends == {Status.FINISHED_COMPLETED, Status.FINISHED_ABORTED, Status.FINISHED_ERROR}
    assert TRANSITIONS.keys() == set(Status)
    for end in ends:
        assert not TRANSITIONS[end]
        assert end in TRANSITIONS[Status.RUNNING]
    assert Status.RUNNING in TRANSITIONS[Status.WAITING]
    assert Status.FINISHED_COMPLETED not in TRANSITIONS[Status.WAITING]
    for before, after in itertools.product(Status, [Status.WAITING]):
        assert after not in TRANSITIONS[before]


# -- identity


def test_a_request_that_lives_cannot_be_added_again(scheduler):
    add(scheduler, "a")
    with pytest.raises(ValueError, match="request 'a' exists already"):
        add(scheduler, "a")
    wave(scheduler)
    with pytest.raises(ValueError, match="request 'a' exists already"):
        add(scheduler, "a")
    assert scheduler.num_running == 1


def test_an_id_is_free_after_its_request_ended(scheduler):
    add(scheduler, "a")
    wave(scheduler)
    scheduler.update_from_output([RunnerOutput("a")])
    add(scheduler, "a")
    assert scheduler.status("a") is Status.WAITING


def test_the_callers_own_state_is_not_touched(scheduler):
    mine = SchedulerRequestState("a", priority=3)
    scheduler.add_request(mine, 5.0)
    wave(scheduler)
    assert (mine.arrival, mine.status) == (0.0, Status.WAITING)


# -- capacity


def test_no_more_run_than_there_is_room_for(scheduler):
    add(scheduler, *"abcdefg")
    assert [wave(scheduler) for _ in range(3)] == [("a", "b"), ("c", "d"), ()]
    scheduler.update_from_output([RunnerOutput("c")])
    assert wave(scheduler) == ("e",)  # one place: a wave of one
    assert scheduler.num_running == 4


def test_an_aborted_request_gives_its_place_up_at_once(scheduler):
    add(scheduler, *"abcdef")
    wave(scheduler), wave(scheduler)
    scheduler.finish_request("a", Status.FINISHED_ABORTED)
    assert wave(scheduler) == ("e",)


def test_by_default_one_request_runs():
    scheduler = RequestScheduler()
    add(scheduler, "a", "b")
    assert wave(scheduler) == ("a",)
    assert wave(scheduler) == ()


def test_runners_are_told_once_what_has_ended(scheduler):
    add(scheduler, *"abcd")
    wave(scheduler)
    scheduler.update_from_output([RunnerOutput("a")])
    scheduler.finish_request("b", Status.FINISHED_ABORTED)
    scheduler.finish_request("c", Status.FINISHED_ABORTED)  # no runner has seen it
    assert scheduler.schedule(0.0) == DiffusionSchedulerOutput(("d",), ("a", "b"))
    add(scheduler, "e")
    assert scheduler.schedule(0.0) == DiffusionSchedulerOutput(("e",))


def test_a_policy_decides_nothing_but_who_is_next():
    class LastComeFirstServed(RequestScheduler):
        def _pick(self, now, room):
            return list(self._waiting.values())[::-1][:room]

    scheduler = LastComeFirstServed()
    scheduler.initialize(max_num_running_reqs=2)
    add(scheduler, "a", "b", "c")
    assert wave(scheduler) == ("c", "b")
    assert scheduler.next_decision(0.0) is None


# -- the queue


def test_positions_in_the_queue(scheduler):
    add(scheduler, *"abcd")
    assert [scheduler.queue_position(request_id, 0.0) for request_id in "abcd"] == [0, 1, 2, 3]
    wave(scheduler)
    assert scheduler.queue_position("d", 0.0) == 1
    assert scheduler.queue_position("a", 0.0) is None
    assert scheduler.queue_position("nobody", 0.0) is None


def test_a_position_in_the_queue_follows_priority(scheduler):
    add(scheduler, *"abcd")
    scheduler.add_request(SchedulerRequestState("x", priority=1), 0.0)
    assert scheduler.queue_position("x", 0.0) == 0
    assert scheduler.queue_position("a", 0.0) == 1


# -- preemption


def test_a_preempted_request_waits_and_runs_again(scheduler):
    add(scheduler, "a", "b")
    wave(scheduler)
    assert scheduler.preempt_request("a")
    assert scheduler.status("a") is Status.PREEMPTED
    assert (scheduler.num_waiting, scheduler.num_running) == (1, 1)
    assert wave(scheduler) == ("a",)
    assert scheduler.status("a") is Status.RUNNING


def test_a_preempted_request_keeps_its_place_in_the_order(scheduler):
    add(scheduler, "a", "b")
    wave(scheduler)
    add(scheduler, "c")
    scheduler.preempt_request("b")
    assert wave(scheduler) == ("b", "c")


def test_only_a_running_request_can_be_preempted(scheduler):
    add(scheduler, "a")
    assert not scheduler.preempt_request("a")
    assert not scheduler.preempt_request("nobody")
    assert scheduler.status("a") is Status.WAITING


def test_a_preempted_request_can_be_aborted(scheduler):
    add(scheduler, "a")
    wave(scheduler)
    scheduler.preempt_request("a")
    assert scheduler.update_from_output([RunnerOutput("a")]) == []  # it was put aside first
    assert scheduler.finish_request("a", Status.FINISHED_ABORTED)
    assert (scheduler.num_waiting, scheduler.num_running) == (0, 0)
