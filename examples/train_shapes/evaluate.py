"""Count how many held-out prompts a pipeline draws fully right, judged by the oracle.

python examples/train_shapes/evaluate.py --prompts 200 --sheet out/shapes.png
"""

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from PIL import Image

from sidestream.workers.models import shapes
from sidestream.workers.models.shapes import grammar
from sidestream.workers.models.shapes.oracle import judge


def held_out_prompts(count: int, seed: int) -> list[str]:
    """Draw prompts of full scenes that training never showed."""
    rng = random.Random(seed)
    return [grammar.sample(rng, held_out=True).prompt for _ in range(count)]


def generate(pipeline: Any, prompts: list[str], batch: int, **call: Any) -> list[Image.Image]:
    """Draw one picture for each prompt, the i-th from seed i."""
    pictures: list[Image.Image] = []
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        seeds = range(start, start + len(part))
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
        pictures += pipeline(part, generator=generators, **call).images
    return pictures


def contact_sheet(pictures: list[Image.Image], columns: int = 10) -> Image.Image:
    """Lay pictures out in rows."""
    width, height = pictures[0].size
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height))
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % columns * width, i // columns * height))
    return sheet


def evaluate(
    pipeline: Any,
    count: int,
    *,
    steps: int = shapes.DEFAULTS["num_inference_steps"],
    guidance: float = shapes.DEFAULTS["guidance_scale"],
    size: tuple[int, int] = (128, 128),
    seed: int = 1234,
    batch: int = 50,
    sheet: Path | None = None,
) -> dict[str, Any]:
    """Judge pictures of held-out prompts.

    Returns:
        The settings, the share of fully right pictures, faults by kind, seconds per picture.
    """
    pipeline.set_progress_bar_config(disable=True)
    prompts = held_out_prompts(count, seed)
    start = time.perf_counter()
    pictures = generate(
        pipeline,
        prompts,
        batch,
        num_inference_steps=steps,
        guidance_scale=guidance,
        width=size[0],
        height=size[1],
    )
    elapsed = time.perf_counter() - start
    if sheet is not None:
        contact_sheet(pictures[:60]).save(sheet)
    verdicts = [judge(picture, prompt) for picture, prompt in zip(pictures, prompts, strict=True)]
    return {
        "prompts": count,
        "steps": steps,
        "guidance": guidance,
        "size": size,
        "right": sum(verdict.ok for verdict in verdicts) / count,
        "faults": dict(Counter(fault for verdict in verdicts for fault in verdict.faults)),
        "seconds_per_picture": round(elapsed / count, 4),
        "wrong": [
            (i, prompt, verdict.faults)
            for i, (prompt, verdict) in enumerate(zip(prompts, verdicts, strict=True))
            if not verdict.ok
        ],
    }


def main() -> None:
    """Evaluate the committed weights, or others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=shapes.WEIGHTS)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--steps", type=int, default=shapes.DEFAULTS["num_inference_steps"])
    parser.add_argument("--guidance", type=float, default=shapes.DEFAULTS["guidance_scale"])
    parser.add_argument("--size", type=int, nargs=2, default=(128, 128))
    parser.add_argument("--seed", type=int, default=1234, help="which prompts are drawn")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--shift", type=float, help="override the scheduler's flow_shift")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sheet", type=Path, help="save the first 60 pictures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pipeline = DiffusionPipeline.from_pretrained(
        args.weights, dtype=torch.float32, local_files_only=True
    ).to(args.device)
    if args.shift is not None:
        pipeline.scheduler.register_to_config(flow_shift=args.shift)
    report = evaluate(
        pipeline,
        args.prompts,
        steps=args.steps,
        guidance=args.guidance,
        size=tuple(args.size),
        seed=args.seed,
        batch=args.batch,
        sheet=args.sheet,
    )
    print(json.dumps(report))


if __name__ == "__main__":
    main()
