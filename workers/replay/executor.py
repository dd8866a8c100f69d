"""`ReplayExecutor`: runs component calls by replaying recorded ones, where that is proven to give
the same bits.

Launching the thousands of kernels of a denoiser from Python takes longer than they run, unless the
pictures are large. A CUDA graph launches them at once. So of each kind of call (one component, the
same shapes and settings) the first is watched, the second is recorded beside its ordinary run, and
from the third on the recording is replayed with the new arguments.

What is watched for: a call that waits for the device, draws random numbers, keeps something for the
next call or changes its arguments would not do so in a replay, and is never recorded. What the
recording gives for the second call has to equal, bit for bit, what the call itself gave. So a
component that cannot be replayed costs its first two calls a little, and runs as ever.

All recordings share one pool of memory, since they never run at the same time, so they are also
forgotten together: when they take more than their budget, and when the device runs out of memory.
Those still in use are recorded anew at their next call.
"""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..graphs import Graphs
from ..lanes import ComponentCall, Hub, execute_eagerly
from ..lanes.call import Arguments
from .recording import (
    Recording,
    Unrecordable,
    check_result,
    signature_of,
    tensors_in,
)
from .watch import Watch, addresses_of, check_module

KINDS_KEPT = 4096
"""Kinds of calls that are remembered."""
KINDS_ALLOWED = 64
"""A component whose calls are of more kinds than this, and are seldom of the same kind twice, is
left alone: a setting that is no tensor changes with every call."""
WATCHED = 3
"""How often a call is watched that leaves something on its module: perhaps it does so once only."""
REASON_LIMIT = 200


class _Kind:
    """What is known of the calls of one kind.

    Attributes:
      module: keeps its id from being given to another one.
      where: the component and the method, for people.
      recording: repeats the call; None before there is one.
      refusal: why there will be none.
      watched: how many calls were watched.
      steady: the last of them left the module as it was.
      epoch: up to when the module is known to be as it was recorded.
      weights: where its weights were then.
    """

    __slots__ = ("epoch", "module", "recording", "refusal", "steady", "watched", "weights", "where")

    def __init__(self, call: ComponentCall) -> None:
        self.module = call.module
        self.where = (call.path, call.method)
        self.recording: Recording | None = None
        self.refusal: str | None = None
        self.watched = 0
        self.steady = False
        self.epoch = 0
        self.weights: tuple[int, ...] = ()


@dataclass(slots=True)
class _Tally:
    """How varied the calls of one method of a component are."""

    kinds: int = 0
    replayed: int = 0


@dataclass(slots=True)
class ReplayCounts:
    """What a `ReplayExecutor` has done so far.

    Attributes:
      eager: calls that ran as ever.
      recorded: recordings that were made.
      replayed: calls that were replayed.
      drops: how often all recordings were forgotten.
    """

    eager: int = 0
    recorded: int = 0
    replayed: int = 0
    drops: int = 0


class ReplayExecutor:
    """An executor of component calls for a hub.

    Args:
      hub: whose lanes make the calls.
      graphs: records work on the device.
      budget: bytes of device memory that recordings may hold.
    """

    def __init__(self, hub: Hub, graphs: Graphs, budget: int) -> None:
        self._hub = hub
        self._graphs = graphs
        self._budget = budget
        self._kinds: OrderedDict[Hashable, _Kind] = OrderedDict()
        self._strange: Counter[tuple[str, str, str]] = Counter()
        self._tallies: dict[tuple[int, str], _Tally] = {}
        self._epoch = 0
        self._busy = False
        self.counts = ReplayCounts()

    def __call__(self, call: ComponentCall) -> Any:
        """Run a call."""
        if self._busy:  # a component that calls another one
            return execute_eagerly(call)
        self._busy = True
        try:
            return self._run(call)
        except Exception as error:
            if self._hub.platform.is_out_of_memory(error):
                self._drop()  # whoever tries again has more
            raise
        finally:
            self._busy = False

    def doubt(self) -> None:
        """Look at the modules again before anything is replayed: somebody may have changed them."""
        self._epoch += 1

    def statistics(self) -> dict[str, Any]:
        """Return counts, the memory in use, and which calls are not recorded and why."""
        kinds = list(self._kinds.values())
        refused = Counter((*kind.where, kind.refusal) for kind in kinds if kind.refusal)
        refused += self._strange
        return {
            "eager": self.counts.eager,
            "recorded": self.counts.recorded,
            "replayed": self.counts.replayed,
            "drops": self.counts.drops,
            "recordings": sum(kind.recording is not None for kind in kinds),
            "bytes": self._graphs.bytes_used,
            "refused": [
                {"component": path, "method": method, "reason": reason, "kinds": count}
                for (path, method, reason), count in refused.most_common(32)
            ],
        }

    # ------------------------------------------------------------------ one call

    def _run(self, call: ComponentCall) -> Any:
        if self._hub.exclusive is not None or self._hub.has_cache(call.module):
            return self._eagerly(call)  # its weights are a lane's own, or it decides on data
        arguments = call.named_arguments()
        tally = self._tallies.setdefault((id(call.module), call.method), _Tally())
        try:
            key = self._key(call, arguments, tally)
        except Unrecordable as obstacle:
            self._strange[call.path, call.method, str(obstacle)] += 1
            return self._eagerly(call)
        kind = self._kinds.get(key)
        if kind is None:
            tally.kinds += 1
            return self._first(call, arguments, key)
        self._kinds.move_to_end(key)
        self._renew(kind)
        if kind.refusal is not None:
            return self._eagerly(call)
        if not kind.steady:
            return self._watched(call, arguments, kind)
        if kind.recording is None:
            return self._recorded(call, arguments, kind)
        tally.replayed += 1
        self.counts.replayed += 1
        return kind.recording.replay(arguments)

    def _eagerly(self, call: ComponentCall) -> Any:
        self.counts.eager += 1
        return execute_eagerly(call)

    def _key(self, call: ComponentCall, arguments: Arguments, tally: _Tally) -> Hashable:
        if tally.kinds > max(KINDS_ALLOWED, tally.replayed):
            raise Unrecordable("its settings change with every call")
        signature = signature_of(arguments)
        return (id(call.module), call.method, signature, self._hub.surroundings())

    def _first(self, call: ComponentCall, arguments: Arguments, key: Hashable) -> Any:
        """Run a kind of call for the first time."""
        kind = _Kind(call)
        self._kinds[key] = kind
        if len(self._kinds) > KINDS_KEPT:
            self._kinds.popitem(last=False)
        try:
            check_module(call.module, self._graphs.device)
        except Unrecordable as obstacle:
            kind.refusal = str(obstacle)
            return self._eagerly(call)
        return self._watched(call, arguments, kind)

    def _watched(self, call: ComponentCall, arguments: Arguments, kind: _Kind) -> Any:
        """Run a call, and see what it does beside computing."""
        watch = Watch(self._hub, call.module, arguments)
        self.counts.eager += 1
        result, waited = self._graphs.observe(partial(execute_eagerly, call))
        kind.refusal = watch.finding()
        if waited is not None:
            kind.refusal = f"it waits for the device: {waited}"[:REASON_LIMIT]
        kind.watched += 1
        kind.steady = not watch.has_kept_something()
        if not kind.steady and kind.watched == WATCHED:
            kind.refusal = "it keeps something of each call"
        try:
            check_result(result)
        except Unrecordable as obstacle:
            kind.refusal = str(obstacle)
        return result

    def _recorded(self, call: ComponentCall, arguments: Arguments, kind: _Kind) -> Any:
        """Run a call, and record it if the recording gives the same."""
        self.counts.eager += 1
        result = self._graphs.rehearse(partial(execute_eagerly, call))
        self._hub.platform.keep_for_stream(*tensors_in(result))
        before = self._graphs.bytes_used
        try:
            recording = Recording(self._graphs, call, arguments)
            if not _same(recording.replay(arguments), result):
                raise Unrecordable("a replay gives something else")
        except Exception as error:  # whatever it is, the call itself has succeeded
            if self._hub.platform.is_fatal(error):
                raise
            kind.refusal = _reason(error)
            return result
        self.counts.recorded += 1
        self._keep(kind, recording, self._graphs.bytes_used - before)
        return result

    # ------------------------------------------------------------------ what is kept

    def _keep(self, kind: _Kind, recording: Recording, nbytes: int) -> None:
        if nbytes > self._budget:
            kind.refusal = f"it takes {nbytes >> 20} MiB of the {self._budget >> 20} for recordings"
        if self._graphs.bytes_used > self._budget:
            self._drop()
        else:
            kind.recording = recording
            kind.epoch = self._epoch
            kind.weights = addresses_of(kind.module)

    def _drop(self) -> None:
        """Forget all recordings."""
        for kind in self._kinds.values():
            kind.recording = None
        self._graphs.drop()
        self.counts.drops += 1

    def _renew(self, kind: _Kind) -> None:
        """Forget the recording of a module that is no longer as it was."""
        if kind.epoch == self._epoch:
            return
        kind.epoch = self._epoch
        try:
            check_module(kind.module, self._graphs.device)
        except Unrecordable as obstacle:
            kind.recording, kind.refusal = None, str(obstacle)
        else:
            if kind.weights != addresses_of(kind.module):
                kind.recording = None


def _same(a: Any, b: Any) -> bool:
    ours, theirs = list(tensors_in(a)), list(tensors_in(b))
    return len(ours) == len(theirs) and all(map(_equal, ours, theirs))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    # NaN is not equal to itself.
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _reason(error: Exception) -> str:
    if isinstance(error, Unrecordable):
        return str(error)
    return f"{type(error).__name__}: {error}"[:REASON_LIMIT]
