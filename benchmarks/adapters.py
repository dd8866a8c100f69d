"""What it costs to have adapters at work for each request: milliseconds to select and to switch.

    python benchmarks/adapters.py

The architecture is that of SDXL with two adapters, on torch's meta device: nothing is computed, and
only Python's part is measured. Times are CPU time of the thread, medians. Prints one JSON object.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from diffusers.utils.peft_utils import set_weights_and_activate_adapters
from peft import LoraConfig, inject_adapter_in_model

from sidestream.workers.lanes.adapters import Adapters
from sidestream.workers.models.families_full import FAMILIES

TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2"]


def pipeline_with(names: list[str]) -> Any:
    """Make SDXL without weights, and give its denoiser adapters."""
    build, _ = FAMILIES["sdxl-full"]
    config = LoraConfig(r=8, target_modules=TARGETS)
    with torch.device("meta"):
        pipeline = build()
        for name in names:
            inject_adapter_in_model(config, pipeline.unet, name, low_cpu_mem_usage=True)
    return pipeline


def milliseconds(work: Callable[[], object], repeats: int = 50) -> float:
    """Return the median of how long something takes."""
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return round(statistics.median(times) * 1e3, 3)


def main() -> None:
    """Measure and print."""
    pipeline = pipeline_with(["style", "detail"])
    modules = [pipeline.unet, pipeline.text_encoder, pipeline.text_encoder_2]
    adapters = Adapters(modules, ["style", "detail"])
    first = milliseconds(lambda: adapters.select({"style": 1.0}), repeats=1)
    states = [adapters.state]
    adapters.select({"style": 0.5, "detail": 1.0})
    states.append(adapters.state)

    def switch() -> None:
        states.reverse()
        adapters.state = states[0]

    result = {
        "modules": sum(1 for module in modules for _ in module.modules()),
        "layers": len(adapters.state.layers),
        "first_select_ms": first,
        "select_ms": milliseconds(lambda: adapters.select({"style": 1.0})),
        "switch_ms": milliseconds(switch),
        "set_adapters_ms": milliseconds(
            lambda: set_weights_and_activate_adapters(pipeline.unet, ["style"], [1.0]), repeats=5
        ),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
