"""Paint twelve prompts through a worker process and put them on one labelled sheet.

python examples/contact_sheet.py out/
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

import trio
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

from sidestream.engine import DiffusionEngine, Progress, open_engine

PROMPTS = [
    "a large red circle above a small blue square on a green background",
    "a small yellow star left of a large purple heart on a white background",
    "a large orange diamond on a black background",
    "a small white circle below a large green triangle on a blue background",
    "a large blue star on a yellow background",
    "a small red heart right of a large black square on a white background",
    "a large purple triangle above a small yellow circle on a red background",
    "a large green heart on a white background",
    "a small black diamond left of a large orange circle on a yellow background",
    "a large white star below a small red square on a purple background",
    "a small blue triangle on an orange background",
    "a large yellow square right of a small green star on a black background",
]
COLUMNS = 4
CELL = 256
LABEL = 62


async def paint(engine: DiffusionEngine, prompts: list[str], steps: int) -> list[Image.Image]:
    """Paint all prompts side by side and return the pictures in order."""
    pictures: dict[int, Image.Image] = {}
    with tqdm(total=len(prompts) * steps, unit="step", desc="painting") as bar:

        async def paint_one(index: int) -> None:
            taken = 0
            async with engine.stream(
                prompts[index], seed=index, num_inference_steps=steps
            ) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        bar.update(event.step - taken)
                        taken = event.step
                result = await events.result()
            bar.update(steps - taken)
            pictures[index] = result.output

        async with trio.open_nursery() as nursery:
            for index in range(len(prompts)):
                nursery.start_soon(paint_one, index)
    return [pictures[index] for index in range(len(prompts))]


def sheet(prompts: list[str], pictures: list[Image.Image]) -> Image.Image:
    """Lay pictures out in a grid, each above its prompt."""
    rows = -(-len(pictures) // COLUMNS)
    page = Image.new("RGB", (COLUMNS * CELL, rows * (CELL + LABEL)), "white")
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(14)
    for index, (prompt, picture) in enumerate(zip(prompts, pictures, strict=True)):
        row, column = divmod(index, COLUMNS)
        left, top = column * CELL, row * (CELL + LABEL)
        page.paste(picture.resize((CELL, CELL), Image.Resampling.LANCZOS), (left, top))
        text = textwrap.fill(prompt, 38)
        draw.multiline_text((left + 6, top + CELL + 4), text, fill="black", font=font)
    return page


async def main(model: str, steps: int) -> Image.Image:
    """Paint the sheet."""
    print(f"starting a worker with the model {model!r}", flush=True)
    async with open_engine(model=model, executor="mp", max_num_seqs=4) as engine:
        pictures = await paint(engine, PROMPTS, steps)
    return sheet(PROMPTS, pictures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("out"))
    parser.add_argument("--model", default="shapes")
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    page = trio.run(main, arguments.model, arguments.steps)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "contact_sheet.png"
    page.save(path)
    print(f"contact sheet: {path.resolve()}")
