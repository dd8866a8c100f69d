"""Classes that cannot be run here, and why: what their constructor or their call insists on."""

from __future__ import annotations

_TWO = "two calls that share state on the pipeline object: `invert`, then the edit"
_OLD = "it does not run with this version of transformers"
_TORCHVISION = "its transformer needs torchvision, which is not among the dependencies"

OUT_OF_REACH: dict[str, str] = {
    "Cosmos2_5_PredictBasePipeline": _TORCHVISION,
    "Cosmos2_5_TransferPipeline": _TORCHVISION,
    "Cosmos2TextToImagePipeline": _TORCHVISION,
    "Cosmos2VideoToWorldPipeline": _TORCHVISION,
    "CosmosTextToWorldPipeline": _TORCHVISION,
    "CosmosVideoToWorldPipeline": _TORCHVISION,
    "EasyAnimateControlPipeline": (
        "it does not run with this version of diffusers: it calls its own `encode_prompt` with an"
        " argument that this does not take"
    ),
    "I2VGenXLPipeline": f"{_OLD}: it reaches for `text_encoder.text_model`",
    "LEditsPPPipelineStableDiffusion": _TWO,
    "LEditsPPPipelineStableDiffusionXL": _TWO,
}
