"""Any sequence of calls: one life for each request, one end, and never more than may run."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sidestream.engine.sched import (
    DiffusionRequestStatus as Status,
    RequestScheduler,
    RunnerOutput,
    SchedulerRequestState,
)


class SchedulerMachine(RuleBasedStateMachine):
    """Calls in any order, beside a model: three sets of ids, and a count of ends for each life."""

    @initialize(
        max_num_seqs=st.integers(1, 3),
        capacity=st.integers(1, 5),
        max_wait_s=st.sampled_from([0.0, 2.0]),
        look_ahead=st.integers(1, 4),
    )
    def open(self, max_num_seqs, capacity, max_wait_s, look_ahead):
        self.scheduler = RequestScheduler(
            max_num_seqs=max_num_seqs, max_wait_s=max_wait_s, look_ahead=look_ahead, ageing_s=3.0
        )
        self.scheduler.initialize(max_num_running_reqs=capacity)
        self.capacity = capacity
        self.max_num_seqs = max_num_seqs
        self.keys = {}
        self.ended = {}
        self.now = 0.0
        self.model = {"waiting": set(), "running": set(), "ended": set()}

    @property
    def here(self):
        return self.model["waiting"] | self.model["running"]

    def end(self, request_id):
        self.model["waiting"].discard(request_id)
        self.model["running"].discard(request_id)
        self.model["ended"].add(request_id)
        self.ended[request_id] += 1

    @rule(key=st.sampled_from("xy"), priority=st.integers(-3, 3))
    def add(self, key, priority):
        request_id = str(len(self.keys))
        self.keys[request_id] = key
        self.ended[request_id] = 0
        self.model["waiting"].add(request_id)
        state = SchedulerRequestState(request_id, key=key, priority=priority)
        self.scheduler.add_request(state, self.now)

    @rule(data=st.data())
    def add_again(self, data):
        if self.here:
            request_id = data.draw(st.sampled_from(sorted(self.here)))
            with pytest.raises(ValueError, match="exists already"):
                self.scheduler.add_request(SchedulerRequestState(request_id), self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def schedule(self):
        output = self.scheduler.schedule(self.now)
        if output is None:
            return
        wave = output.scheduled_request_ids
        assert 1 <= len(wave) <= self.max_num_seqs
        assert len(set(wave)) == len(wave)
        assert len({self.keys[request_id] for request_id in wave}) == 1
        assert set(wave) <= self.model["waiting"]
        self.model["waiting"] -= set(wave)
        self.model["running"] |= set(wave)
        assert set(output.finished_request_ids) <= self.model["ended"]

    @rule(data=st.data(), error=st.booleans(), aborted=st.booleans())
    def finish(self, data, error, aborted):
        """Some outputs: of running requests, of unknown, waiting and ended ones."""
        candidates = sorted(self.keys) or ["nobody"]
        request_ids = data.draw(st.lists(st.sampled_from(candidates), max_size=4))
        expected = [r for r in dict.fromkeys(request_ids) if r in self.model["running"]]
        outputs = [RunnerOutput(request_id, error, aborted) for request_id in request_ids]
        assert self.scheduler.update_from_output(outputs) == expected
        for request_id in expected:
            self.end(request_id)

    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.keys) or ["nobody"]))
        was_here = request_id in self.here
        assert self.scheduler.finish_request(request_id, Status.FINISHED_ABORTED) == was_here
        if was_here:
            self.end(request_id)

    @rule(data=st.data())
    def preempt(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.keys) or ["nobody"]))
        ran = request_id in self.model["running"]
        assert self.scheduler.preempt_request(request_id) == ran
        if ran:
            self.model["running"].remove(request_id)
            self.model["waiting"].add(request_id)

    @invariant()
    def every_request_is_in_one_set(self):
        for request_id in self.keys:
            status = self.scheduler.status(request_id)
            assert (request_id in self.here) == (status is not None)
            assert (request_id in self.model["running"]) == (status is Status.RUNNING)
            position = self.scheduler.queue_position(request_id, self.now)
            assert (request_id in self.model["waiting"]) == (position is not None)
            assert self.ended[request_id] == (request_id in self.model["ended"])

    @invariant()
    def never_more_than_may_run(self):
        assert self.scheduler.num_running == len(self.model["running"]) <= self.capacity
        assert self.scheduler.num_waiting == len(self.model["waiting"])

    def teardown(self):
        """Let waves finish: everybody ends."""
        for _ in range(2 * len(self.keys)):
            self.now += 100.0
            output = self.scheduler.schedule(self.now)
            running = sorted(self.model["running"])
            if output is not None:
                running += output.scheduled_request_ids
            self.scheduler.update_from_output(map(RunnerOutput, running))
            for request_id in running:
                self.end(request_id)
        assert all(count == 1 for count in self.ended.values())
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (0, 0)


TestScheduler = SchedulerMachine.TestCase
