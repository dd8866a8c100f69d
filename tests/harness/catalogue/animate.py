"""AnimateDiff and other UNets that make videos."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers

from sidestream.workers.models.families_tiny import WIDTH

from . import parts, stable, stable_xl
from .arguments import pictures, prompt, videos
from .entry import Entry, entry


def motion_adapter(**changes: Any) -> Any:
    """Make the layers that AnimateDiff puts into a UNet."""
    config: dict[str, Any] = {
        "block_out_channels": (8, 8),
        "motion_layers_per_block": 1,
        "motion_norm_num_groups": 2,
        "motion_num_attention_heads": 4,
    }
    return diffusers.MotionAdapter(**config | changes)


def sparse_controlnet() -> Any:
    """Make a ControlNet for a few of the frames."""
    return diffusers.SparseControlNetModel(
        block_out_channels=(8, 8),
        layers_per_block=1,
        in_channels=4,
        conditioning_channels=3,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
        cross_attention_dim=WIDTH,
        conditioning_embedding_out_channels=(8, 8),
        norm_num_groups=1,
        use_simplified_condition_embedding=False,
    )


VIDEO_UNET: dict[str, Any] = {
    "block_out_channels": (4, 8),
    "layers_per_block": 1,
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
    "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 4,
    "norm_num_groups": 2,
}


def unet_3d() -> Any:
    """Make a UNet of whole videos."""
    return diffusers.UNet3DConditionModel(**VIDEO_UNET)


def spatio_temporal_unet() -> Any:
    """Make the UNet of Stable Video Diffusion."""
    return diffusers.UNetSpatioTemporalConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=16,
        in_channels=8,
        out_channels=4,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
        cross_attention_dim=WIDTH,
        num_attention_heads=2,
        projection_class_embeddings_input_dim=3 * 8,
        addition_time_embed_dim=8,
    )


def temporal_vae() -> Any:
    """Make the autoencoder of Stable Video Diffusion."""
    return diffusers.AutoencoderKLTemporalDecoder(
        block_out_channels=(32, 64),
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 2,
        latent_channels=4,
        layers_per_block=1,
        sample_size=32,
    )


def i2vgen_unet() -> Any:
    """Make the UNet of I2VGen-XL."""
    return diffusers.I2VGenXLUNet(**VIDEO_UNET)


EIGHT = {"block_out_channels": (8, 8), "attention_head_dim": 4}
CROSS_FIRST = {
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}
PARTS = stable.DDIM | {
    "unet": partial(stable.unet, **EIGHT, **CROSS_FIRST),
    "motion_adapter": motion_adapter,
    "feature_extractor": None,
    "controlnet": partial(
        stable.controlnet,
        block_out_channels=(8, 8),
        attention_head_dim=4,
        down_block_types=CROSS_FIRST["down_block_types"],
    ),
    "pag_applied_layers": ["mid", "up"],
}
SIZED = stable.SIZED | {"num_frames": 2}
FROM_VIDEO = {"prompt": prompt, "video": videos(2), "num_inference_steps": 4}
VIDEO_SD = stable.DDIM | {"unet": unet_3d}

ENTRIES: list[Entry] = [
    entry("AnimateDiffPipeline", PARTS, **SIZED),
    entry("AnimateDiffPAGPipeline", PARTS, **SIZED, pag_scale=2.0),
    entry("AnimateDiffControlNetPipeline", PARTS, **SIZED, conditioning_frames=videos(2)),
    entry(
        "AnimateDiffSparseControlNetPipeline",
        PARTS | {"controlnet": sparse_controlnet},
        **SIZED,
        conditioning_frames=videos(2),
        controlnet_frame_indices=[0, 1],
    ),
    entry("AnimateDiffVideoToVideoPipeline", PARTS, **FROM_VIDEO),
    entry(
        "AnimateDiffVideoToVideoControlNetPipeline",
        PARTS,
        **FROM_VIDEO,
        conditioning_frames=videos(2),
    ),
    entry(
        "AnimateDiffSDXLPipeline",
        stable_xl.PARTS
        | {
            "unet": partial(
                stable_xl.unet,
                block_out_channels=(8, 8),
                attention_head_dim=(2, 4),
                down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            ),
            "motion_adapter": partial(motion_adapter, use_motion_mid_block=False),
            "scheduler": stable.ddim,
            "feature_extractor": None,
        },
        **SIZED,
    ),
    entry(
        "PIAPipeline",
        PARTS | {"motion_adapter": partial(motion_adapter, conv_in_channels=9)},
        **SIZED,
        image=pictures(),
    ),
    entry("TextToVideoSDPipeline", VIDEO_SD, **SIZED),
    entry("VideoToVideoSDPipeline", VIDEO_SD, **FROM_VIDEO, strength=0.8),
    entry(
        "StableVideoDiffusionPipeline",
        {
            "unet": spatio_temporal_unet,
            "vae": temporal_vae,
            "image_encoder": partial(parts.clip_vision, image_size=224, patch_size=56),
            "scheduler": partial(
                diffusers.EulerDiscreteScheduler,
                interpolation_type="linear",
                prediction_type="v_prediction",
                timestep_type="continuous",
                use_karras_sigmas=True,
                sigma_min=0.002,
                sigma_max=700.0,
            ),
            "feature_extractor": parts.clip_processor,
        },
        image=pictures(),
        height=32,
        width=32,
        num_frames=2,
        num_inference_steps=3,
        decode_chunk_size=2,
    ),
    entry(
        "I2VGenXLPipeline",
        {
            "unet": i2vgen_unet,
            "vae": parts.vae,
            "text_encoder": parts.clip,
            "tokenizer": parts.tokenizer,
            "image_encoder": parts.clip_vision,
            "feature_extractor": parts.clip_processor,
            "scheduler": stable.ddim,
        },
        **SIZED,
        image=pictures(),
        target_fps=16,
    ),
]
