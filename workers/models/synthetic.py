"""``synthetic``: a pipeline that takes a given time and returns a tensor of known contents.

It is for measuring everything but a model, and for tests: its picture is one integer, so every
byte of an output can be checked. It is called like a diffusers pipeline, and its denoising steps
go through an ``nn.Module`` component, so progress, cancelling and merging work as in any other. In
step mode it runs its own steps (see ``workers/step_protocol.py``).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from PIL import Image

from ..step_protocol import InputBatch, StepRequestState
from .burners import Burner, HostSync, Work, make_burner
from .options import parse_options, torch_dtype

VALUES = 251
"""Fill values are 0..250: a prime number of them, each exact in uint8 and in every float type."""

ImageInput = torch.Tensor | np.ndarray[Any, Any] | Image.Image


class SyntheticOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``synthetic``.

    Args:
        forward_ms: Time that the steps of a forward take together, ms.
        steps: Denoising steps of a forward; a request that asks for another number of steps
            takes proportionally longer or shorter.
        shape: Shape of one output; its first number is 1, the batch.
        dtype: Data type of the output: "bf16", "fp16", "fp32", "uint8" or the long names.
            None: the dtype that the engine asks for, else float32.
        work: "sleep" (default on a CPU), or "matmul" (default, and the only one, on a GPU).
        host_sync: Where the host waits for the GPU: nowhere, at the end of a call, or at each
            step as pipelines do that read a value back. No effect on a CPU, which never runs ahead.
        fail_at_step: Step, from 0, at which a request whose prompt contains "fail" raises.
        fail_with: What it raises: a ``RuntimeError`` or a ``torch.OutOfMemoryError``.
    """

    forward_ms: float = 0.0
    steps: int = 1
    shape: tuple[int, ...] = (1, 3, 64, 64)
    dtype: str | None = None
    work: Work | None = None
    host_sync: HostSync = "none"
    fail_at_step: int | None = None
    fail_with: Literal["error", "oom"] = "error"

    def __post_init__(self) -> None:
        if not 0 <= self.forward_ms < float("inf"):
            raise ValueError(f"forward_ms must be a number of at least 0, not {self.forward_ms}")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, not {self.steps}")
        if not self.shape or self.shape[0] != 1 or min(self.shape) < 0:
            raise ValueError(f"shape must begin with 1 and hold no negatives, not {self.shape}")


class SyntheticDenoiser(torch.nn.Module):
    """Takes its time and returns the sample unchanged.

    The time is per call, whatever the batch: like a GPU that is bound by reading the weights. A
    merged call of several requests therefore takes as long as a call of one.
    """

    def __init__(self, burn: Burner) -> None:
        super().__init__()
        self._burn = burn

    def forward(self, sample: torch.Tensor, timestep: int | Sequence[int]) -> torch.Tensor:
        """Burn one step.

        Args:
            sample: One row for each output, any further shape.
            timestep: Index of the step, or of each request's step; it changes nothing.
        """
        self._burn()
        return sample


@dataclass(frozen=True)
class SyntheticPipelineOutput:
    """What a call returns: ``images``, (n, *shape[1:])."""

    images: torch.Tensor


class SyntheticPipeline:
    """A pipeline whose outputs are filled with one integer each; see the module and `__call__`."""

    def __init__(self, options: SyntheticOptions, burn: Burner, device: torch.device) -> None:
        self.options = options
        self.device = device
        self.denoiser = SyntheticDenoiser(burn).eval()
        self.sidestream_defaults = {"num_inference_steps": options.steps}
        self._dtype = torch_dtype(options.dtype or "float32")
        self._num_timesteps = options.steps

    @property
    def components(self) -> dict[str, Any]:
        """The modules by name, as diffusers pipelines tell them."""
        return {"denoiser": self.denoiser}

    @property
    def num_timesteps(self) -> int:
        """Steps of the call in progress."""
        return self._num_timesteps

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int | None = None,
        guidance_scale: float | None = None,
        num_images_per_prompt: int = 1,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        latents: torch.Tensor | None = None,
        image: ImageInput | None = None,
        value: int | None = None,
        output_type: str = "pt",
        return_dict: bool = True,
        num_chunks: int = 1,
        on_chunk: Callable[[torch.Tensor], None] | None = None,
    ) -> SyntheticPipelineOutput | tuple[torch.Tensor]:
        """Run the steps and return one filled tensor for each output.

        The fill is the first of these that is given: ``value``; the mean of ``image``, rounded;
        the mean of ``latents``, rounded; seed % 251 of each output's generator (with a single
        generator, output i counts as seed + i); 0.

        Args:
            prompt: Decides how many outputs there are, and whether to fail; see `SyntheticOptions`.
            negative_prompt: Accepted, unused.
            height: Rows of the output instead of the shape's, for shapes of at least 4 numbers.
            width: Columns likewise.
            num_inference_steps: Steps instead of the option's.
            guidance_scale: Accepted, unused.
            num_images_per_prompt: Outputs for each prompt.
            generator: Where seeds come from; nothing is drawn from it.
            latents: Tensor of any shape.
            image: Picture or tensor of any shape.
            value: Fill of all outputs.
            output_type: "pt" or "latent", which are the same here.
            return_dict: Whether to return an object or a tuple.
            num_chunks: Parts of the output along its second axis (frames, if it is a video), each
                done when its share of the steps is.
            on_chunk: Called with each part when it is done.

        Raises:
            ValueError: Another output type, or more chunks than there can be.
            RuntimeError, torch.OutOfMemoryError: As the options say.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        state = StepRequestState(arguments)
        self.prepare_encode(state)
        self._num_timesteps = state.total or 0
        for state.step in range(self._num_timesteps):
            self.step_scheduler(state, self.denoise_step(InputBatch([state]))[0])
        return self.post_decode(state)

    # ------------------------------------------------------------------ the step protocol

    def prepare_encode(self, state: StepRequestState) -> None:
        """Choose the fill of each output; `state.kwargs` may hold what `__call__` takes.

        Raises:
            TypeError: An argument that `__call__` does not take.
            ValueError: Another output type, or more chunks than there can be.
        """
        unknown = state.kwargs.keys() - DEFAULTS.keys()
        if unknown:
            raise TypeError(f"the synthetic pipeline takes no {', '.join(sorted(unknown))}")
        data = state.data = SimpleNamespace(**{**DEFAULTS, **state.kwargs})
        if data.output_type not in ("pt", "latent"):
            raise ValueError(f"output_type must be 'pt' or 'latent', not {data.output_type!r}")
        most = max((1, *self.options.shape[1:2]))
        if not 1 <= data.num_chunks <= most:
            raise ValueError(f"num_chunks must be 1 to {most}, not {data.num_chunks}")
        prompt = data.prompt
        data.prompts = [prompt] if prompt is None or isinstance(prompt, str) else list(prompt)
        count = len(data.prompts) * data.num_images_per_prompt
        data.sample = self._fill_values(count, data.value, data.image, data.latents, data.generator)
        state.total = data.num_inference_steps or self.options.steps

    def denoise_step(self, batch: InputBatch) -> Sequence[torch.Tensor]:
        """Burn one step for all requests.

        Raises:
            RuntimeError, torch.OutOfMemoryError: As the options say.
        """
        for state in batch.states:
            self._fail_if_told(state.step, state.data.prompts)
        steps = [state.step for state in batch.states]
        sample = self.denoiser(batch.join("sample"), steps[0] if len(steps) == 1 else steps)
        return batch.split(sample, "sample")

    def step_scheduler(self, state: StepRequestState, prediction: torch.Tensor) -> None:
        """Take the denoiser's result for the next sample, and tell the chunks that are done now."""
        data = state.data
        data.sample = prediction
        if data.on_chunk is None or state.total is None:
            return
        first, last = (
            step * data.num_chunks // state.total for step in (state.step, state.step + 1)
        )
        if first < last:
            images = self._paint(prediction, data.height, data.width)
            for chunk in images.tensor_split(data.num_chunks, dim=min(1, images.ndim - 1))[
                first:last
            ]:
                data.on_chunk(chunk.contiguous())

    def post_decode(self, state: StepRequestState) -> SyntheticPipelineOutput | tuple[torch.Tensor]:
        """Return one filled tensor for each output."""
        images = self._paint(state.data.sample, state.data.height, state.data.width)
        if self.options.host_sync == "end" and self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return SyntheticPipelineOutput(images) if state.data.return_dict else (images,)

    # ------------------------------------------------------------------ what they consist of

    def _fill_values(
        self,
        count: int,
        value: int | None,
        image: ImageInput | None,
        latents: torch.Tensor | None,
        generator: torch.Generator | Sequence[torch.Generator] | None,
    ) -> torch.Tensor:
        """Return the fill of each output: float32, (count, 1), on the device without a sync."""
        source = latents if image is None else image
        if value is None and source is not None:
            if not isinstance(source, torch.Tensor):
                source = torch.from_numpy(np.array(source))
            mean = source.to(self.device, torch.float32).mean().round()
            return mean.expand(count, 1)
        if value is not None:
            values = [value] * count
        elif generator is None:
            values = [0] * count
        elif isinstance(generator, torch.Generator):
            seed = generator.initial_seed()
            values = [(seed + index) % VALUES for index in range(count)]
        else:
            values = [one.initial_seed() % VALUES for one in generator]
        rows = [torch.full((1, 1), float(fill), device=self.device) for fill in values]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _fail_if_told(self, step: int, prompts: Sequence[str | None]) -> None:
        if step != self.options.fail_at_step or not any("fail" in (text or "") for text in prompts):
            return
        if self.options.fail_with == "oom":
            raise torch.OutOfMemoryError(f"synthetic failure: out of memory at step {step}")
        raise RuntimeError(f"synthetic failure at step {step}")

    def _paint(self, sample: torch.Tensor, height: int | None, width: int | None) -> torch.Tensor:
        """Spread each row's value over an output of its own memory."""
        shape = list(self.options.shape[1:])
        if len(shape) >= 3:
            shape[-2:] = [height or shape[-2], width or shape[-1]]
        values = sample.to(self._dtype).view(-1, *[1] * len(shape))
        return values.expand(-1, *shape).contiguous()


DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(SyntheticPipeline.__call__).parameters.items()
    if name != "self"
}
"""Of the arguments of a call; read once, since a signature takes as long as everything else."""


def load(options: Mapping[str, Any], *, device: str, dtype: str | None) -> SyntheticPipeline:
    """Make the synthetic pipeline.

    Args:
        options: Fields of `SyntheticOptions`.
        device: Where it burns and where its outputs are, such as ``"cpu"`` or ``"cuda:0"``.
        dtype: Data type of the outputs if the options name none.

    Raises:
        ValueError: No such option, or a bad value.
    """
    chosen = parse_options(SyntheticOptions, options, "synthetic")
    chosen = msgspec.structs.replace(chosen, dtype=chosen.dtype or dtype or "float32")
    step_seconds = chosen.forward_ms / 1e3 / chosen.steps
    place = torch.device(device)
    burn = make_burner(step_seconds, place, chosen.work, sync_each_step=chosen.host_sync == "step")
    return SyntheticPipeline(chosen, burn, place)
