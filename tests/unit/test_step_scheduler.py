"""The step scheduler: who takes a step, who starts, who has to yield, who is not passed over."""

import pytest

from sidestream.engine import ConfigError, EngineConfig
from sidestream.engine.sched import (
    DiffusionRequestStatus as Status,
    RequestScheduler,
    RunnerOutput,
    SchedulerRequestState,
    StepScheduler,
    make_scheduler,
)


class Bench:
    """A scheduler, and a worker that takes the steps that it is told to take."""

    def __init__(self, scheduler=None, *, num_workers=1, **policy):
        self.scheduler = scheduler or StepScheduler(**policy)
        self.scheduler.initialize(max_num_running_reqs=100, num_workers=num_workers)
        self.steps = {}
        self.totals = {}
        self.now = 0.0

    def add(self, *names, steps=3, **fields):
        for name in names:
            self.totals[name], self.steps[name] = steps, 0
            state = SchedulerRequestState(name, steps=steps, **fields)
            self.scheduler.add_request(state, self.now)

    def tick(self, worker=0):
        """Schedule a tick; return who steps in it."""
        output = self.scheduler.schedule(self.now, worker)
        return None if output is None else "".join(output.scheduled_request_ids)

    def end(self, names):
        """Let a tick end: its requests have taken a step, the last ones end."""
        for name in names or "":
            self.steps[name] += 1
            if self.steps[name] == self.totals[name]:
                self.scheduler.update_from_output([RunnerOutput(name)])
            output = RunnerOutput(
                name, finished=False, step=self.steps[name], total=self.totals[name]
            )
            self.scheduler.update_from_output([output])

    def run(self, worker=0):
        """Schedule a tick and let it end at once."""
        names = self.tick(worker)
        self.end(names)
        return names

    def drain(self):
        ticks = []
        while names := self.run():
            ticks.append(names)
        return ticks

    def status(self, name):
        return self.scheduler.status(name)


def test_requests_join_and_leave_between_steps():
    bench = Bench(max_num_seqs=2)
    bench.add("a", steps=3)
    assert bench.run() == "a"
    bench.add("b", steps=3)
    bench.add("c", steps=1)
    assert [bench.run() for _ in range(4)] == ["ab", "ab", "bc", None]


def test_who_comes_first_runs_first():
    bench = Bench(max_num_seqs=2)
    bench.add(*"abcde", steps=2)
    assert bench.drain() == ["ab", "ab", "cd", "cd", "e", "e"]


def test_a_tick_ahead_names_those_that_will_go_on():
    bench = Bench(max_num_seqs=4)
    bench.add("a", steps=1)
    bench.add("b", steps=2)
    bench.add("c", steps=3)
    assert [bench.tick() for _ in range(4)] == ["abc", "bc", "c", None]
    bench.end("abc")
    assert bench.tick() is None
    bench.end("bc")
    bench.end("c")
    assert (bench.scheduler.num_running, bench.scheduler.num_waiting) == (0, 0)


def test_a_pipeline_that_takes_more_steps_than_it_said_goes_on():
    bench = Bench(max_num_seqs=1)
    bench.add("a", steps=1)
    assert [bench.tick(), bench.tick()] == ["a", None]
    bench.scheduler.update_from_output([RunnerOutput("a", finished=False, step=1, total=1)])
    assert [bench.tick(), bench.tick()] == ["a", None]
    bench.scheduler.update_from_output([RunnerOutput("a", finished=False, step=2, total=4)])
    assert [bench.tick(), bench.tick(), bench.tick()] == ["a", "a", None]


def test_a_request_of_unknown_length_is_always_named():
    bench = Bench(max_num_seqs=1)
    bench.add("a", steps=None)
    assert [bench.tick() for _ in range(3)] == ["a", "a", "a"]


def test_new_ones_are_told_once():
    bench = Bench(max_num_seqs=2)
    bench.add(*"ab")
    assert bench.scheduler.schedule(0.0).new_request_ids == ("a", "b")
    assert bench.scheduler.schedule(0.0).new_request_ids == ()


# -- aborted ones


def test_a_worker_is_told_of_an_end_even_if_nobody_steps():
    bench = Bench(max_num_seqs=1)
    bench.add("a")
    bench.run()
    assert bench.scheduler.finish_request("a", Status.FINISHED_ABORTED)
    output = bench.scheduler.schedule(0.0)
    assert (output.scheduled_request_ids, output.finished_request_ids) == ((), ("a",))
    assert bench.tick() is None


def test_an_end_that_the_worker_told_is_no_news_to_it():
    bench = Bench(max_num_seqs=1)
    bench.add("a", steps=1)
    bench.run()
    assert bench.tick() is None


def test_one_that_never_ran_concerns_no_worker():
    bench = Bench(max_num_seqs=1)
    bench.add(*"ab")
    bench.run()
    assert bench.scheduler.finish_request("b", Status.FINISHED_ABORTED)
    assert bench.scheduler.schedule(0.0).finished_request_ids == ()


def test_late_news_are_ignored():
    bench = Bench(max_num_seqs=1)
    bench.add("a")
    late = RunnerOutput("a", finished=False, step=1)
    assert bench.scheduler.update_from_output([late, RunnerOutput("a"), RunnerOutput("x")]) == []
    assert bench.status("a") is Status.WAITING


# -- priority and preemption


def test_a_higher_priority_takes_the_place_and_gives_it_back():
    bench = Bench(max_num_seqs=1)
    bench.add("a", steps=4)
    bench.run()
    bench.add("b", steps=2, priority=1)
    output = bench.scheduler.schedule(0.0)
    assert output.scheduled_request_ids == ("b",)
    assert output.preempted_request_ids == ("a",)
    bench.end("b")
    assert bench.status("a") is Status.PREEMPTED
    assert bench.drain() == ["b", "a", "a", "a"]


def test_an_equal_priority_takes_nobodys_place():
    bench = Bench(max_num_seqs=1)
    bench.add("a", steps=2, priority=1)
    bench.run()
    bench.now = 1000.0
    bench.add("b", steps=1, priority=1)
    assert bench.drain() == ["a", "b"]


def test_the_last_in_order_yields():
    bench = Bench(max_num_seqs=2)
    bench.add("a", steps=9)
    bench.add("b", steps=9)
    bench.run()
    bench.add("c", steps=1, priority=1)
    assert bench.run() == "ac"
    assert bench.run() == "ab"


def test_a_preempted_one_that_ends_in_a_tick_under_way():
    bench = Bench(max_num_seqs=1)
    bench.add("a", steps=1)
    assert bench.tick() == "a"
    bench.add("b", steps=1, priority=1)
    assert bench.tick() == "b"
    assert bench.status("a") is Status.PREEMPTED
    bench.end("a")
    assert bench.status("a") is None
    bench.end("b")
    assert bench.tick() is None


def test_a_priority_counts_as_an_earlier_arrival():
    bench = Bench(max_num_seqs=1, ageing_s=10.0)
    bench.add("x", steps=1)
    bench.tick()
    bench.add("a", steps=1)
    bench.now = 11.0
    bench.add("b", steps=1, priority=1)
    bench.end("x")
    assert bench.drain() == ["a", "b"]


def test_a_stream_of_higher_priority_starves_nobody():
    bench = Bench(max_num_seqs=1, ageing_s=10.0)
    bench.add("a", steps=2)
    ran = ""
    for second in range(40):
        bench.now = float(second)
        bench.add(chr(0x100 + second), steps=1, priority=1)
        ran += bench.run()
        if ran.count("a") == 2:
            break
    assert 5 < second < 20


def test_a_worker_keeps_the_state_of_so_many():
    bench = Bench(max_num_seqs=1)
    for priority in range(4):
        bench.add(str(priority), steps=5, priority=priority)
        bench.run()
    statuses = [bench.status(str(priority)) for priority in range(4)]
    assert statuses == [Status.PREEMPTED, Status.RUNNING, Status.WAITING, Status.WAITING]


# -- pixels


def test_a_tick_works_on_so_many_pixels():
    bench = Bench(max_num_seqs=4, max_batch_pixels=100)
    bench.add(*"ab", steps=2, pixels=40)
    bench.add("c", steps=2, pixels=30)
    bench.add("d", steps=2, pixels=20)
    assert bench.drain() == ["abd", "abd", "c", "c"]


def test_one_that_is_larger_than_the_limit_runs_alone():
    bench = Bench(max_num_seqs=4, max_batch_pixels=100)
    bench.add("a", steps=1, pixels=1000)
    bench.add("b", steps=1, pixels=1)
    assert bench.drain() == ["a", "b"]


def test_a_large_one_is_passed_for_a_while_only():
    bench = Bench(max_num_seqs=2, max_batch_pixels=100, ageing_s=10.0)
    bench.add("a", steps=3, pixels=60)
    bench.run()
    bench.add("L", steps=1, pixels=100)
    bench.add("b", steps=1, pixels=10)
    assert bench.run() == "ab"
    bench.now = 10.0
    bench.add("c", steps=1, pixels=10)
    assert bench.drain() == ["a", "L", "c"]


# -- several workers


def test_requests_are_shared_out_and_stay_where_they_are():
    bench = Bench(max_num_seqs=4, num_workers=2)
    bench.add(*"abc", steps=3)
    assert [bench.run(0), bench.run(1)] == ["ab", "c"]
    assert [bench.run(1), bench.run(0)] == ["c", "ab"]


def test_a_preempted_one_waits_for_its_own_worker():
    bench = Bench(max_num_seqs=1, num_workers=2)
    bench.add("a", steps=9)
    bench.run(0)
    bench.add("b", steps=9)
    bench.run(1)
    bench.add("c", steps=2, priority=1)
    assert [bench.run(0), bench.run(1), bench.run(0)] == ["c", "b", "c"]
    assert [bench.run(1), bench.run(0)] == ["b", "a"]


# -- which scheduler


class Custom(StepScheduler):
    """Shortest first; takes places, too."""

    def rank(self, state, now):
        return state.remaining_steps, state.order

    def preempts(self, waiting, running, now):
        return waiting.remaining_steps < running.remaining_steps


class Costly(StepScheduler):
    """Cannot be made of a config."""

    def __init__(self, price):
        super().__init__()


class Nothing(StepScheduler):
    """Neither."""

    @classmethod
    def from_config(cls, config):
        return None


def test_a_policy_of_ones_own():
    bench = Bench(Custom(max_num_seqs=1))
    bench.add("a", steps=5)
    bench.run()
    bench.add("b", steps=2)
    assert bench.drain() == ["b", "b", "a", "a", "a", "a"]


def test_a_config_names_its_scheduler():
    assert type(make_scheduler(EngineConfig())) is RequestScheduler
    assert type(make_scheduler(EngineConfig(mode="step"))) is StepScheduler
    assert type(make_scheduler(EngineConfig(mode="step", scheduler=Custom))) is Custom
    path = "sidestream.engine.sched:StepScheduler"
    assert type(make_scheduler(EngineConfig(mode="step", scheduler=path))) is StepScheduler


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheduler": Custom}, "Custom is of mode 'step', the engine of 'request'"),
        ({"scheduler": dict}, "must be a subclass of BaseScheduler that can be made, not dict"),
        ({"scheduler": "nowhere:Class"}, "scheduler 'nowhere:Class' cannot be imported"),
        ({"scheduler": "math:pi"}, "scheduler 'math:pi' is not a class"),
        ({"scheduler": ".x:Y"}, "scheduler '.x:Y' cannot be imported: TypeError"),
        ({"scheduler": ":X"}, "scheduler ':X' cannot be imported: ValueError"),
        ({"scheduler": "sidestream.engine.sched:BaseScheduler"}, "that can be made, not Base"),
        ({"mode": "step", "scheduler": Costly}, "scheduler Costly cannot be made: TypeError"),
        ({"mode": "step", "scheduler": Nothing}, "Nothing.from_config returned None"),
    ],
)
def test_a_wrong_scheduler_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_scheduler(EngineConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"streaming_output": True}, "streaming_output needs mode 'step'"),
        ({"max_batch_pixels": 5}, "max_batch_pixels needs mode 'step'"),
        ({"mode": "step", "request_batch_max_wait_ms": 5}, "needs mode 'request'"),
    ],
)
def test_settings_of_the_other_mode_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)
