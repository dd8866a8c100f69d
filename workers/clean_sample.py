"""What a denoising step says about the end: the estimate of the clean sample (x0).

Every scheduler's `step` has the estimate in hand, but each keeps it elsewhere. Nothing here waits
for the device: values that lie there are never read, only computed with.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

_ESTIMATES = ("pred_original_sample", "denoised")
_STORES_CLEAN = frozenset(("dpmsolver++", "sde-dpmsolver++", "data_prediction"))
"""Algorithms of multistep schedulers that convert what the model says to a clean sample."""


class SchedulerStep(NamedTuple):
    """A call of a scheduler's `step` that has just returned.

    Attributes:
        scheduler: Whose.
        function: The class's function, unbound.
        args: Positional arguments, without the scheduler.
        kwargs: Keyword arguments.
        result: What it returned.
    """

    scheduler: Any
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


StepTap = Callable[[int, int | None, SchedulerStep], None]
"""Is shown (steps made, of how many or None if that is not known, the step that was just made)."""


def clean_sample(step: SchedulerStep) -> torch.Tensor | None:
    """Return the step's estimate of the clean sample, of the first output of the batch.

    It is, in this order: what the scheduler returns as such; what it keeps as such; what follows
    from its prediction type and noise level; for schedulers that tell none of this, the sample that
    it returned.

    Args:
        step: A step that has just been made; the scheduler has not been used since.

    Returns:
        (1, ...), as the scheduler's samples are otherwise; None if these are no tensors.
    """
    estimate = _returned(step)
    if estimate is None:
        estimate = _kept(step.scheduler)
    if estimate is None:
        estimate = _computed(step)
    if estimate is not None:
        return estimate[:1]
    previous = _previous(step.result)
    # The pipeline may write into it before the next step.
    return previous[:1].clone() if isinstance(previous, torch.Tensor) else None


def _returned(step: SchedulerStep) -> torch.Tensor | None:
    if isinstance(step.result, tuple):
        place = _place(step.function)
        found = step.result[place] if place is not None and place < len(step.result) else None
    else:
        found = next((getattr(step.result, n) for n in _ESTIMATES if hasattr(step.result, n)), None)
    return found if isinstance(found, torch.Tensor) else None


_signature = functools.lru_cache(maxsize=256)(inspect.signature)


@functools.lru_cache(maxsize=256)
def _place(function: Callable[..., Any]) -> int | None:
    """Find the estimate in the tuple that a scheduler returns: where its output class has it."""
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):  # names that are there for a type checker only
        return None
    for kind in typing.get_args(returned) or (returned,):
        if dataclasses.is_dataclass(kind):
            names = [field.name for field in dataclasses.fields(kind)]
            return next((names.index(name) for name in _ESTIMATES if name in names), None)
    return None


def _kept(scheduler: Any) -> torch.Tensor | None:
    """Return the converted output that a multistep scheduler keeps, if it is a clean sample."""
    config = _config(scheduler)
    clean = (
        config.get("algorithm_type") in _STORES_CLEAN
        or getattr(scheduler, "predict_x0", False)
        or "sigma_data" in config
    )
    outputs = getattr(scheduler, "model_outputs", None)
    last = outputs[-1] if clean and outputs else None
    return last if isinstance(last, torch.Tensor) else None


def _computed(step: SchedulerStep) -> torch.Tensor | None:
    try:
        given = _signature(step.function).bind(step.scheduler, *step.args, **step.kwargs)
    except TypeError:
        return None
    output, sample = given.arguments.get("model_output"), given.arguments.get("sample")
    if not isinstance(output, torch.Tensor) or not isinstance(sample, torch.Tensor):
        return None
    if sample.ndim > 1 and output.shape[1] == 2 * sample.shape[1]:
        output = output[:, : sample.shape[1]]  # the other half is the variance
    if output.shape != sample.shape:
        return None
    output, sample = output[:1].float(), sample[:1].float()
    return _predicted(step.scheduler, output, sample, given.arguments.get("timestep"))


def _predicted(
    scheduler: Any, output: torch.Tensor, sample: torch.Tensor, timestep: Any
) -> torch.Tensor | None:
    """Solve what the model predicts for the clean sample; None if it is not known what that is."""
    kind = _config(scheduler).get("prediction_type")
    if kind == "sample":
        return output
    if kind == "flow_prediction" or (kind is None and _is_flow(scheduler)):
        end = 1.0 if _config(scheduler).get("invert_sigmas") else 0.0
        way: torch.Tensor = end - scheduler.sigmas[_index(scheduler)]
        return sample + way * output
    level = _level(scheduler, timestep)
    if level is None:
        return None
    alpha, sigma = level
    if kind == "epsilon":
        return (sample - sigma * output) / alpha
    return alpha * sample - sigma * output if kind == "v_prediction" else None


def _is_flow(scheduler: Any) -> bool:
    """Whether a scheduler that names no prediction type follows a flow from noise to sample."""
    if "Flow" in type(scheduler).__name__:
        return hasattr(scheduler, "sigmas")
    return hasattr(scheduler, "sigmas") and not {"sigma_data", "snr"} & set(_config(scheduler))


def _index(scheduler: Any) -> int:
    """Return which of the noise levels the step that was just made began at."""
    return int(scheduler.step_index) - 1


def _level(scheduler: Any, timestep: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return how much of sample and noise there is: by noise level, or by training time step."""
    convert = getattr(scheduler, "_sigma_to_alpha_sigma_t", None)
    if convert is not None and hasattr(scheduler, "sigmas"):
        alpha, sigma = convert(scheduler.sigmas[_index(scheduler)])
        return alpha, sigma
    table = getattr(scheduler, "alphas_cumprod", None)
    if table is None or timestep is None:
        return None
    if isinstance(timestep, torch.Tensor):
        # Indexing with a scalar on the device would wait for it.
        at = timestep.reshape(-1)[:1].long()
        product = table.to(at.device, non_blocking=True).index_select(0, at)[0]
    else:
        product = table[int(timestep)]
    return product.sqrt(), (1 - product).sqrt()


def _config(scheduler: Any) -> Mapping[str, Any]:
    return getattr(scheduler, "config", None) or {}


def _previous(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else getattr(result, "prev_sample", None)
