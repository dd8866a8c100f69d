"""The engine's invariants under whatever callers and workers do, in virtual time."""

import random

import trio
import trio.testing
from hypothesis import given, settings, strategies as st

from sidestream.engine import (
    DeadlineExceededError,
    DiffusionResult,
    EngineDeadError,
    ExecutionError,
    RequestAborted,
    SidestreamError,
    WorkerDiedError,
)

from .fake_engines import open_fake, raw, value_of
from .fakes import aborted, raised

SECONDS = st.floats(0, 4)
CALLER = st.fixed_dictionaries(
    {
        "at": SECONDS,
        "does": st.sampled_from(["stay", "stay", "stay", "cancel", "abort", "deadline"]),
        "after": SECONDS,
        "priority": st.integers(0, 2),
        "width": st.sampled_from([8, 16]),
    }
)
CALLERS = st.lists(CALLER, min_size=1, max_size=12)
CONFIGS = st.fixed_dictionaries(
    {
        "num_workers": st.integers(1, 2),
        "max_num_seqs": st.integers(1, 3),
        "dispatch_depth": st.integers(1, 2),
        "max_pending_outputs": st.integers(1, 3),
        "request_batch_max_wait_ms": st.sampled_from([0, 300]),
    }
)


few = settings(max_examples=60)


class World:
    """An engine, its callers, and honest workers whose times and failures are drawn."""

    def __init__(self, engine, executor, nursery, seed):
        self.engine = engine
        self.executor = executor
        self.nursery = nursery
        self.random = random.Random(seed)
        self.turn = [trio.Lock() for _ in range(engine.config.num_workers)]
        self.outcomes = {}
        """Of each request that was admitted."""
        self.refusals = []
        self.decided = []
        """The scheduler's waves."""
        self._schedule = engine._scheduler.schedule
        engine._scheduler.schedule = self.schedule

    def schedule(self, now, worker):
        """Let the scheduler decide, and note it."""
        output = self._schedule(now, worker)
        if output is not None:
            self.decided.append(output.scheduled_request_ids)
        return output

    # -- callers

    async def call(self, seed, plan):
        await trio.sleep(plan["at"])
        request = raw(
            request_id=str(seed),
            seed=seed,
            priority=plan["priority"],
            width=plan["width"],
            deadline=plan["after"] if plan["does"] == "deadline" else None,
        )
        if plan["does"] == "abort":
            self.nursery.start_soon(self.abort, str(seed), plan["after"])
        with trio.move_on_after(plan["after"] if plan["does"] == "cancel" else float("inf")):
            try:
                async with self.engine.stream(request) as events:
                    self.outcomes[seed] = []  # it was admitted
                    self.outcomes[seed].append(await events.result())
            except SidestreamError as error:
                self.outcomes.get(seed, self.refusals).append(error)

    async def abort(self, request_id, after):
        await trio.sleep(after)
        await self.engine.abort(request_id)

    # -- workers

    async def work(self):
        while True:
            wave = await self.executor.next_wave()
            self.nursery.start_soon(self.run, wave)

    async def run(self, wave):
        async with self.turn[wave[0].worker]:
            await trio.sleep(self.random.uniform(0, 1))
            for job in wave:
                job.progress(1, 1)
                how = self.random.choice(["well", "well", "well", "fails", "output first"])
                if job.flagged or how == "fails":
                    job.compute_failed(aborted() if job.flagged else raised())
                elif how == "output first":
                    await self.output(job, 0.0)
                    job.compute_done()
                else:
                    job.compute_done()
                    self.nursery.start_soon(self.output, job, self.random.uniform(0, 1))

    async def output(self, job, after):
        await trio.sleep(after)
        if job.flagged:
            job.output_failed(aborted())
        elif self.random.random() < 0.1:
            job.output_failed(raised())
        else:
            job.output_ready()

    # -- what must hold

    def check_nothing_is_held(self):
        statistics = self.engine.statistics()
        payloads = self.executor.payloads
        results = [
            outcome
            for outcomes in self.outcomes.values()
            for outcome in outcomes
            if isinstance(outcome, DiffusionResult)
        ]
        assert payloads.held == len(results)
        assert payloads.lying == 0 or self.executor.death is not None  # it was never received
        assert (statistics.claims, statistics.waves, statistics.cancel_slots_used) == (0, 0, 0)
        assert (statistics.waiting, statistics.running) == (0, 0)
        assert (statistics.pending_outputs, statistics.aborting) == (0, 0)
        ended = statistics.completed + statistics.failed + statistics.aborted
        assert ended == len(self.outcomes)

    def check_outcome(self, seed, plan):
        outcomes = self.outcomes.get(seed, [])
        allowed = {
            "stay": (),
            "cancel": (),
            "abort": (RequestAborted,),
            "deadline": (DeadlineExceededError,),
        }[plan["does"]]
        assert len(outcomes) == 1 or (plan["does"] == "cancel" and not outcomes)
        for outcome in outcomes:
            if isinstance(outcome, SidestreamError):
                assert isinstance(outcome, (ExecutionError, *allowed))
            else:
                assert (outcome.request_id, value_of(outcome)) == (str(seed), [seed])


def run_world(config, callers, seed, during=None):
    """Run callers and workers to the end, and return the world."""

    async def main():
        async with open_fake(**config) as (engine, executor), trio.open_nursery() as nursery:
            world = World(engine, executor, nursery, seed)
            nursery.start_soon(world.work)
            async with trio.open_nursery() as calls:
                for number, plan in enumerate(callers):
                    calls.start_soon(world.call, number, plan)
                if during is not None:
                    calls.start_soon(during, world)
            await engine.wait_idle()
            world.check_nothing_is_held()
            nursery.cancel_scope.cancel()
        return world

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@few
@given(CONFIGS, CALLERS, st.integers(0, 1 << 16))
def test_invariant_1_one_life_one_end(config, callers, seed):
    """Exactly one outcome for each request that was admitted; and 3: everything is given back."""
    world = run_world(config, callers, seed)
    for number, plan in enumerate(callers):
        world.check_outcome(number, plan)
    assert not world.refusals


@few
@given(CONFIGS, CALLERS, st.integers(0, 1 << 16))
def test_invariant_2_what_the_scheduler_decided_is_run(config, callers, seed):
    """The executor gets the scheduler's waves, in its order, each request once."""
    world = run_world(config, callers, seed)
    run = [tuple(job.request_id for job in wave) for wave in world.executor.waves]
    assert run == world.decided
    once = [request_id for wave in run for request_id in wave]
    assert len(once) == len(set(once))


@few
@given(CONFIGS, CALLERS, SECONDS, st.integers(0, 1 << 16))
def test_invariant_6_after_a_death_every_waiter_has_an_answer(config, callers, when, seed):
    async def death(world):
        await trio.sleep(when)
        world.executor.kill()
        began = trio.current_time()
        await world.engine.wait_dead()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == began
        for number, outcomes in world.outcomes.items():
            gone = callers[number]["does"] == "cancel"
            assert len(outcomes) == 1 or gone, "somebody still waits"

    world = run_world(config, callers, seed, during=death)
    for outcomes in world.outcomes.values():
        for outcome in outcomes:
            if isinstance(outcome, WorkerDiedError):
                assert outcome.worker == 0
    assert all(isinstance(error, WorkerDiedError | EngineDeadError) for error in world.refusals)


def test_invariant_5_results_keep_request_identity():
    """Each of 4 callers x 50 requests gets its own, while a third of them are cancelled."""
    kinds = ["stay", "stay", "cancel"]
    callers = [
        {
            "at": index // 4 * 0.2,
            "does": kinds[index % 3],
            "after": index % 7 / 4,
            "priority": 0,
            "width": (8, 16)[index % 5 == 0],
        }
        for index in range(200)
    ]
    config = {"max_num_seqs": 4, "num_workers": 2}
    world = run_world(config, callers, seed=1)
    for number, plan in enumerate(callers):
        world.check_outcome(number, plan)
    assert world.engine.statistics().completed > 60
