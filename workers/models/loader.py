"""`load_pipeline`: from the name of a model to a pipeline that is ready to be called.

diffusers and what builds on it are imported where they are used: that takes seconds, which models
that do without them need not wait for.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import torch

from . import shapes, synthetic
from .adapters import load_adapters
from .compiling import Compile, compile_denoisers
from .hub import hub_errors_of
from .options import model_dtype, parse_options, unknown_name
from .quiet import quiet

FORMS = (
    "a directory in diffusers' layout",
    "a hub id owner/name",
    "package.module:name",
    "random:<family>",
    "shapes",
    "synthetic",
)
_IMPORT_PATH = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)")
_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


class Pipeline(Protocol):
    """What a model is to the runner: something called like a diffusers pipeline.

    Its ``nn.Module`` components should be attributes that `components` names. It may have
    ``sidestream_defaults``: arguments that a request gets unless it says otherwise.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one request."""

    @property
    def components(self) -> dict[str, Any]:
        """Modules, schedulers and tokenizers by attribute name."""


class NoOptions(msgspec.Struct, frozen=True):
    """Options of ``shapes``: there are none."""


class PretrainedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a diffusers directory or hub id; all but ``pipeline_class`` as in diffusers.

    Args:
        pipeline_class: Class to load as, instead of the one that the model names: a class of
            diffusers, such as "StableDiffusionImg2ImgPipeline", or an import path.
        variant: Kind of weight files, such as "fp16".
        revision: Branch, tag or commit on the hub.
        cache_dir: Where downloads are kept.
        local_files_only: Whether to stay offline.
        use_safetensors: Whether to insist on safetensors; other weight files are pickles, which
            can run code when they are loaded.
        trust_remote_code: Whether to run code that comes with the model.
        preview_vae: Directory or hub id of an ``AutoencoderTiny`` for the model's latents, which
            then makes the previews.
    """

    pipeline_class: str | None = None
    variant: str | None = None
    revision: str | None = None
    cache_dir: str | None = None
    local_files_only: bool = False
    use_safetensors: bool = True
    trust_remote_code: bool = False
    preview_vae: str | None = None


def load_pipeline(
    model: str,
    options: Mapping[str, Any],
    *,
    device: str,
    dtype: str | None,
    lora: Mapping[str, str] = MappingProxyType({}),
    compiled: Compile = "off",
) -> Pipeline:
    """Load a model.

    Args:
        model: One of

            * ``"shapes"``: the small text-to-image model in this package;
            * ``"synthetic"``: takes a given time, returns a given value (`synthetic`);
            * ``"random:<family>"``: random weights, tiny or full-size (`families`);
            * ``"package.module:name"``: a class or function that is called with the options as
              keyword arguments, and with ``device`` and ``dtype`` if it has such parameters;
            * a directory in diffusers' layout, or a hub id ``"owner/name"``.
        options: Options of that kind of model; see the struct of each.
        device: Where it runs, such as ``"cpu"`` or ``"cuda:0"``.
        dtype: Data type of the weights ("bf16", "fp16", "fp32" or the long names). None: the
            device's usual one, or for an import path whatever the pipeline comes with.
        lora: Adapters to load beside it: their names, and where each is (`load_adapters`).
        compiled: What of its denoisers is compiled (`compile_denoisers`).

    Returns:
        The pipeline: on the device, in evaluation mode, without progress bars.

    Raises:
        ValueError: No such model, option or value; the message names the valid ones.
        Exception: Whatever diffusers or the user's factory raises.
    """
    pipeline, cast = _load(model, options, device, dtype)
    load_adapters(pipeline, lora, options)
    settled = _settle(pipeline, device, cast)
    compile_denoisers(settled, compiled)
    return settled


def _load(
    model: str, options: Mapping[str, Any], device: str, dtype: str | None
) -> tuple[Any, torch.dtype | None]:
    """Load a model as it comes, and tell what its weights are to be cast to."""
    if model == "synthetic":
        return synthetic.load(options, device=device, dtype=dtype), None
    weights = model_dtype(dtype, device)
    wanted = None if dtype is None else weights
    family = model.removeprefix("random:")
    if model == "shapes":
        parse_options(NoOptions, options, model)
        with quiet():
            pipeline = shapes.load(device, wanted)
        pipeline.sidestream_defaults = dict(shapes.DEFAULTS)
        return pipeline, None
    if family != model:
        from . import families

        return families.load(family, options, device=device, dtype=dtype), weights
    if _IMPORT_PATH.fullmatch(model):
        return _call_factory(model, options, device, dtype), wanted
    directory = Path(model).expanduser()
    if model and directory.is_dir():
        return _from_pretrained(str(directory), options, weights), None
    if _HUB_ID.fullmatch(model):
        return _from_pretrained(model, options, weights), None
    raise unknown_name("model", model, FORMS)


def _from_pretrained(model: str, options: Mapping[str, Any], dtype: torch.dtype) -> Any:
    chosen = msgspec.structs.asdict(parse_options(PretrainedOptions, options, model))
    cls = _pipeline_class(chosen.pop("pipeline_class") or "DiffusionPipeline")
    given = {name: value for name, value in chosen.items() if value is not None}
    preview_vae = given.pop("preview_vae", None)
    with quiet():
        with hub_errors_of(f"model {model!r}"):
            pipeline = cls.from_pretrained(model, dtype=dtype, **given)
        if preview_vae is not None:
            with hub_errors_of(f"preview_vae {preview_vae!r}"):
                pipeline.preview_vae = _tiny_vae(preview_vae, chosen, dtype)
    return pipeline


def _tiny_vae(model: str, chosen: Mapping[str, Any], dtype: torch.dtype) -> Any:
    from diffusers import AutoencoderTiny

    same = {name: chosen[name] for name in ("cache_dir", "local_files_only", "use_safetensors")}
    return AutoencoderTiny.from_pretrained(model, torch_dtype=dtype, **same)


def _pipeline_class(name: str) -> Any:
    if _IMPORT_PATH.fullmatch(name):
        return _import(name)
    import diffusers

    cls = getattr(diffusers, name, None)
    if cls is None:
        known = (known for known in dir(diffusers) if known.endswith("Pipeline"))
        raise unknown_name("pipeline_class", name, known)
    return cls


def _import(path: str) -> Any:
    """Return what an import path names."""
    module_name, _, name = path.partition(":")
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # Only if it is the module asked for; one missing inside it is another problem.
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ValueError(f"import path {path!r}: there is no module {error.name!r}") from error
        raise
    for part in name.split("."):
        if not hasattr(found, part):
            public = (known for known in dir(found) if not known.startswith("_"))
            raise unknown_name(f"name in import path {path!r}", part, public)
        found = getattr(found, part)
    return found


def _call_factory(path: str, options: Mapping[str, Any], device: str, dtype: str | None) -> Any:
    factory: Callable[..., Any] = _import(path)
    if not callable(factory):
        raise ValueError(f"import path {path!r} names no class or function")
    parameters = inspect.signature(factory).parameters
    place = {"device": device, "dtype": dtype}
    arguments = dict(options) | {name: place[name] for name in place if name in parameters}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in arguments:
            if name not in parameters:
                raise unknown_name(f"option of model {path!r}", name, set(parameters) - set(place))
    pipeline = factory(**arguments)
    if not callable(pipeline):
        raise ValueError(f"import path {path!r} made a {type(pipeline).__name__}, not a pipeline")
    return pipeline


def _settle(pipeline: Any, device: str, dtype: torch.dtype | None = None) -> Pipeline:
    """Put a pipeline where and how it runs, as far as it has the methods of diffusers for that.

    Args:
        pipeline: Changed in place.
        device: Where it runs.
        dtype: What to cast all weights to. Not for pretrained ones: diffusers casts while it
            reads, and keeps those in float32 that need it.
    """
    if hasattr(pipeline, "set_progress_bar_config"):
        pipeline.set_progress_bar_config(disable=True)
    if hasattr(pipeline, "to"):
        pipeline.to(device=device)
    for component in getattr(pipeline, "components", {}).values():
        if isinstance(component, torch.nn.Module):
            torch.nn.Module.to(component, dtype=dtype)  # without the advice of diffusers' own `to`
            component.eval().requires_grad_(False)
    settled: Pipeline = pipeline
    return settled
