"""The end of a native stack."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
import textwrap

import greenlet
import pytest

from sidestream.ipc_ext import call_at_stack_end

known = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64") or platform.libc_ver()[0] != "glibc",
    reason="how a stack ends, and backtrace(), are not known here",
)


def frames():
    """Count the native frames from here on."""
    places = (ctypes.c_void_p * 10_000)()
    return ctypes.CDLL(None).backtrace(places, len(places))


def deeper(depth, function):
    """Call a function so much deeper in the native stack."""
    return max([depth], key=lambda depth: deeper(depth - 1, function)) if depth else function()


@known
def test_what_walks_the_stack_stops_there():
    seen = []

    def look():
        seen.append(frames())

    for depth in (0, 5, 50):
        deeper(depth, lambda: call_at_stack_end(look))
    assert len(set(seen)) == 1
    outside = []
    for depth in (0, 50):
        deeper(depth, lambda: outside.append(frames()))
    assert outside[0] < outside[1] - 50


def test_what_is_raised_goes_through():
    class Own(BaseException):
        pass

    for kind in (ValueError, Own, greenlet.GreenletExit):
        error = kind("a")

        def fail(error=error):
            raise error

        with pytest.raises(kind) as caught:
            call_at_stack_end(fail)
        assert caught.value is error


def test_greenlets_switch_inside():
    def count(upto):
        def run():
            for number in range(upto):
                seen.append(number)
                parent.switch()

        call_at_stack_end(run)

    seen = []
    parent = greenlet.getcurrent()
    lanes = [greenlet.greenlet(count) for _ in range(3)]
    for lane in lanes:
        lane.switch(2)
    while any(lanes):
        for lane in [lane for lane in lanes if lane]:
            lane.switch()
    assert seen == [0, 0, 0, 1, 1, 1]


def test_errors_of_torch_in_a_lane_that_goes_on_at_another_depth_end_nothing_else():
    """In a process of its own, which it would end."""
    script = """
        import torch
        from torch import nn
        from sidestream.workers.model_runner import DiffusionModelRunner, RunnerRequest
        from sidestream.workers.platform import CpuPlatform

        class Events:
            def on_progress(self, *told):
                pass

            on_done = on_progress

        class Pipeline:
            def __init__(self):
                self.unet = nn.Linear(4, 4)

            def __call__(self):
                sample = torch.ones(1, 4)
                try:
                    for _ in range(9):
                        sample = self.unet(sample)
                finally:
                    try:
                        torch.cat([torch.ones(1, 2), torch.ones(2, 3)], 1)
                    except RuntimeError:
                        print("raised", flush=True)

        for open_ in range(1, 4):
            runner = DiffusionModelRunner(Pipeline(), CpuPlatform(), merge=False)
            names = [str(number) for number in range(open_)]
            runner.execute_stepwise([RunnerRequest(name, {}) for name in names], names, Events())
            runner.execute_stepwise([], names, Events())
            runner.execute_stepwise([], names, Events())
            runner.abandon_steps()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["raised"] * 6), done.stderr
