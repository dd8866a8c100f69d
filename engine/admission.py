"""What is checked and settled before a request is admitted: `prepare` turns it into the call that a
worker will make.

The worker's capabilities say which arguments the pipeline takes, so a wrong request is refused
here, before any work.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..ipc_ext.messages import CALL_LIMIT
from ..postprocess import check_output_options
from .errors import RequestError
from .executor.base import Capabilities, InputTensor
from .inputs import split_arguments
from .request import SEED_LIMIT, DiffusionRequest
from .strict import nearest

RESERVED = frozenset({"generator", "output_type", "return_dict", "callback_on_step_end", "callback",
                      "callback_steps", "callback_on_step_end_tensor_inputs"})  # fmt: skip
"""Arguments of pipelines that sidestream itself sets, or that cannot cross a process boundary."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be run."""

    request: DiffusionRequest
    call: dict[str, Any]
    inputs: Sequence[InputTensor]
    seeds: tuple[int, ...]
    key: Hashable
    """Requests of equal keys may share a wave."""


def prepare(
    request: DiffusionRequest, capabilities: Capabilities, *, input_limit: int
) -> PreparedRequest:
    """Check a request against what the pipeline takes and settle what was left open.

    Args:
      request: as the caller made it.
      capabilities: of the worker, see `DiffusionModelRunner.capabilities`.
      input_limit: bytes that its arrays may have.

    Raises:
      RequestError: it cannot be run; names the argument and the valid ones.
    """
    sampling = request.sampling
    arguments = _arguments(request, capabilities)
    try:
        check_output_options(sampling.output_type, sampling.output_options)
    except ValueError as error:
        raise RequestError(f"output_options: {error}") from None
    plain, inputs = split_arguments(arguments)
    size = sum(tensor.descriptor.nbytes for tensor in inputs)
    if size > input_limit:
        raise RequestError(
            f"extra_args hold arrays of {size} bytes; at most {input_limit} are accepted"
        )
    if _size_of(plain) > CALL_LIMIT:
        raise RequestError(
            f"the request takes more than {CALL_LIMIT} bytes; give large data as arrays"
        )
    seed = random.randrange(2**32) if sampling.seed is None else sampling.seed
    if seed + sampling.num_outputs - 1 > SEED_LIMIT:
        raise RequestError(f"seed + num_outputs must not pass {SEED_LIMIT}")
    seeds = tuple(range(seed, seed + sampling.num_outputs))
    return PreparedRequest(request, plain, inputs, seeds, _key(plain, inputs, sampling.output_type))


def _size_of(plain: dict[str, Any]) -> int:
    try:
        return len(msgspec.msgpack.encode(plain))
    except (OverflowError, UnicodeEncodeError) as error:
        raise RequestError(f"extra_args cannot be sent: {error}") from None


def _arguments(request: DiffusionRequest, capabilities: Capabilities) -> dict[str, Any]:
    """Name everything as the pipeline does."""
    sampling = request.sampling
    accepted = set(capabilities["arguments"])
    count = capabilities["num_outputs"]
    given: dict[str, Any] = {
        "prompt": request.prompt,
        "negative_prompt": request.negative_prompt,
        "width": sampling.width,
        "height": sampling.height,
        "num_inference_steps": sampling.num_inference_steps,
        "guidance_scale": sampling.guidance_scale,
    }
    for name, value in sampling.extra_args.items():
        if name in RESERVED or name in given or name == count:
            raise RequestError(
                f"extra_args must not hold {name!r}: it has a parameter of its own or is set here"
            )
        if not name.isidentifier():
            raise RequestError(f"extra_args must hold names of arguments, not {name!r}")
        given[name] = value
    if sampling.num_outputs != 1:
        if count is None:
            raise RequestError(
                f"num_outputs must be 1: {capabilities['pipeline']} makes one output a call"
            )
        given[count] = sampling.num_outputs
    arguments = {name: value for name, value in given.items() if value is not None}
    for name in arguments:
        if name not in accepted and not capabilities["accepts_any"]:
            hint = nearest(name, accepted - RESERVED)
            raise RequestError(f"{capabilities['pipeline']} takes no {name!r}: {hint}")
    missing = set(capabilities["required"]) - set(arguments)
    if missing:
        raise RequestError(f"{capabilities['pipeline']} needs {', '.join(sorted(missing))}")
    return arguments


def _key(plain: dict[str, Any], inputs: Sequence[InputTensor], output_type: str) -> Hashable:
    """Say what must agree for requests to be worth a common wave: shapes and loop lengths, not
    contents."""
    loose = ("prompt", "negative_prompt", "guidance_scale")
    same = sorted((name, repr(value)) for name, value in plain.items() if name not in loose)
    present = tuple(name in plain for name in loose)
    shapes = tuple((t.name, t.descriptor.dtype, t.descriptor.shape) for t in inputs)
    return (tuple(same), present, shapes, output_type == "latent")
