"""Any sequence of events, through the ledger: the accounts are right at every moment, and at the
end nothing is held."""

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidestream.engine import (
    DiffusionRequest,
    DuplicateRequestError,
    EngineConfig,
    RequestAborted,
    WorkerDiedError,
)
from sidestream.engine.admission import prepare
from sidestream.engine.executor import cancel_slots_for
from sidestream.engine.ledger import ClaimLedger
from sidestream.engine.sched import RequestScheduler

from .fakes import CAPABILITIES, FakeExecutor, Job, aborted, raised

PICTURE = np.arange(6, dtype=np.uint8)
LARGEST_PART = 3
REQUEST_IDS = "abcd"


class Life:
    """What a request's caller and worker have done, as the test knows it."""

    def __init__(self, claim):
        self.claim = claim
        self.caller_there = True
        self.aborted = False
        self.job = None
        self.computed = False
        self.output_over = False
        self.sent = 0
        """Bytes of the output."""
        self.lost = False
        self.outcome = None
        """None, "delivered", "completed", "failed" or "aborted"."""
        self.kept_in_ring = False

    @property
    def worker_there(self):
        return self.job is not None and not (self.lost or (self.computed and self.output_over))

    @property
    def closed(self):
        if self.job is None:
            return self.aborted or self.lost or not self.caller_there
        return not self.worker_there

    @property
    def here(self):
        return self.caller_there or not self.closed

    @property
    def wanted(self):
        """Whether what comes is kept for the caller."""
        return self.caller_there and not self.aborted

    @property
    def collectable(self):
        return self.caller_there and self.outcome == "delivered"

    @property
    def computing(self):
        return self.worker_there and not self.computed

    @property
    def may_fail(self):
        """Whether the forward can end by an error: nothing has been output yet."""
        return self.computing and not (self.sent or self.output_over)

    @property
    def output_to_come(self):
        return self.worker_there and not self.output_over

    @property
    def may_send_part(self):
        return self.output_to_come and self.sent + LARGEST_PART < PICTURE.nbytes

    def settle(self, outcome):
        """Take the first outcome that the caller is told."""
        if self.wanted and self.outcome is None:
            self.outcome = outcome


def for_one(what, **draws):
    """Make a rule of a method that takes one of the lives of which `what` is true."""

    def decorate(method):
        def step(self, data, **drawn):
            lives = [life for life in self.lives if getattr(life, what)]
            method(self, data.draw(st.sampled_from(lives)), **drawn)

        step.__name__ = method.__name__
        there_is_one = precondition(lambda self: any(getattr(life, what) for life in self.lives))
        return there_is_one(rule(data=st.data(), **draws)(step))

    return decorate


class LedgerMachine(RuleBasedStateMachine):
    """A ledger on a fake executor, whose workers' words arrive as soon as they are said."""

    @initialize(workers=st.integers(1, 2), seqs=st.integers(1, 3), depth=st.integers(1, 2))
    def open(self, workers, seqs, depth):
        self.config = EngineConfig(
            executor=FakeExecutor,
            num_workers=workers,
            max_num_seqs=seqs,
            dispatch_depth=depth,
            max_pending_outputs=2,
        )
        self.executor = FakeExecutor(self.config)
        self.scheduler = RequestScheduler(max_num_seqs=seqs)
        self.scheduler.initialize(max_num_running_reqs=workers * seqs * depth)
        self.ledger = ClaimLedger(
            self.scheduler,
            self.executor,
            num_workers=workers,
            cancel_slots=cancel_slots_for(self.config),
            trace_limit=16,
            changed=lambda: None,
        )
        self.lives = []
        self.ended = {"completed": 0, "failed": 0, "aborted": 0}

    # -- callers

    @rule(request_id=st.sampled_from(REQUEST_IDS))
    def admit(self, request_id):
        request = DiffusionRequest("a", request_id=request_id)
        prepared = prepare(request, CAPABILITIES, self.config)
        if any(life.here and life.claim.request_id == request_id for life in self.lives):
            with pytest.raises(DuplicateRequestError, match="already in the engine"):
                self.ledger.admit(prepared, 0.0)
        else:
            self.lives.append(Life(self.ledger.admit(prepared, 0.0)))

    @for_one("caller_there")
    def leave(self, life):
        self.ledger.leave(life.claim)
        self.ended[life.outcome if life.outcome in self.ended else "aborted"] += 1
        life.caller_there = False
        life.kept_in_ring = False
        self.ledger.leave(life.claim)  # once more changes nothing

    @for_one("here")
    def abort(self, life):
        self.ledger.abort(life.claim)
        if life.outcome in (None, "delivered"):
            life.outcome = "aborted"
        if not life.closed:
            life.kept_in_ring = False
        life.aborted = True

    @for_one("collectable")
    def collect(self, life):
        """Take the result, as a stream does; the caller stays for a while."""
        tensors = life.claim.output.tensors()
        assert tensors["images"].numpy().tolist() == PICTURE.tolist()
        life.claim.output.drop()
        life.claim.mailbox.collect()
        life.kept_in_ring = False
        life.outcome = "completed"

    # -- the engine

    @rule()
    def dispatch(self):
        """Give workers what the scheduler decides, as far as there is room."""
        for worker, load in enumerate(self.ledger.loads):
            while (
                len(load.waves) < self.config.dispatch_depth
                and load.outputs < self.config.max_pending_outputs
                and (output := self.scheduler.schedule(0.0))
            ):
                self.dispatch_to(worker, output.scheduled_request_ids)

    def dispatch_to(self, worker, request_ids):
        wave = self.ledger.dispatch(worker, request_ids)
        assert tuple(request.data.request_id for request in wave) == request_ids
        lives = {life.claim.async_output_id: life for life in self.lives}
        for request in wave:
            life = lives[request.data.async_output_id]
            assert life.job is None
            life.job = Job(self.executor, worker, request.data, request.inputs)

    @precondition(lambda self: len(self.lives) % 5 == 4)
    @rule()
    def lose_everything(self):
        for claim in self.ledger:
            self.ledger.lose(claim, WorkerDiedError(0, "died", -9))
        for life in self.lives:
            if not life.closed:
                life.settle("failed")
                life.kept_in_ring = False
                life.lost = True

    # -- workers

    def hear(self):
        while self.executor.unheard:
            self.ledger.receive(*self.executor.hear())

    @for_one("worker_there")
    def progress(self, life):
        life.job.progress(3, 10)
        self.hear()

    @for_one("computing")
    def compute_done(self, life):
        life.job.compute_done()
        self.hear()
        life.computed = True
        if life.output_over:
            life.settle("delivered")

    @for_one("may_fail", by_flag=st.booleans())
    def compute_failed(self, life, by_flag):
        life.job.compute_failed(aborted() if by_flag else raised())
        self.hear()
        life.settle("aborted" if by_flag else "failed")
        life.computed = life.output_over = True

    @for_one("may_send_part", size=st.integers(1, LARGEST_PART))
    def output_part(self, life, size):
        life.job.output_part(life.job.piece(PICTURE, life.sent, life.sent + size))
        self.hear()
        life.sent += size

    @for_one("output_to_come")
    def output_ready(self, life):
        life.job.output_ready(life.job.piece(PICTURE, life.sent))
        self.hear()
        life.kept_in_ring = life.wanted and not life.sent
        life.output_over = True
        if life.computed:
            life.settle("delivered")

    @for_one("output_to_come", by_flag=st.booleans())
    def output_failed(self, life, by_flag):
        life.job.output_failed(aborted() if by_flag else raised())
        self.hear()
        life.settle("aborted" if by_flag else "failed")
        life.output_over = True

    # -- what is true at every moment

    @invariant()
    def claims_are_those_that_somebody_holds(self):
        open_claims = {life.claim.async_output_id for life in self.lives if not life.closed}
        assert {claim.async_output_id for claim in self.ledger} == open_claims
        assert len(self.ledger) == len(open_claims)
        assert all(life.claim.closed.is_set() == life.closed for life in self.lives)
        here = {life.claim.request_id: life.claim for life in self.lives if life.here}
        assert {i: self.ledger.find(i) for i in REQUEST_IDS if self.ledger.find(i)} == here
        assert self.ledger.is_idle == (not here)

    @invariant()
    def waves_hold_what_is_not_computed(self):
        computing = {life.claim.async_output_id for life in self.lives if life.computing}
        waves = [ids for load in self.ledger.loads for ids in load.waves.values()]
        assert all(waves)
        assert sum(map(len, waves)) == len(computing)
        assert set().union(*waves) == computing

    @invariant()
    def outputs_are_those_under_way(self):
        for worker, load in enumerate(self.ledger.loads):
            assert load.outputs == sum(
                life.worker_there and life.computed and life.job.worker == worker
                for life in self.lives
            )

    @invariant()
    def no_two_requests_share_a_cancel_slot(self):
        for worker, load in enumerate(self.ledger.loads):
            used = [
                life.job.data.cancel_slot
                for life in self.lives
                if life.worker_there and life.job.worker == worker
            ]
            assert sorted(used + load.free_slots) == list(range(load.cancel_slots))

    @invariant()
    def payloads_are_kept_for_callers_only(self):
        assert self.executor.payloads.lying == 0
        assert self.executor.payloads.held == sum(life.kept_in_ring for life in self.lives)

    @invariant()
    def flags_are_up_where_a_caller_left_a_worker(self):
        for life in self.lives:
            if life.worker_there:
                assert life.job.flagged == (not life.wanted)

    @invariant()
    def callers_are_told_the_first_outcome(self):
        for life in self.lives:
            mailbox = life.claim.mailbox
            if life.caller_there:
                assert mailbox.settled == (life.outcome is not None)
                assert isinstance(mailbox.error, RequestAborted) == (life.outcome == "aborted")
                assert (mailbox.error is None) == (life.outcome not in ("aborted", "failed"))

    @invariant()
    def the_counters_add_up(self):
        assert self.ledger.ended == self.ended

    def teardown(self):
        """Let workers finish and callers leave: nothing is held."""
        for life in self.lives:
            if life.output_to_come:
                life.job.output_failed(raised())
            if life.computing:
                life.job.compute_done()
        self.hear()
        for life in self.lives:
            self.ledger.leave(life.claim)
        assert self.ledger.is_idle
        assert len(self.ledger) == 0
        assert (self.scheduler.num_waiting, self.scheduler.num_running) == (0, 0)
        assert sum(self.ledger.ended.values()) == len(self.lives)
        assert (self.executor.payloads.held, self.executor.payloads.lying) == (0, 0)
        for load in self.ledger.loads:
            assert (load.waves, load.outputs) == ({}, 0)
            assert sorted(load.free_slots) == list(range(load.cancel_slots))


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=200, stateful_step_count=50)
