"""Which postprocessor a pipeline gets: by the name of its class."""

import importlib

from .postprocessor import Postprocessor, RawPostprocessor, SignedPostprocessor

# These return what their decoder did for output_type="pt": values in [-1, 1].
_SIGNED = (
    "IFImg2ImgPipeline",
    "IFImg2ImgSuperResolutionPipeline",
    "IFInpaintingPipeline",
    "IFInpaintingSuperResolutionPipeline",
    "IFPipeline",
    "IFSuperResolutionPipeline",
    "Kandinsky3Pipeline",
    "KandinskyCombinedPipeline",
    "KandinskyInpaintCombinedPipeline",
    "KandinskyInpaintPipeline",
    "KandinskyPipeline",
    "KandinskyV22CombinedPipeline",
    "KandinskyV22ControlnetPipeline",
    "KandinskyV22InpaintCombinedPipeline",
    "KandinskyV22InpaintPipeline",
    "KandinskyV22Pipeline",
)

_DEFAULT = Postprocessor()
_registry: dict[str, Postprocessor | str] = {
    "SyntheticPipeline": RawPostprocessor(),
    **dict.fromkeys(_SIGNED, SignedPostprocessor()),
}


def register_postprocessor(pipeline_class: str, postprocessor: Postprocessor | str) -> None:
    """Choose the postprocessor for a pipeline class; the last choice counts.

    Both stages must know it: with worker processes, register where the pipeline is defined (the
    module that the engine's ``model`` names) as well as in the program that opens the engine.

    Args:
        pipeline_class: Name of the class, such as "StableDiffusionPipeline".
        postprocessor: An instance, or an import path "package.module:name" of an instance or of
            a class without arguments, which is resolved when it is first needed.
    """
    _registry[pipeline_class] = postprocessor


def get_postprocessor(pipeline_class: str) -> Postprocessor:
    """Return the postprocessor for a pipeline class, or for an import path of a postprocessor.

    Args:
        pipeline_class: Name of the class; a name that is not registered gets pictures and videos
            in [0, 1]. Or an import path as for `register_postprocessor`.

    Raises:
        ValueError: An import path names nothing of the kind.
    """
    found = pipeline_class if ":" in pipeline_class else _registry.get(pipeline_class, _DEFAULT)
    if isinstance(found, str):
        path, found = found, _resolve(found)
        if path != pipeline_class:
            _registry[pipeline_class] = found
    return found


def _resolve(path: str) -> Postprocessor:
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"postprocessor {path!r}: {error}") from error
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Postprocessor):
        raise ValueError(f"postprocessor {path!r} is a {type(made).__name__}, not a Postprocessor")
    return made
