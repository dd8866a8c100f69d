"""Train the shapes model from nothing: autoencoder, then text encoder, then the denoiser.

python examples/train_shapes/train.py --minutes 8 --out out/shapes [--start FOLDER]

Runs on one GPU and stops by the clock, with every learning rate annealed by then. On the CPU it
only proves that it runs: --minutes 0.5 --scenes 60 --batch 8 --vae-batch 4 --prompts 2.
"""

import argparse
import copy
import json
import math
import os
import random
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from evaluate import evaluate, held_out_prompts
from model import SlotHeads, build, save
from optimiser import FlatAdamW, Replay
from safetensors.torch import load_file
from scenes import CANVASES, SLOT_CLASSES, Painter, Scenes, Size, sample, slot_classes, to, tokens
from torch import Tensor
from torch.nn import functional

from sidestream.workers.models.shapes.drawing import draw
from sidestream.workers.models.shapes.grammar import parse
from sidestream.workers.models.shapes.oracle import judge

VAE_SHARE, TEXT_SHARE = 0.27, 0.05  # of the training time
KL_WEIGHT = 1e-4  # noise enough in the latents that the decoder forgives small errors, no more
THING_WEIGHT = 6.0  # how much more a pixel on or beside a thing counts than one of the background
TEXT_BATCH = 1024
SLOT_WEIGHT = 0.03
HIGH_SHARE, HIGH_FROM = 0.3, 0.7  # extra training near pure noise, where the layout is decided
ENCODE_BATCH = 512
SYNCHRONISE = 20  # steps that may wait in the device's queue
CHECKPOINTS = (0.4, 0.7, 0.9)  # when the denoiser is saved while it is trained

Bank = dict[Size, Scenes]


class Clock:
    """Counts a phase's wall-clock seconds and prints its losses."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds, self.start = name, seconds, time.monotonic()
        self.due, self.steps = 0.0, 0

    @property
    def progress(self) -> float:
        return (time.monotonic() - self.start) / self.seconds

    def tick(self, loss: Tensor) -> None:
        self.steps += 1
        if self.steps % SYNCHRONISE == 0 or self.due == 0:
            value = loss.item()
            if self.progress >= self.due:
                elapsed = time.monotonic() - self.start
                print(f"{self.name} {elapsed:6.1f} s  step {self.steps:6d}  loss {value:.5f}")
                self.due += 0.05


def run(
    name: str,
    seconds: float,
    optimiser: FlatAdamW,
    replay: Replay,
    sizes: list[Size],
    seed: int,
    checkpoint: Callable[[], None] = lambda: None,
) -> None:
    """Take steps until the time is over, each on a random picture size."""
    rng, clock = random.Random(seed), Clock(name, seconds)
    weights = [CANVASES[size] for size in sizes]
    due = list(CHECKPOINTS)
    while clock.progress < 1:
        optimiser.schedule(clock.progress)
        clock.tick(replay(rng.choices(sizes, weights)[0]))
        if due and clock.progress >= due[0]:
            checkpoint()
            del due[0]
    print(f"{name} {clock.steps} steps")


def some(count: int, batch: int, device: torch.device) -> Tensor:
    """Choose rows of a bank on the device."""
    return torch.randint(count, (batch,), device=device)


def train_vae(vae: AutoencoderKL, bank: Bank, painter: Painter, batch: int, seconds: float) -> None:
    """Train the autoencoder, then make its latents zero-mean, unit-variance by its own weights."""
    device, dtype = vae.device, vae.dtype
    optimiser = FlatAdamW([vae], rate=1e-3, warmup=200, decay=0.998)

    def step(size: Size) -> Tensor:
        pictures, covered = painter.paint(bank[size][some(len(bank[size]), batch, device)])
        posterior = vae.encode(pictures.to(dtype)).latent_dist
        error = vae.decode(posterior.sample()).sample.float() - pictures
        weight = 1 + THING_WEIGHT * functional.max_pool2d(covered, 5, stride=1, padding=2)
        loss = (weight * (error.abs() + error.square())).mean()
        spread = posterior.mean.float().square() + posterior.var.float() - 1
        kl = 0.5 * (spread - posterior.logvar.float()).mean()
        optimiser.step(loss + KL_WEIGHT * kl)
        return loss

    run("vae", seconds, optimiser, Replay(step, device), list(bank), seed=1)
    optimiser.load_average([vae])
    vae.float()
    normalise_latents(vae, painter.paint(next(iter(bank.values()))[:batch])[0])


@torch.no_grad()
def normalise_latents(vae: AutoencoderKL, pictures: Tensor) -> None:
    """Fold the latents' mean and deviation into the two 1x1 convolutions around them."""
    latents = vae.encode(pictures).latent_dist.mode()
    mean, deviation = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    enter, leave = vae.quant_conv, vae.post_quant_conv
    leave.bias += leave.weight[:, :, 0, 0] @ mean
    leave.weight *= deviation[None, :, None, None]
    n = len(mean)
    enter.weight[:n] /= deviation[:, None, None, None]
    enter.bias[:n] = (enter.bias[:n] - mean) / deviation
    enter.bias[n:] -= 2 * deviation.log()  # the second half is the log variance


@torch.no_grad()
def surviving_share(vae: AutoencoderKL, count: int) -> float:
    """Tell how many drawn pictures are still right after encoding and decoding."""
    rng, right = random.Random(0), 0
    for prompt in held_out_prompts(count, seed=0):
        picture = np.array(draw(parse(prompt), rng))
        pixels = torch.from_numpy(picture).to(vae.device).permute(2, 0, 1)[None] / 127.5 - 1
        decoded = vae.decode(vae.encode(pixels).latent_dist.mode()).sample[0]
        back = ((decoded.permute(1, 2, 0) + 1) * 127.5).round().clamp(0, 255).byte()
        right += judge(back.cpu().numpy(), prompt).ok
    return right / count


@torch.no_grad()
def encode(vae: AutoencoderKL, bank: Bank, painter: Painter, batch: int) -> dict[Size, Tensor]:
    """Encode every scene once: half-precision latents on the device."""
    return {
        size: torch.cat(
            [
                vae.encode(painter.paint(scenes[i : i + batch])[0]).latent_dist.mode().half()
                for i in range(0, len(scenes), batch)
            ]
        )
        for size, scenes in bank.items()
    }


def slot_loss(heads: SlotHeads, embeddings: Tensor, classes: Tensor) -> Tensor:
    """Compare what the slot tokens say with the scene, as a mean cross-entropy."""
    logits = heads(embeddings)
    losses = [
        functional.cross_entropy(part.flatten(0, 1).float(), classes[:, :, i].flatten())
        for i, part in enumerate(logits)
    ]
    return torch.stack(losses).mean()


def train_text(
    pipeline: StableDiffusionPipeline, heads: SlotHeads, bank: Bank, seconds: float
) -> None:
    """Teach the text encoder who is where: language is learned long before pictures need it."""
    text_encoder = pipeline.text_encoder
    device = text_encoder.device
    optimiser = FlatAdamW([text_encoder, heads], rate=1e-3, warmup=200, decay=0.998)

    def step(size: Size) -> Tensor:
        scenes = bank[size][some(len(bank[size]), TEXT_BATCH, device)]
        loss = slot_loss(heads, text_encoder(scenes.ids)[0], scenes.slots)
        optimiser.step(loss)
        return loss

    size = next(iter(bank))
    run("text", seconds, optimiser, Replay(step, device), [size], seed=2)
    optimiser.load_average([text_encoder, heads])
    prompts = held_out_prompts(500, seed=0)
    vocabulary = pipeline.tokenizer.get_vocab(), pipeline.tokenizer.model_max_length
    ids = torch.tensor([tokens(prompt, *vocabulary) for prompt in prompts], device=device)
    truth = torch.tensor([slot_classes(parse(prompt)) for prompt in prompts], device=device)
    with torch.no_grad():
        read = torch.stack([p.argmax(-1) for p in heads(text_encoder(ids)[0])], dim=-1)
    right = (read == truth).flatten(1).all(1).float().mean().item()
    print(f"text: {right:.3f} of held-out prompts understood")


def noise_levels(count: int, device: torch.device) -> Tensor:
    """Choose noise levels in (0, 1): logit-normal, and some more near pure noise."""
    usual = torch.sigmoid(0.2 + 1.4 * torch.randn(count, device=device))
    high = 1 - (1 - HIGH_FROM) * torch.rand(count, device=device)
    return torch.where(torch.rand(count, device=device) < HIGH_SHARE, high, usual)


def train_denoiser(
    pipeline: StableDiffusionPipeline,
    heads: SlotHeads,
    bank: Bank,
    latents: dict[Size, Tensor],
    batch: int,
    seconds: float,
    out: Path,
) -> StableDiffusionPipeline:
    """Train text encoder and UNet on the straight flow between pictures and noise.

    Returns:
        A pipeline with the averaged weights, float32; also saved in `out`, now and then.
    """
    unet, text_encoder = pipeline.unet, pipeline.text_encoder
    device = unet.device
    optimiser = FlatAdamW([unet, text_encoder, heads], rate=1e-3, warmup=300, decay=0.9995)

    def step(size: Size) -> Tensor:
        rows = some(len(bank[size]), batch, device)
        clean = latents[size][rows].float()
        noise, level = torch.randn_like(clean), noise_levels(batch, device)
        mixed = torch.lerp(clean, noise, level[:, None, None, None])
        mixed = mixed.to(unet.dtype)
        text = text_encoder(bank[size].ids[rows])[0]
        flow = unet(mixed, level * 1000, text).sample
        loss = functional.mse_loss(flow.float(), noise - clean)
        optimiser.step(loss + SLOT_WEIGHT * slot_loss(heads, text, bank[size].slots[rows]))
        return loss

    def average() -> StableDiffusionPipeline:
        averaged = copy.deepcopy(pipeline).to(torch.float32)
        optimiser.load_average([averaged.unet, averaged.text_encoder, copy.deepcopy(heads)])
        pack(averaged, out)
        return averaged

    replay = Replay(step, device)
    run("denoiser", seconds, optimiser, replay, list(bank), seed=3, checkpoint=average)
    return average()


def pack(pipeline: StableDiffusionPipeline, out: Path) -> None:
    """Save the pipeline under `out` and beside it as one archive."""
    save(copy.deepcopy(pipeline).to("cpu"), out / "weights")
    archive = shutil.make_archive(str(out / "partial"), "tar", out / "weights")
    os.replace(archive, out / "weights.tar")


def make_bank(
    tokenizer: object, scenes: int, seed: int, device: torch.device, workers: int
) -> Bank:
    """Sample the scenes of the whole training, of every picture size."""
    with ProcessPoolExecutor(workers) as pool:
        return {
            size: to(
                sample(tokenizer, math.ceil(share * scenes), size, seed + i * 10_000_000, pool),
                device,
            )
            for i, (size, share) in enumerate(CANVASES.items())
        }


def main() -> None:
    """Train, save and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0, help="training time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="take autoencoder and UNet from this folder")
    parser.add_argument("--scenes", type=int, default=200_000, help="how many are trained on")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--vae-batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="to sample scenes")
    parser.add_argument("--prompts", type=int, default=200, help="held-out prompts to judge")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pipeline = build()
    heads = SlotHeads([2 + len(words) for words in SLOT_CLASSES])
    bank = make_bank(pipeline.tokenizer, args.scenes, args.seed, device, args.workers)
    if args.start is not None:
        for name in ("vae", "unet"):
            weights = args.start / name / "diffusion_pytorch_model.safetensors"
            getattr(pipeline, name).load_state_dict(load_file(weights))
    torch.backends.cudnn.benchmark = True
    pipeline.to(device, dtype)
    heads.to(device, dtype)
    painter, seconds = Painter(device), args.minutes * 60

    train_text(pipeline, heads, bank, TEXT_SHARE * seconds)
    train_vae(pipeline.vae, bank, painter, args.vae_batch, VAE_SHARE * seconds)
    survivors = surviving_share(pipeline.vae, args.prompts)
    print(f"vae: {survivors:.3f} of drawn pictures survive it")
    latents = encode(pipeline.vae, bank, painter, ENCODE_BATCH)
    rest = (1 - TEXT_SHARE - VAE_SHARE) * seconds
    trained = train_denoiser(pipeline, heads, bank, latents, args.batch, rest, args.out)
    for steps, guidance in ((12, 1.0), (12, 2.0), (20, 1.0), (20, 2.0)):
        report = evaluate(
            trained, args.prompts, steps=steps, guidance=guidance, sheet=args.out / "sheet.png"
        )
        print(json.dumps(report))


if __name__ == "__main__":
    main()
