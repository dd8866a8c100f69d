"""Where do pipelines make the host wait for the device?

Runs small pipelines with random weights, each with its own scheduler and with common ones, by way
of lanes, and notes the place of every operation that waits: torch's debug mode tells them. Each
runs with two numbers of steps: what grows with them is in the denoising loop.

    python benchmarks/host_syncs.py > host_syncs.json
    python benchmarks/host_syncs.py --page plain.json host_syncs.json    # into docs/host-syncs.md
    python benchmarks/host_syncs.py --plain > plain.json    # as diffusers runs them, without lanes
    python benchmarks/host_syncs.py --device cpu    # values that are read, wherever they are
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import torch

from sidestream.workers.model_runner import DiffusionModelRunner, RunnerOutput, RunnerRequest
from sidestream.workers.models import load_pipeline
from sidestream.workers.platform import platform_for

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/host-syncs.md"
REGION = re.compile(r"(<!-- host syncs: begin -->\n).*(<!-- host syncs: end -->)", re.DOTALL)

CLASSIC = (
    "DDIMScheduler",
    "PNDMScheduler",
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "UniPCMultistepScheduler",
    "LCMScheduler",
)
FLOW = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")
FAMILIES: dict[str, tuple[str, ...]] = {
    "sd15": CLASSIC,
    "sdxl": CLASSIC,
    "sd3": FLOW,
    "flux": FLOW,
    "wan": ("FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler"),
}
STEPS = (4, 8)
READS = ("item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__")
"""Methods that need a value on the host."""


class Places:
    """Counts where something happened."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self) -> None:
        """Count the innermost line of the pipeline or a library above torch that is running."""
        frames = traceback.extract_stack()[:-1]
        for frame in reversed(frames):
            name = frame.filename
            if "/torch/" in name or name == __file__ or name.endswith("/warnings.py"):
                continue
            short = re.sub(r".*/site-packages/", "", name).removeprefix(f"{ROOT}/")
            line = (frame.line or "").strip()
            self.counts[f"{short}:{frame.lineno} `{line}`"] += 1
            return


@contextmanager
def waits_on_cuda(places: Places) -> Iterator[None]:
    """Note every operation that waits for the device."""
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("warn")  # the first time, it warns of itself
        warnings.simplefilter("always")

        def show(message: Warning | str, *_: object, **__: object) -> None:
            if "synchronizing CUDA operation" in str(message):
                places.note()

        warnings.showwarning = show
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


@contextmanager
def reads_on_cpu(places: Places) -> Iterator[None]:
    """Note every value that is read; on a device, those that are there would be waited for."""
    kept = {name: torch.Tensor.__dict__.get(name) for name in READS}
    for name in READS:
        setattr(torch.Tensor, name, _noting(getattr(torch.Tensor, name), places))
    try:
        yield
    finally:
        for name, method in kept.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)


def _noting(method: Any, places: Places) -> Any:
    def noting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        places.note()
        return method(tensor, *args, **kwargs)

    return noting


class Events:
    """Keeps what became of a request."""

    output: RunnerOutput | None = None

    def on_progress(self, request_id: str, step: int, total: int | None) -> None:
        pass

    def on_done(self, output: RunnerOutput) -> None:
        self.output = output


Run = Callable[[int], None]
"""Runs a request of so many steps."""


def way_of(pipeline: Any, device: str, *, plain: bool) -> Run:
    """Return what runs a pipeline: lanes, or its own call."""
    if plain:
        return lambda steps: pipeline(**call_of(pipeline, steps))
    runner = DiffusionModelRunner(pipeline, platform_for(device), merge=False, graph_budget=0)

    def run(steps: int) -> None:
        events = Events()
        runner.execute_model_batch([RunnerRequest("a", call_of(pipeline, steps), seed=0)], events)
        if events.output is None or events.output.error:
            raise RuntimeError(events.output.error if events.output else "no output")

    return run


def call_of(pipeline: Any, steps: int) -> dict[str, Any]:
    """Return the arguments of a request."""
    return {
        **pipeline.sidestream_defaults,
        "prompt": "a cat",
        "generator": torch.Generator().manual_seed(0),
        "output_type": "pt",
        "num_inference_steps": steps,
    }


def waits_of(run: Run, device: str) -> list[dict[str, Any]]:
    """Return the places in which a pipeline waits, those of the loop first."""
    watch = waits_on_cuda if device == "cuda" else reads_on_cpu
    counts = []
    for steps in STEPS:
        run(steps)  # what happens once only
        places = Places()
        with watch(places):
            run(steps)
        counts.append(places.counts)
    few, many = counts
    rows = []
    for place in sorted(few | many):
        per_step = (many[place] - few[place]) / (STEPS[1] - STEPS[0])
        outside = few[place] - STEPS[0] * per_step
        rows.append({"place": place, "per_step": per_step, "per_request": outside})
    return sorted(rows, key=lambda row: (-row["per_step"], row["place"]))


def pipelines(device: str) -> Iterator[tuple[str, str, Any]]:
    """Yield families, names of schedulers, and pipelines with them: first each one's own."""
    for family, schedulers in FAMILIES.items():
        pipeline = load_pipeline(f"random:{family}", {}, device=device, dtype=None)
        own = pipeline.scheduler
        yield family, type(own).__name__, pipeline
        for name in schedulers:
            if name != type(own).__name__:
                pipeline.scheduler = getattr(diffusers, name).from_config(own.config)
                yield family, name, pipeline


def measure(device: str, *, plain: bool) -> dict[str, Any]:
    """Run everything."""
    entries = []
    for family, scheduler, pipeline in pipelines(device):
        entry: dict[str, Any] = {"family": family, "scheduler": scheduler}
        try:
            entry["waits"] = waits_of(way_of(pipeline, device, plain=plain), device)
        except Exception as error:  # told in the table; the others go on
            entry["error"] = f"{type(error).__name__}: {error}".splitlines()[-1]
        print(json.dumps(entry), file=sys.stderr, flush=True)
        entries.append(entry)
    return {
        "command": " ".join(["python", "benchmarks/host_syncs.py", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "entries": entries,
    }


def table(told: dict[str, Any]) -> str:
    """Return what was measured as Markdown."""
    versions = f"torch {told['torch']}, diffusers {told['diffusers']}"
    lines = [
        f"`{told['command']}` on {told['device']}, {versions}:",
        "",
        "| pipeline, scheduler | in each step | once in each request |",
        "|---|---|---|",
    ]
    for entry in told["entries"]:
        if "error" in entry:
            cells = [f"not run: {entry['error']}", ""]
        else:
            cells = [_cell(entry["waits"], key) for key in ("per_step", "per_request")]
        lines.append(f"| {entry['family']}, {entry['scheduler']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(waits: list[dict[str, Any]], key: str) -> str:
    counted = [(wait[key], wait["place"].replace("|", "\\|")) for wait in waits if wait[key]]
    return "<br>".join(f"{count:g} x {place}" for count, place in counted) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--plain", action="store_true", help="without lanes")
    parser.add_argument(
        "--page", type=Path, nargs="+", help="write measurements into docs/host-syncs.md"
    )
    arguments = parser.parse_args()
    if arguments.page is None:
        print(json.dumps(measure(arguments.device, plain=arguments.plain), indent=1))
        return
    text = "\n".join(table(json.loads(path.read_text())) for path in arguments.page)
    PAGE.write_text(REGION.sub(lambda found: found[1] + text + found[2], PAGE.read_text()))


if __name__ == "__main__":
    main()
