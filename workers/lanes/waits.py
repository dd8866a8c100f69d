"""A pipeline's own waits for the device, during which the thread may do something else.

Many pipelines wait for the device before they return, or read a value back. Were the thread to wait
with them, the device would have nothing to do when it is done. So a lane that waits for the stream
it works on is suspended like one that calls a component, if the hub has a use for the thread.
"""

from typing import Any

import greenlet
import torch


def current_lane() -> Any:
    """Return the lane whose own code runs on this thread, as its greenlet knows it; None: there is
    none, or a component runs."""
    lane = getattr(greenlet.getcurrent(), "sidestream_lane", None)
    return None if lane is None or lane.busy else lane


def give_way_at_stream_waits() -> None:
    """Have `torch.cuda.Stream.synchronize` suspend a lane that waits for its own stream.

    A lane that waits for another stream waits for its own, too. Elsewhere it does what it did.
    Harmless if it was told before.
    """
    stream: Any = torch.cuda.Stream
    wait = stream.synchronize
    if hasattr(wait, "__wrapped__"):
        return

    def synchronize(self: Any) -> None:
        """Wait for all the kernels in this stream to complete."""
        if (lane := current_lane()) is not None:
            own = torch.cuda.current_stream(self.device)
            if self == own:
                lane.give_way_to_device()
            else:  # perhaps it is what was current at another time, and is taken for it still
                wait(own)
        wait(self)

    synchronize.__wrapped__ = wait  # type: ignore[attr-defined]
    stream.synchronize = synchronize
