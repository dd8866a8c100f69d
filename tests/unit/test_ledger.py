"""The ledger, one event at a time."""

import numpy as np
import pytest

from sidestream.engine import (
    DiffusionRequest,
    DuplicateRequestError,
    EngineConfig,
    ExecutionError,
    RequestAborted,
    WorkerDiedError,
)
from sidestream.engine.admission import prepare
from sidestream.engine.claims import ClaimState, ProtocolError
from sidestream.engine.executor import cancel_slots_for
from sidestream.engine.ledger import ClaimLedger
from sidestream.engine.sched import RequestScheduler
from sidestream.ipc_ext.messages import AsyncDiffusionOutput, AsyncOutputKind, Timings

from .fakes import CAPABILITIES, FORWARD, FakeExecutor, Job, aborted, raised


class Bench:
    """A ledger, and what it is bound to."""

    def __init__(self, **settings):
        self.config = EngineConfig(executor=FakeExecutor, **settings)
        self.executor = FakeExecutor(self.config)
        self.payloads = self.executor.payloads
        self.scheduler = RequestScheduler(max_num_seqs=self.config.max_num_seqs)
        self.scheduler.initialize(max_num_running_reqs=100)
        self.changes = 0
        self.ledger = ClaimLedger(
            self.scheduler,
            self.executor,
            num_workers=self.config.num_workers,
            cancel_slots=cancel_slots_for(self.config),
            trace_limit=self.config.trace_requests,
            changed=self.on_change,
        )

    def on_change(self):
        self.changes += 1

    def admit(self, request_id, **params):
        request = DiffusionRequest.make("a", request_id=request_id, **params)
        return self.ledger.admit(prepare(request, CAPABILITIES, self.config), 7.0)

    def dispatch(self, worker=0):
        ids = self.scheduler.schedule(0.0).scheduled_request_ids
        return [
            Job(self.executor, worker, request.data, request.inputs)
            for request in self.ledger.dispatch(worker, ids)
        ]

    def run(self, request_id, **params):
        """Admit a request and dispatch it alone."""
        claim = self.admit(request_id, **params)
        (job,) = self.dispatch()
        return claim, job

    def hear(self):
        while self.executor.unheard:
            self.ledger.receive(*self.executor.hear())


@pytest.fixture
def bench():
    return Bench()


def test_what_a_worker_gets(bench):
    image = np.arange(4, dtype=np.uint8)
    bench.admit(
        "a", seed=5, num_outputs=2, width=64, output_type="png", extra_args={"image": image}
    )
    (job,) = bench.dispatch()
    assert (job.data.request_id, job.data.seeds, job.data.output_type) == ("a", (5, 6), "png")
    assert job.data.call == {"prompt": "a", "width": 64, "num_images_per_prompt": 2}
    assert [(tensor.name, bytes(tensor.data)) for tensor in job.inputs] == [
        ("image", image.tobytes())
    ]


def test_output_ids_are_never_used_twice(bench):
    first = bench.admit("a")
    bench.ledger.leave(first)
    second = bench.admit("a")
    assert (first.async_output_id, second.async_output_id) == (1, 2)


def test_an_id_is_taken_until_both_sides_let_go(bench):
    claim, job = bench.run("a")
    for step in (lambda: None, lambda: bench.ledger.leave(claim), job.compute_done):
        step()
        bench.hear()
        with pytest.raises(DuplicateRequestError, match="request_id 'a' is already in the engine"):
            bench.admit("a")
    job.output_failed(aborted())
    bench.hear()
    assert bench.ledger.find("a") is None
    assert bench.admit("a")


def test_an_id_is_taken_until_its_result_was_fetched(bench):
    claim, job = bench.run("a")
    job.finish()
    bench.hear()
    assert len(bench.ledger) == 0
    assert bench.ledger.find("a") is claim
    bench.ledger.leave(claim)
    assert bench.ledger.find("a") is None
    assert bench.ledger.is_idle


@pytest.mark.parametrize("order", ["compute first", "output first"])
def test_both_orders_deliver(bench, order):
    claim, job = bench.run("a", seed=3)
    first, second = job.compute_done, job.output_ready
    if order == "output first":
        first, second = second, first
    first()
    bench.hear()
    assert not claim.mailbox.settled
    second()
    bench.hear()
    assert claim.mailbox.delivered
    assert claim.output.tensors()["images"].numpy().tolist() == [3]
    assert claim.trace.forward_end == FORWARD.forward_end
    assert claim.state is ClaimState.CLOSED


def test_what_lies_ready_for_callers_to_come(bench):
    claims, jobs = zip(*(bench.run(name) for name in "abcd"), strict=True)
    jobs[0].finish()
    jobs[1].output_ready()
    jobs[2].compute_done()
    jobs[3].output_failed(raised())
    bench.hear()
    assert bench.ledger.uncollected() == [claims[0], claims[1]]
    bench.ledger.leave(claims[1])
    assert bench.ledger.uncollected() == [claims[0]]


def test_the_end_of_the_forward_makes_room_not_the_output(bench):
    _, job = bench.run("a")
    job.compute_done()
    bench.hear()
    (load,) = bench.ledger.loads
    assert (load.waves, load.outputs, bench.scheduler.num_running) == ({}, 1, 0)
    job.output_ready()
    bench.hear()
    assert load.outputs == 0


def test_a_wave_is_over_when_its_last_request_is_computed():
    bench = Bench(max_num_seqs=2)
    bench.admit("a")
    bench.admit("b")
    first, second = bench.dispatch()
    (load,) = bench.ledger.loads
    first.compute_done()
    bench.hear()
    assert len(load.waves) == 1
    second.compute_failed(raised())
    bench.hear()
    assert len(load.waves) == 0


def test_an_error_has_the_remote_traceback(bench):
    claim, job = bench.run("a")
    job.compute_failed(raised("ValueError: bad size"))
    bench.hear()
    error = claim.mailbox.error
    assert isinstance(error, ExecutionError)
    assert str(error) == "ValueError: bad size"
    assert (error.remote_type, "Traceback" in error.remote_traceback) == ("ValueError", True)
    assert "bad size" in error.__notes__[0]


def test_an_error_of_the_output_is_told_at_once(bench):
    """Also before the forward has ended: there is nothing to wait for."""
    claim, job = bench.run("a")
    job.output_failed(raised())
    bench.hear()
    error = claim.mailbox.error
    assert isinstance(error, ExecutionError)
    job.compute_done()
    bench.hear()
    assert claim.mailbox.error is error
    assert claim.state is ClaimState.CLOSED


def test_pieces_that_an_error_follows_are_dropped(bench):
    claim, job = bench.run("a")
    job.output_part(job.piece(np.zeros(9, np.uint8), 0, 4))
    job.output_failed(raised())
    job.compute_done()
    bench.hear()
    bench.ledger.leave(claim)
    assert bench.ledger.ended == {"completed": 0, "failed": 1, "aborted": 0}
    assert (bench.payloads.lying, bench.payloads.held) == (0, 0)


def test_what_comes_after_the_end_is_given_back(bench):
    claim, job = bench.run("a")
    bench.ledger.lose(claim, WorkerDiedError(0, "died", -9))
    job.finish()
    job.progress(1)
    bench.hear()
    assert (bench.payloads.lying, bench.payloads.held) == (0, 0)
    assert isinstance(claim.mailbox.error, WorkerDiedError)


def test_what_nobody_asked_for_is_given_back(bench):
    piece = Job(bench.executor, 0, None, ()).piece(np.zeros(4, np.uint8))
    for output_id in (None, 0, 99):
        message = AsyncDiffusionOutput(AsyncOutputKind.OUTPUT_READY, async_output_id=output_id)
        bench.ledger.receive(0, message)
    message.output = (piece,)
    bench.ledger.receive(0, message)
    assert bench.payloads.lying == 0


@pytest.mark.parametrize(
    "words",
    [
        ["compute_done", "compute_done"],
        ["output_ready", "output_ready"],
        ["output_ready", "output_part"],
    ],
)
def test_a_worker_that_repeats_itself_has_broken_the_protocol(bench, words):
    _, job = bench.run("a")
    for word in words:
        getattr(job, word)()
    with pytest.raises(ProtocolError, match="cannot follow in state"):
        bench.hear()


def test_an_output_that_ends_before_it_is_complete_breaks_the_protocol(bench):
    _, job = bench.run("a")
    job.output_part(job.piece(np.zeros(9, np.uint8), 0, 4))
    job.output_ready(job.piece(np.zeros(9, np.uint8), 4, 8))
    with pytest.raises(ProtocolError, match="output ended before images was complete"):
        bench.hear()


def test_a_piece_that_does_not_follow_is_given_back(bench):
    _, job = bench.run("a")
    job.output_part(job.piece(np.zeros(9, np.uint8), 4, 8))
    with pytest.raises(ProtocolError, match="a piece of 4 bytes at 4 does not fit 'images'"):
        bench.hear()
    assert bench.payloads.lying == 0


def test_a_result_left_lying_is_an_abort_in_the_count(bench):
    claim, job = bench.run("a")
    job.finish()
    bench.hear()
    bench.ledger.leave(claim)
    assert bench.ledger.ended == {"completed": 0, "failed": 0, "aborted": 1}


def test_an_abort_overtakes_a_result_that_was_not_fetched(bench):
    claim, job = bench.run("a")
    job.finish()
    bench.hear()
    bench.ledger.abort(claim)
    assert isinstance(claim.mailbox.error, RequestAborted)


def test_an_abort_comes_too_late_for_a_result_that_was_fetched(bench):
    claim, job = bench.run("a")
    job.finish()
    bench.hear()
    claim.mailbox.collect()
    bench.ledger.abort(claim)
    bench.ledger.leave(claim)
    assert bench.ledger.ended == {"completed": 1, "failed": 0, "aborted": 0}


def test_a_cancel_flag_carries_its_requests_own_ticket(bench):
    claim, job = bench.run("a")
    bench.ledger.leave(claim)
    assert job.flagged
    assert bench.executor.flags == [(0, claim.async_output_id)]


def test_progress_after_the_forward_is_not_told(bench):
    claim, job = bench.run("a")
    job.progress(1, 4)
    bench.hear()
    assert claim.mailbox.progress == (1, 4)
    job.compute_done()
    job.progress(2, 4)
    bench.hear()
    assert claim.mailbox.progress == (1, 4)


def test_timings_are_the_last_ones_told(bench):
    claim, job = bench.run("a")
    for end in (5, 6):
        bench.ledger.receive(
            0,
            AsyncDiffusionOutput(
                AsyncOutputKind.PROGRESS,
                async_output_id=job.data.async_output_id,
                timings=Timings(forward_end=end),
            ),
        )
    assert claim.trace.forward_end == 6


def test_what_makes_something_schedulable_is_told(bench):
    def tells(step):
        before = bench.changes
        step()
        bench.hear()
        return bench.changes > before

    assert tells(lambda: bench.admit("a"))
    claim = bench.ledger.find("a")
    (job,) = bench.dispatch()
    assert not tells(lambda: job.progress(1))
    assert tells(job.compute_done)  # a place
    assert tells(job.output_ready)  # an output less
    assert tells(lambda: bench.ledger.leave(claim))  # idle
