"""AdamW over one flat buffer, and steps replayed whole as CUDA graphs.

So small a model spends nearly all of its time on launching kernels: here a step of forward,
backward and optimiser is one launch, and the optimiser a dozen kernels, however many parameters.
"""

import math
from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

BETAS = 0.9, 0.99
EPSILON = 1e-8
WEIGHT_DECAY = 0.01


class FlatAdamW:
    """AdamW on float32 masters of parameters that compute in a smaller dtype, and their average.

    Args:
        modules: what is trained; their parameters become views of one buffer, and must stay so.
        rate: the highest learning rate.
        warmup: steps until it is reached.
        decay: how much of the average stays in one step, at most.
    """

    def __init__(self, modules: list[nn.Module], rate: float, warmup: int, decay: float) -> None:
        self.rate, self.warmup, self.decay, self.steps = rate, warmup, decay, 0
        self.parameters = [p for module in modules for p in module.parameters()]
        first = self.parameters[0]
        count = sum(p.numel() for p in self.parameters)
        self.values = torch.empty(count, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros_like(self.values)
        targets = self._views(self.values, self.parameters)
        for parameter, target in zip(self.parameters, targets, strict=True):
            target.copy_(parameter.detach())
            parameter.data = target
        self.gradient_views = self._views(self.gradients, self.parameters)
        self.master = self.values.float()
        self.average = self.master.clone()
        self.mean, self.square = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.controls = torch.zeros(4, device=first.device)

    @staticmethod
    def _views(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
        """Cut a flat buffer into tensors of the parameters' shapes and memory formats."""
        chunks = flat.split([p.numel() for p in parameters])
        return [
            chunk.as_strided(p.shape, p.stride(), chunk.storage_offset())
            for chunk, p in zip(chunks, parameters, strict=True)
        ]

    def schedule(self, progress: float) -> None:
        """Set what the next step uses; `progress` in [0, 1] drives the cosine learning rate."""
        self.steps += 1
        ramp = min(1.0, self.steps / self.warmup)
        rate = self.rate * ramp * (0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0)))
        keep = min(self.decay, (1 + self.steps) / (10 + self.steps))
        corrections = (1 - beta**self.steps for beta in BETAS)
        # Filled, since a copy from the host would wait for the device.
        values = (rate, 1 - keep, *corrections)
        for control, value in zip(self.controls.unbind(), values, strict=True):
            control.fill_(value)

    def step(self, loss: Tensor) -> None:
        """Descend by the clipped gradient of a loss; reads and writes device memory alone."""
        torch._foreach_copy_(self.gradient_views, torch.autograd.grad(loss, self.parameters))
        rate, fresh, correction, square_correction = self.controls.unbind()
        with torch.no_grad():
            gradient = self.gradients.float()
            gradient *= (1 / (gradient.norm() + 1e-6)).clamp(max=1)
            self.mean.lerp_(gradient, 1 - BETAS[0])
            self.square.lerp_(gradient.square(), 1 - BETAS[1])
            scale = (self.square / square_correction).sqrt_().add_(EPSILON)
            self.master.mul_(1 - rate * WEIGHT_DECAY)
            self.master.sub_(self.mean / correction / scale * rate)
            self.values.copy_(self.master)
            self.average.lerp_(self.master, fresh)

    @torch.no_grad()
    def load_average(self, modules: list[nn.Module]) -> None:
        """Copy the averaged parameters into modules of the same structure."""
        averages = self._views(self.average, self.parameters)
        targets = [p for module in modules for p in module.parameters()]
        for target, average in zip(targets, averages, strict=True):
            target.copy_(average)


class Replay:
    """Runs a step as a CUDA graph, one for each of its arguments; just calls it on a CPU.

    Args:
        step: from an argument to the loss; takes its data from the device and leaves it there.
    """

    def __init__(self, step: Callable[[Hashable], Tensor], device: torch.device) -> None:
        self.step, self.eager = step, device.type != "cuda"
        self.captured: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}

    def __call__(self, argument: Hashable) -> Tensor:
        """Run the step; the loss is overwritten by the next run."""
        if self.eager:
            return self.step(argument).detach()
        if argument not in self.captured:
            try:
                self.captured[argument] = self._capture(argument)
            except RuntimeError as error:
                print(f"no graph, and so many times slower: {error}")
                self.eager = True
                return self.step(argument).detach()
        graph, loss = self.captured[argument]
        graph.replay()
        return loss

    def _capture(self, argument: Hashable) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their algorithms before the capture
                self.step(argument)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.step(argument).detach()
        return graph, loss
