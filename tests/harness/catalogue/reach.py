"""Classes that cannot be run here, and why: what their constructor or their call insists on."""

from __future__ import annotations

_NO_IMAGES = "it returns text or other things than tensors"
_TWO = "two calls that share state on the pipeline object: `invert`, then the edit"
_OLD = "it does not run with this version of transformers"

OUT_OF_REACH: dict[str, str] = {
    "DiffusionGemmaPipeline": _NO_IMAGES,
    "LLaDA2Pipeline": _NO_IMAGES,
    "I2VGenXLPipeline": f"{_OLD}: it reaches for `text_encoder.text_model`",
    "LEditsPPPipelineStableDiffusion": _TWO,
    "LEditsPPPipelineStableDiffusionXL": _TWO,
}
