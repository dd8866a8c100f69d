"""Wan and what was made from it: three-dimensional transformers with a causal video autoencoder."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import MAX_TOKENS, WIDTH

from . import parts
from .arguments import pictures, prompt, videos
from .entry import Entry, entry

CONFIG: dict[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": WIDTH,
    "freq_dim": 32,
    "ffn_dim": 32,
    "num_layers": 2,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 32,
}


def wan(**changes: Any) -> Any:
    """Make the transformer of Wan."""
    return diffusers.WanTransformer3DModel(**CONFIG | changes)


def skyreels(**changes: Any) -> Any:
    """Make the transformer of SkyReels."""
    return diffusers.SkyReelsV2Transformer3DModel(**CONFIG | changes)


def vace() -> Any:
    """Make the transformer that edits videos."""
    return diffusers.WanVACETransformer3DModel(
        **CONFIG | {"num_layers": 3}, vace_layers=[0, 2], vace_in_channels=96
    )


def vae(**changes: Any) -> Any:
    """Make the causal video autoencoder."""
    config: dict[str, Any] = {
        "base_dim": 3,
        "z_dim": 16,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
    }
    return diffusers.AutoencoderKLWan(**config | changes)


def scheduler() -> Any:
    """Make the scheduler of Wan."""
    return diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )


def image_encoder(size: int = 4) -> Any:
    """Make the encoder of the first frame."""
    return parts.clip_vision(
        tf.CLIPVisionModel,
        hidden_size=4,
        projection_dim=4,
        num_attention_heads=2,
        image_size=size,
        patch_size=1,
    )


PARTS = {
    "transformer": wan,
    "transformer_2": None,
    "vae": vae,
    "text_encoder": parts.umt5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": scheduler,
    "image_encoder": None,
    "image_processor": None,
}
FROM_IMAGE = {
    "transformer": partial(wan, in_channels=36, image_dim=4),
    "image_encoder": image_encoder,
    "image_processor": partial(parts.clip_processor, 4),
}
SHORT = {"prompt": prompt, "num_inference_steps": 3, "max_sequence_length": MAX_TOKENS}
SIZED = SHORT | {"height": 16, "width": 16, "num_frames": 9}
SKYREELS = PARTS | {"transformer": skyreels}
SKYREELS_I2V = (
    SKYREELS | FROM_IMAGE | {"transformer": partial(skyreels, in_channels=36, image_dim=4)}
)

ENTRIES: list[Entry] = [
    entry("WanPipeline", PARTS, **SIZED),
    entry("WanVideoToVideoPipeline", PARTS, **SHORT, video=videos(5, 16), height=16, width=16),
    entry("WanImageToVideoPipeline", PARTS | FROM_IMAGE, **SIZED, image=pictures(16)),
    entry("WanVACEPipeline", PARTS | {"transformer": vace}, **SIZED),
    entry("SkyReelsV2Pipeline", SKYREELS, **SIZED),
    entry("SkyReelsV2ImageToVideoPipeline", SKYREELS_I2V, **SIZED, image=pictures(16)),
    entry("SkyReelsV2DiffusionForcingPipeline", SKYREELS, **SIZED),
    entry("SkyReelsV2DiffusionForcingImageToVideoPipeline", SKYREELS, **SIZED, image=pictures(16)),
    entry(
        "SkyReelsV2DiffusionForcingVideoToVideoPipeline",
        SKYREELS,
        **SHORT,
        video=videos(7, 16),
        height=16,
        width=16,
        num_frames=9,
        overlap_history=3,
    ),
    entry(
        "LucyEditPipeline",
        PARTS | {"transformer": partial(wan, in_channels=32)},
        **SIZED,
        video=videos(9, 16),
    ),
]
