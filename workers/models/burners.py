"""Ways to take a given time on a device: what a step of the synthetic model does."""

import time
from collections.abc import Callable
from typing import Literal

import torch

Work = Literal["sleep", "matmul"]
HostSync = Literal["none", "end", "step"]
Burner = Callable[[], None]

_GPU_SIDES = (4096, 2048, 1024, 512, 256)
_WARM_UP_SECONDS = 0.2  # a GPU raises its clocks within this time


def make_burner(
    seconds: float, device: torch.device, work: Work | None, *, sync_each_step: bool = False
) -> Burner:
    """Make a function that takes ``seconds`` on a device.

    Args:
        seconds: Time of one call, s; with 0 the function returns at once.
        device: Where the time is spent.
        work: "sleep" leaves the CPU to others, "matmul" uses it; None is "sleep" on a CPU and
            "matmul" on a GPU, where only that exists.
        sync_each_step: Whether the host waits for the GPU at the end of each call.

    Raises:
        ValueError: Sleeping on a GPU: the host would sleep and the GPU have nothing to do.
    """
    if device.type == "cpu":
        burn = _burn_on_cpu if work == "matmul" else _sleep
        return (lambda: burn(seconds)) if seconds else _nothing
    if work == "sleep":
        raise ValueError(f"work 'sleep' is for a CPU; on {device} the work is 'matmul'")
    launch = _gpu_burner(seconds, device) if seconds else _nothing
    if not sync_each_step:
        return launch

    def burn_and_wait() -> None:
        launch()
        torch.cuda.current_stream(device).synchronize()

    return burn_and_wait


def _nothing() -> None:
    pass


def _sleep(seconds: float) -> None:
    time.sleep(seconds)


def _burn_on_cpu(seconds: float) -> None:
    end = time.perf_counter() + seconds
    a = torch.full((192, 192), 1 / 192)
    while time.perf_counter() < end:
        torch.mm(a, a)


def _gpu_burner(seconds: float, device: torch.device) -> Burner:
    """Choose a matrix size and a number of matmuls that take ``seconds``, by measuring."""
    for side in _GPU_SIDES:
        a = torch.full((side, side), 1 / side, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(a)
        one = _seconds_of_one(a, out)
        if one <= seconds / 10 or side == _GPU_SIDES[-1]:
            break
    launches = max(1, round(seconds / one))

    def burn() -> None:
        for _ in range(launches):
            torch.mm(a, a, out=out)

    return burn


def _seconds_of_one(a: torch.Tensor, out: torch.Tensor) -> float:
    """Measure a matmul in a long row of them, with the clocks up."""
    end = time.perf_counter() + _WARM_UP_SECONDS
    while time.perf_counter() < end:
        for _ in range(20):
            torch.mm(a, a, out=out)
        torch.cuda.synchronize(a.device)
    launches = 200
    start, stop = (torch.Event(a.device, enable_timing=True) for _ in range(2))
    with torch.cuda.device(a.device):
        start.record()
        for _ in range(launches):
            torch.mm(a, a, out=out)
        stop.record()
        stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / launches
