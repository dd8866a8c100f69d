"""Stable Diffusion 1 and 2: one UNet in all its uses."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers

from sidestream.workers.models.families_tiny import WIDTH

from . import parts
from .arguments import masks, pictures, prompt, tensors, unit_tensors
from .entry import Entry, entry


def unet(**changes: Any) -> Any:
    """Make a UNet with cross-attention."""
    config: dict[str, Any] = {
        "block_out_channels": (4, 8),
        "layers_per_block": 1,
        "sample_size": 32,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": WIDTH,
        "norm_num_groups": 2,
    }
    return diffusers.UNet2DConditionModel(**config | changes)


def controlnet(**changes: Any) -> Any:
    """Make a ControlNet for the UNet."""
    config: dict[str, Any] = {
        "block_out_channels": (4, 8),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "conditioning_embedding_out_channels": (2, 4),
        "cross_attention_dim": WIDTH,
        "norm_num_groups": 2,
    }
    return diffusers.ControlNetModel(**config | changes)


def adapter() -> Any:
    """Make a T2I adapter."""
    return diffusers.T2IAdapter(
        channels=[4, 8], num_res_blocks=1, downscale_factor=2, adapter_type="full_adapter"
    )


def ddim(**changes: Any) -> Any:
    """Make the scheduler that most edits want."""
    return diffusers.DDIMScheduler(clip_sample=False, steps_offset=1, **changes)


def controlnet_xs(**changes: Any) -> Any:
    """Make a ControlNet-XS for the UNet."""
    config: dict[str, Any] = {
        "conditioning_embedding_out_channels": (2, 4),
        "block_out_channels": (2, 4),
        "base_block_out_channels": (4, 8),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "cross_attention_dim": WIDTH,
        "num_attention_heads": 2,
        "max_norm_num_groups": 2,
        "use_linear_projection": False,
        "learn_time_embedding": True,
        "sample_size": 32,
    }
    return diffusers.ControlNetXSAdapter(**config | changes)


def _example_encoder() -> Any:
    from diffusers.pipelines.deprecated.paint_by_example.image_encoder import (
        PaintByExampleImageEncoder,
    )

    config = parts.clip_vision().config
    return PaintByExampleImageEncoder(config, proj_size=WIDTH)


PARTS = {
    "unet": unet,
    "vae": parts.vae,
    "text_encoder": parts.clip,
    "tokenizer": parts.tokenizer,
    "scheduler": partial(diffusers.DPMSolverMultistepScheduler, steps_offset=1),
    "safety_checker": None,
    "feature_extractor": parts.clip_processor,
    "image_encoder": None,
    "requires_safety_checker": False,
    "controlnet": controlnet,
    "adapter": adapter,
    "pag_applied_layers": ["mid", "up"],
}
DDIM = PARTS | {"scheduler": ddim}
SIZED = {"prompt": prompt, "height": 32, "width": 32, "num_inference_steps": 4}
EDIT = {"prompt": prompt, "image": pictures(), "num_inference_steps": 4}
REPAINT = SIZED | {"image": pictures(), "mask_image": masks()}
NINE = {"unet": partial(unet, in_channels=9)}
PAG = {"pag_scale": 1.5}
ADAPTED = partial(
    unet, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), attention_head_dim=2
)
GLIGEN = {
    "gligen_phrases": ["a cat", "a dog"],
    "gligen_boxes": [[0.1, 0.1, 0.5, 0.6], [0.4, 0.2, 0.9, 0.9]],
    "gligen_scheduled_sampling_beta": 0.5,
}
LCM_UNET = {
    "unet": partial(unet, time_cond_proj_dim=32),
    "scheduler": partial(diffusers.LCMScheduler, original_inference_steps=50),
}

ENTRIES: list[Entry] = [
    entry("StableDiffusionPipeline", PARTS, **SIZED),
    entry("StableDiffusionImg2ImgPipeline", PARTS, **EDIT),
    entry("StableDiffusionInpaintPipeline", PARTS | NINE, **REPAINT),
    entry("StableDiffusionPAGPipeline", PARTS, **SIZED, **PAG),
    entry("StableDiffusionPAGImg2ImgPipeline", PARTS, **EDIT, **PAG),
    entry("StableDiffusionPAGInpaintPipeline", PARTS | NINE, **REPAINT, **PAG),
    entry("StableDiffusionControlNetPipeline", PARTS, **SIZED, image=unit_tensors(1, 3, 32, 32)),
    entry(
        "StableDiffusionControlNetImg2ImgPipeline",
        PARTS,
        **EDIT,
        control_image=unit_tensors(1, 3, 32, 32),
    ),
    entry(
        "StableDiffusionControlNetInpaintPipeline",
        PARTS | NINE,
        **REPAINT,
        control_image=unit_tensors(1, 3, 32, 32),
    ),
    entry(
        "StableDiffusionControlNetPAGPipeline",
        PARTS,
        **SIZED,
        **PAG,
        image=unit_tensors(1, 3, 32, 32),
    ),
    entry(
        "StableDiffusionControlNetPAGInpaintPipeline",
        PARTS | NINE,
        **REPAINT,
        **PAG,
        control_image=unit_tensors(1, 3, 32, 32),
    ),
    entry(
        "StableDiffusionControlNetXSPipeline",
        PARTS | {"unet": partial(unet, layers_per_block=2), "controlnet": controlnet_xs},
        **SIZED,
        image=unit_tensors(1, 3, 32, 32),
    ),
    entry("StableDiffusionAdapterPipeline", PARTS | {"unet": ADAPTED}, **SIZED, image=pictures()),
    entry(
        "StableDiffusionInstructPix2PixPipeline",
        DDIM | {"unet": partial(unet, in_channels=8)},
        **EDIT,
    ),
    entry(
        "StableDiffusionImageVariationPipeline",
        PARTS | {"image_encoder": parts.clip_vision},
        image=tensors(1, 3, 32, 32),
        height=32,
        width=32,
        num_inference_steps=4,
    ),
    entry(
        "StableDiffusionUpscalePipeline",
        PARTS
        | {
            "unet": partial(unet, in_channels=7, num_class_embeds=1000),
            "low_res_scheduler": diffusers.DDPMScheduler,
            "scheduler": partial(ddim, prediction_type="v_prediction"),
            "max_noise_level": 350,
        },
        prompt=prompt,
        image=pictures(16),
        num_inference_steps=4,
        noise_level=20,
    ),
    entry("StableDiffusionSAGPipeline", DDIM, **SIZED, sag_scale=1.0),
    entry("StableDiffusionPanoramaPipeline", DDIM, **SIZED | {"width": 64}),
    entry(
        "StableDiffusionLDM3DPipeline",
        DDIM | {"vae": partial(parts.vae, in_channels=6, out_channels=6)},
        **SIZED | {"output_type": "np"},
    ),
    entry("StableDiffusionPipelineSafe", DDIM, **SIZED),
    entry("SemanticStableDiffusionPipeline", DDIM, **SIZED, editing_prompt=["a dog"]),
    entry(
        "StableDiffusionAttendAndExcitePipeline",
        DDIM,
        **SIZED,
        token_indices=[1, 2],
        attn_res=(8, 8),
        max_iter_to_alter=2,
        thresholds={0: 0.7},
    ),
    entry("LatentConsistencyModelPipeline", PARTS | LCM_UNET, **SIZED),
    entry("LatentConsistencyModelImg2ImgPipeline", PARTS | LCM_UNET, **EDIT),
    entry(
        "CycleDiffusionPipeline",
        DDIM | {"scheduler": partial(ddim, set_alpha_to_one=False)},
        **EDIT,
        source_prompt="an animal",
        strength=0.8,
        guidance_scale=3.0,
        eta=0.5,
    ),
    entry(
        "PaintByExamplePipeline",
        PARTS | NINE | {"image_encoder": _example_encoder},
        example_image=tensors(1, 3, 32, 32),
        image=pictures(),
        mask_image=masks(),
        height=32,
        width=32,
        num_inference_steps=4,
    ),
    entry(
        "StableDiffusionGLIGENPipeline",
        DDIM | {"unet": partial(unet, attention_type="gated", attention_head_dim=2)},
        **SIZED,
        **GLIGEN,
    ),
    entry("TextToVideoZeroPipeline", DDIM, **SIZED, video_length=3, t0=1, t1=2),
]
