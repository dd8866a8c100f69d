"""Train the shapes model from nothing: the autoencoder, then text encoder and denoiser together.

python examples/train_shapes/train.py --minutes 7 --out out/shapes

Runs on one GPU (or, far too slowly, on the CPU) and stops by the clock, with the learning rate
always annealed by then.
"""

import argparse
import copy
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from evaluate import evaluate
from model import build, save
from scenes import Batch, Painter, stream
from torch import Tensor, nn
from torch.nn import functional

VAE_SHARE = 0.2  # of the training time
KL_WEIGHT = 1e-3  # noise enough in the latents that the decoder forgives small errors
SAVE_SECONDS = 90.0


class Optimiser:
    """AdamW on float32 masters of parameters that compute in a smaller dtype, and their average."""

    def __init__(self, modules: list[nn.Module], rate: float, warmup: int, decay: float) -> None:
        self.parameters = [p for module in modules for p in module.parameters()]
        self.masters = [p.detach().float().clone().requires_grad_() for p in self.parameters]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.average = [p.detach().clone() for p in self.masters]
        self.adam = torch.optim.AdamW(
            self.masters, lr=rate, weight_decay=0.01, betas=(0.9, 0.99), fused=True
        )
        self.rate, self.warmup, self.decay, self.steps = rate, warmup, decay, 0

    def backward(self, loss: Tensor) -> None:
        """Leave the clipped gradients of a loss with the masters; touches no host value."""
        gradients = torch.autograd.grad(loss, self.parameters)
        torch._foreach_copy_([master.grad for master in self.masters], gradients)
        nn.utils.clip_grad_norm_(self.masters, 1.0)

    def step(self, progress: float) -> None:
        """Take one step; `progress` in [0, 1] drives the cosine learning rate."""
        self.steps += 1
        ramp = min(1.0, self.steps / self.warmup)
        rate = self.rate * ramp * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0)))
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        keep = min(self.decay, (1 + self.steps) / (10 + self.steps))
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)
            torch._foreach_lerp_(self.average, self.masters, 1 - keep)

    @torch.no_grad()
    def load_average(self, modules: list[nn.Module]) -> None:
        """Copy the averaged parameters into modules of the same structure."""
        targets = [p for module in modules for p in module.parameters()]
        torch._foreach_copy_(targets, self.average)


class Replay:
    """Runs a step as a CUDA graph, one for each picture size: so small a model spends nearly all of
    its time on launching kernels otherwise.

    Args:
        step: From a batch on the device to the loss; gradients are left where they stay.
    """

    def __init__(self, step: Callable[[Batch], Tensor], device: torch.device) -> None:
        self.step, self.device, self.eager = step, device, device.type != "cuda"
        self.captured: dict[tuple[int, int], tuple[Batch, torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Run the step on a batch and return its loss."""
        if self.eager:
            return self.step(batch.to(self.device))
        if batch.size not in self.captured:
            try:
                self.captured[batch.size] = self._capture(batch.to(self.device))
            except RuntimeError as error:
                print(f"no graph: {error}")
                self.eager = True
                return self.step(batch.to(self.device))
        inputs, graph, loss = self.captured[batch.size]
        inputs.fill(batch)
        graph.replay()
        return loss.clone()

    def _capture(self, inputs: Batch) -> tuple[Batch, torch.cuda.CUDAGraph, Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their algorithms before the capture
                self.step(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step(inputs).detach()
        return inputs, graph, loss


class Clock:
    """Counts a phase's wall-clock seconds and prints its losses."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds, self.start = name, seconds, time.monotonic()
        self.due, self.steps, self.losses = 0.0, 0, []  # type: float, int, list[Tensor]

    @property
    def progress(self) -> float:
        return (time.monotonic() - self.start) / self.seconds

    def tick(self, loss: Tensor) -> None:
        self.steps += 1
        self.losses.append(loss.detach())
        if self.progress >= self.due:
            mean = torch.stack(self.losses).float().mean().item()
            elapsed = time.monotonic() - self.start
            print(f"{self.name} {elapsed:6.1f} s  step {self.steps:6d}  loss {mean:.5f}")
            self.losses.clear()
            self.due += 0.05


def train_vae(
    vae: AutoencoderKL, batches: Iterator[Batch], painter: Painter, seconds: float
) -> None:
    """Train the autoencoder, then make its latents zero-mean, unit-variance by its own weights."""
    device, dtype = vae.device, vae.dtype
    optimiser = Optimiser([vae], rate=1.5e-3, warmup=100, decay=0.998)

    def step(batch: Batch) -> Tensor:
        pictures = painter.paint(batch).to(dtype, memory_format=torch.channels_last)
        posterior = vae.encode(pictures).latent_dist
        decoded = vae.decode(posterior.sample()).sample.float()
        error = decoded - pictures.float()
        loss = error.abs().mean() + error.square().mean()
        spread = posterior.mean.float().square() + posterior.var.float() - 1
        kl = 0.5 * (spread - posterior.logvar.float()).mean()
        optimiser.backward(loss + KL_WEIGHT * kl)
        return loss

    clock, replay = Clock("vae", seconds), Replay(step, device)
    while clock.progress < 1:
        loss = replay(next(batches))
        optimiser.step(clock.progress)
        clock.tick(loss)
    optimiser.load_average([vae])
    vae.float()
    normalise_latents(vae, painter.paint(next(batches).to(device)))
    pictures = painter.paint(next(batches).to(device))
    with torch.no_grad():
        decoded = vae.decode(vae.encode(pictures).latent_dist.mode()).sample.clamp(-1, 1)
    psnr = -10 * torch.log10((decoded - pictures).div(2).square().mean()).item()
    print(f"vae {clock.steps} steps, reconstruction {psnr:.1f} dB")


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


def train_denoiser(
    pipeline: StableDiffusionPipeline,
    batches: Iterator[Batch],
    painter: Painter,
    seconds: float,
    out: Path,
) -> StableDiffusionPipeline:
    """Train text encoder and UNet on the straight flow between pictures and noise.

    Returns:
        A pipeline with the averaged weights, float32.
    """
    unet, text_encoder = pipeline.unet, pipeline.text_encoder
    averaged = copy.deepcopy(pipeline).to(torch.float32)
    vae = pipeline.vae.to(unet.dtype)
    trained = [averaged.unet, averaged.text_encoder]
    optimiser = Optimiser([unet, text_encoder], rate=1e-3, warmup=300, decay=0.9995)

    def step(batch: Batch) -> Tensor:
        with torch.no_grad():
            pictures = painter.paint(batch).to(vae.dtype, memory_format=torch.channels_last)
            latents = vae.encode(pictures).latent_dist.mode()
        noise = torch.randn_like(latents)
        # Logit-normal, wider and noisier than usual: few steps decide the layout near pure noise.
        level = torch.sigmoid(0.3 + 1.4 * torch.randn(len(latents), device=unet.device))
        mixed = torch.lerp(latents.float(), noise.float(), level[:, None, None, None])
        flow = unet(mixed.to(unet.dtype), level * 1000, text_encoder(batch.ids)[0]).sample
        loss = functional.mse_loss(flow.float(), noise.float() - latents.float())
        optimiser.backward(loss)
        return loss

    clock, replay = Clock("denoiser", seconds), Replay(step, unet.device)
    saved = time.monotonic()
    while clock.progress < 1:
        batch = next(batches)
        loss = replay(batch)
        optimiser.step(clock.progress)
        clock.tick(loss)
        if time.monotonic() - saved > SAVE_SECONDS:
            saved = time.monotonic()
            optimiser.load_average(trained)
            pack(averaged, out)
    optimiser.load_average(trained)
    print(f"denoiser {clock.steps} steps of {len(batch.ids)} pictures")
    return averaged


def pack(pipeline: StableDiffusionPipeline, out: Path) -> None:
    """Save the pipeline under `out` and beside it as one archive."""
    save(copy.deepcopy(pipeline).to("cpu"), out / "weights")
    archive = shutil.make_archive(str(out / "partial"), "tar", out / "weights")
    os.replace(archive, out / "weights.tar")


def main() -> None:
    """Train, save and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=7.0, help="training time")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--vae-batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=6, help="processes that sample scenes")
    parser.add_argument("--prompts", type=int, default=200, help="held-out prompts to judge")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pipeline = build()
    data = stream(pipeline.tokenizer, args.vae_batch, args.seed + 1, args.workers)
    more_data = stream(pipeline.tokenizer, args.batch, args.seed + 2, args.workers)
    pipeline.to(device, dtype)
    pipeline.unet.to(memory_format=torch.channels_last)
    pipeline.vae.to(memory_format=torch.channels_last)
    painter, seconds = Painter(device), args.minutes * 60

    train_vae(pipeline.vae, data, painter, VAE_SHARE * seconds)
    del data
    trained = train_denoiser(pipeline, more_data, painter, (1 - VAE_SHARE) * seconds, args.out)
    pack(trained, args.out)
    for guidance in (1.0, 2.0):
        report = evaluate(trained, args.prompts, guidance=guidance, sheet=args.out / "sheet.png")
        print(json.dumps(report))


if __name__ == "__main__":
    main()
