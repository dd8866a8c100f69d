"""How often does the embedded model draw what it was asked for, through sidestream?

Runs unseen prompts through an engine, judges each picture with the oracle, prints one JSON object.

    python benchmarks/shapes_accuracy.py --prompts 200 --executor mp
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

import trio

from sidestream.engine import open_engine
from sidestream.workers.models.shapes import grammar
from sidestream.workers.models.shapes.oracle import judge


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Draw and judge."""
    rng = random.Random(arguments.seed)
    prompts = [grammar.sample(rng, held_out=True).prompt for _ in range(arguments.prompts)]
    wrong: dict[str, str] = {}
    seconds: list[float] = []
    todo = iter(enumerate(prompts))
    async with open_engine(
        model="shapes", executor=arguments.executor, max_num_seqs=arguments.max_num_seqs
    ) as engine:

        async def caller() -> None:
            for index, prompt in todo:
                result = await engine.generate(prompt, seed=index)
                seconds.append(result.timings.forward)
                verdict = await trio.to_thread.run_sync(judge, result.output, prompt)
                if not verdict.ok:
                    wrong[prompt] = str(verdict)

        began = time.monotonic()
        async with trio.open_nursery() as nursery:
            for _ in range(arguments.concurrency):
                nursery.start_soon(caller)
        wall = time.monotonic() - began
    return {
        "prompts": len(prompts),
        "right": len(prompts) - len(wrong),
        "accuracy": round(1 - len(wrong) / len(prompts), 4),
        "forward_s_mean": round(sum(seconds) / len(seconds), 3),
        "pictures_per_s": round(len(prompts) / wall, 2),
        "wrong": wrong,
    }


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--executor", choices=["mp", "uni"], default="mp")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--max-num-seqs", type=int, default=1)
    print(json.dumps(trio.run(measure, parser.parse_args())))


if __name__ == "__main__":
    main()
