"""Previews on a CUDA device: nothing in them waits for it, and they show what they do on a CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import diffusers
import numpy as np
import pytest
import torch

from sidestream.engine import Completed, EngineConfig, Preview, open_engine
from sidestream.workers.clean_sample import SchedulerStep, clean_sample
from sidestream.workers.models import load_pipeline
from sidestream.workers.previews import previewer_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
SCHEDULERS = [
    ("DDIMScheduler", {}),
    ("DDPMScheduler", {}),
    ("PNDMScheduler", {"skip_prk_steps": True}),
    ("TCDScheduler", {}),
    ("LCMScheduler", {}),
    ("EulerDiscreteScheduler", {}),
    ("EulerAncestralDiscreteScheduler", {}),
    ("HeunDiscreteScheduler", {}),
    ("DPMSolverMultistepScheduler", {}),
    ("DPMSolverMultistepScheduler", FLOW),
    ("UniPCMultistepScheduler", {}),
    ("UniPCMultistepScheduler", {"predict_x0": False}),
    ("FlowMatchEulerDiscreteScheduler", {}),
    ("FlowMatchHeunDiscreteScheduler", {}),
]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let every operation that waits for the device raise."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    set_sync_debug_mode("error")
    try:
        yield
    finally:
        set_sync_debug_mode(before)


def set_sync_debug_mode(mode: int | str) -> None:
    """Set what torch does where the host waits, without its remark that this is a prototype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.parametrize(("name", "config"), SCHEDULERS)
def test_an_estimate_waits_for_nothing(name: str, config: dict[str, object]) -> None:
    scheduler = getattr(diffusers, name)(**config)
    scheduler.set_timesteps(4, device="cuda")
    sample = torch.randn(2, 4, 8, 8, device="cuda")
    for timestep in scheduler.timesteps:
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(sample, timestep)
        args = (torch.randn_like(sample), timestep, sample)
        result = scheduler.step(*args, return_dict=False)
        step = SchedulerStep(scheduler, type(scheduler).step, args, {"return_dict": False}, result)
        with no_waiting():
            estimate = clean_sample(step)
        assert estimate is not None
        assert estimate.is_cuda
        assert estimate.isfinite().all()
        sample = result[0]


@pytest.mark.parametrize("model", ["shapes", "random:sdxl", "random:flux", "random:wan"])
def test_drawing_waits_for_nothing_and_is_as_on_a_cpu(model: str) -> None:
    call = {"height": 64, "width": 64, "num_frames": 9}
    channels = {"shapes": 8, "random:sdxl": 4, "random:flux": 16, "random:wan": 16}[model]
    shape = {"random:flux": (1, 256, channels), "random:wan": (1, channels, 3, 8, 8)}
    latents = torch.randn(shape.get(model, (1, channels, 8, 8)))
    pictures = []
    for device in ("cpu", "cuda"):
        pipeline = load_pipeline(model, {}, device=device, dtype="fp32")
        previewer = previewer_of(pipeline)
        given = latents.to(device)
        previewer.draw(given, call)
        if device == "cuda":
            with no_waiting():
                picture = previewer.draw(given, call)
        else:
            picture = previewer.draw(given, call)
        assert picture is not None
        pictures.append(picture.cpu().float())
    assert (pictures[0] - pictures[1]).abs().mean() < 2


@pytest.mark.parametrize("executor", ["uni", "mp"])
async def test_previews_come_from_the_device(executor: str) -> None:
    config = EngineConfig(model="shapes", executor=executor, device="cuda", mode="step")
    previews: list[Preview] = []
    picture = None
    async with (
        open_engine(config) as engine,
        engine.stream(
            "a large red circle on a white background",
            seed=1,
            output_type="uint8",
            num_inference_steps=40,
            preview_every=1,
        ) as events,
    ):
        async for event in events:
            if isinstance(event, Preview):
                previews.append(event)
            elif isinstance(event, Completed):
                picture = event.result.output
    assert previews
    assert picture is not None
    far, near = (
        np.abs(one.image.astype(float) - picture).mean() for one in (previews[0], previews[-1])
    )
    assert near <= far
