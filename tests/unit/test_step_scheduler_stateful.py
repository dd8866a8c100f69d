"""Any arrivals, steps, ends, aborts and preemptions: every request ends once, none is lost."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidestream.engine.sched import (
    DiffusionRequestStatus as Status,
    RunnerOutput,
    SchedulerRequestState,
    StepScheduler,
)


class Life:
    """What the worker knows of a request."""

    def __init__(self, pixels, steps):
        self.pixels = pixels
        self.steps = steps
        self.taken = 0
        self.worker = None
        self.ended = False


class StepSchedulerMachine(RuleBasedStateMachine):
    """Workers run ticks in order, some ticks late; requests may take more steps than was said."""

    @initialize(
        seqs=st.integers(1, 3),
        workers=st.integers(1, 2),
        depth=st.integers(1, 3),
        limit=st.sampled_from([None, 10]),
        look_ahead=st.integers(1, 5),
    )
    def open(self, seqs, workers, depth, limit, look_ahead):
        self.scheduler = StepScheduler(
            max_num_seqs=seqs, max_batch_pixels=limit, ageing_s=3.0, look_ahead=look_ahead
        )
        self.scheduler.initialize(max_num_running_reqs=100, num_workers=workers)
        self.seqs, self.depth, self.limit = seqs, depth, limit
        self.ticks = [[] for _ in range(workers)]
        self.lives = {}
        self.now = 0.0

    @rule(
        priority=st.integers(-1, 2),
        steps=st.integers(1, 4),
        said=st.sampled_from(["right", "nothing", "less"]),
        pixels=st.integers(0, 12),
    )
    def add(self, priority, steps, said, pixels):
        name = str(len(self.lives))
        self.lives[name] = Life(pixels, steps)
        expected = {"right": steps, "nothing": None, "less": max(steps - 1, 1)}[said]
        state = SchedulerRequestState(name, priority=priority, steps=expected, pixels=pixels)
        self.scheduler.add_request(state, self.now)

    @rule(seconds=st.sampled_from([0.5, 5.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(data=st.data())
    def schedule(self, data):
        worker = data.draw(st.integers(0, len(self.ticks) - 1))
        if len(self.ticks[worker]) < self.depth:
            self.schedule_on(worker)

    def schedule_on(self, worker):
        output = self.scheduler.schedule(self.now, worker)
        if output is None:
            return False
        named = output.scheduled_request_ids
        assert named or output.finished_request_ids
        assert len(set(named)) == len(named) <= self.seqs
        assert set(output.new_request_ids) <= set(named)
        for name in output.new_request_ids:
            assert self.lives[name].worker is None
            self.lives[name].worker = worker
        lives = [self.lives[name] for name in named]
        assert all(life.worker == worker for life in lives)
        if self.limit is not None and len(lives) > 1:
            assert sum(life.pixels for life in lives) <= self.limit
        self.ticks[worker].append(named)
        return True

    @precondition(lambda self: any(self.ticks))
    @rule(data=st.data(), error=st.booleans())
    def end_tick(self, data, error):
        worker = data.draw(st.sampled_from([i for i, ticks in enumerate(self.ticks) if ticks]))
        self.end_tick_of(worker, error=error)

    def end_tick_of(self, worker, *, error=False):
        for name in self.ticks[worker].pop(0):
            life = self.lives[name]
            if life.ended:
                self.scheduler.update_from_output([RunnerOutput(name, finished=False)])
                continue
            life.taken += 1
            if life.taken == life.steps or error:
                life.ended = True
                assert self.scheduler.update_from_output([RunnerOutput(name, error=error)]) == [
                    name
                ]
                assert self.scheduler.update_from_output([RunnerOutput(name)]) == []
            taken = RunnerOutput(name, finished=False, step=life.taken, total=life.steps)
            self.scheduler.update_from_output([taken])

    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.lives) or ["nobody"]))
        here = name in self.lives and not self.lives[name].ended
        assert self.scheduler.finish_request(name, Status.FINISHED_ABORTED) == here
        if here:
            self.lives[name].ended = True

    @rule(data=st.data())
    def preempt(self, data):
        name = data.draw(st.sampled_from(sorted(self.lives) or ["nobody"]))
        running = self.scheduler.status(name) is Status.RUNNING
        assert self.scheduler.preempt_request(name) == running

    @invariant()
    def all_who_have_not_ended_are_here(self):
        for name, life in self.lives.items():
            assert (self.scheduler.status(name) is None) == life.ended
        here = [life for life in self.lives.values() if not life.ended]
        assert self.scheduler.num_waiting + self.scheduler.num_running == len(here)

    @invariant()
    def workers_keep_the_state_of_a_bounded_number(self):
        for worker in range(len(self.ticks)):
            kept = [n for n, v in self.lives.items() if v.worker == worker and not v.ended]
            running = [n for n in kept if self.scheduler.status(n) is Status.RUNNING]
            assert len(running) <= self.seqs
            assert len(kept) <= 2 * self.seqs

    def teardown(self):
        """Let everything run: everybody ends."""
        for _ in range(20 * (1 + len(self.lives))):
            for worker, ticks in enumerate(self.ticks):
                self.schedule_on(worker)
                while ticks:
                    self.end_tick_of(worker)
        assert all(life.ended for life in self.lives.values())
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (0, 0)


TestStepScheduler = StepSchedulerMachine.TestCase
