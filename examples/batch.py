"""A plain `trio.run` script: many prompts, each with a deadline, all gone at Ctrl-C.

python examples/batch.py out/
"""

from __future__ import annotations

import sys

import trio

from sidestream.engine import DeadlineExceededError, DiffusionEngine, open_engine

PROMPTS = [
    "a large red circle above a small blue square on a white background",
    "a small yellow star left of a large green triangle on a black background",
    "a large purple heart on a white background",
    "a small orange diamond below a large white circle on a blue background",
]


async def draw(engine: DiffusionEngine, prompt: str, target: trio.Path) -> None:
    """Draw one prompt into a file."""
    try:
        result = await engine.generate(prompt, seed=1, output_type="png", deadline=60)
    except DeadlineExceededError as error:
        print(error)
        return
    await target.write_bytes(result.output)
    print(f"{target}: {prompt} ({result.timings.total:.2f} s)")


async def main(folder: trio.Path) -> None:
    """Draw everything."""
    await folder.mkdir(parents=True, exist_ok=True)
    async with (
        open_engine(model="shapes", executor="mp", max_num_seqs=4) as engine,
        trio.open_nursery() as nursery,
    ):
        for index, prompt in enumerate(PROMPTS):
            nursery.start_soon(draw, engine, prompt, folder / f"{index:02}.png")


if __name__ == "__main__":
    trio.run(main, trio.Path(sys.argv[1] if len(sys.argv) > 1 else "out"))
