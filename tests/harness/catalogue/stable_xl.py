"""Stable Diffusion XL: one UNet in all its uses."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers

from sidestream.workers.models.families_tiny import WIDTH

from . import parts, stable
from .arguments import pictures, unit_tensors
from .entry import Entry, entry


def _conditioning(ids: int = 6) -> dict[str, Any]:
    return {
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": ids * 8 + WIDTH,
        "transformer_layers_per_block": (1, 2),
        "cross_attention_dim": 2 * WIDTH,
        "attention_head_dim": (2, 4),
    }


def unet(**changes: Any) -> Any:
    """Make a UNet that is told sizes and a pooled prompt."""
    return stable.unet(**_conditioning() | changes)


def controlnet(**changes: Any) -> Any:
    """Make a ControlNet for the UNet."""
    return stable.controlnet(**_conditioning() | changes)


def controlnet_union() -> Any:
    """Make a ControlNet for several kinds of conditions."""
    return diffusers.ControlNetUnionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        conditioning_embedding_out_channels=(2, 4),
        num_trans_channel=4,
        num_proj_channel=4,
        num_trans_head=2,
        norm_num_groups=2,
        **_conditioning(),
    )


def adapter() -> Any:
    """Make a T2I adapter."""
    return diffusers.T2IAdapter(
        channels=[4, 8], num_res_blocks=1, downscale_factor=2, adapter_type="full_adapter"
    )


PARTS = stable.PARTS | {
    "unet": unet,
    "text_encoder_2": parts.clip_projected,
    "tokenizer_2": parts.tokenizer,
    "scheduler": diffusers.EulerDiscreteScheduler,
    "add_watermarker": False,
    "controlnet": controlnet,
}
NINE = {"unet": partial(unet, in_channels=9)}
REFINER = {"strength": 0.8}
CONTROL = {"image": unit_tensors(1, 3, 32, 32)}
CONTROL_EDIT = {"control_image": unit_tensors(1, 3, 32, 32)}
UNION = PARTS | {"controlnet": controlnet_union}

ENTRIES: list[Entry] = [
    entry("StableDiffusionXLPipeline", PARTS, **stable.SIZED),
    entry("StableDiffusionXLImg2ImgPipeline", PARTS, **stable.EDIT, **REFINER),
    entry("StableDiffusionXLInpaintPipeline", PARTS | NINE, **stable.REPAINT, **REFINER),
    entry("StableDiffusionXLPAGPipeline", PARTS, **stable.SIZED, **stable.PAG),
    entry("StableDiffusionXLPAGImg2ImgPipeline", PARTS, **stable.EDIT, **REFINER, **stable.PAG),
    entry(
        "StableDiffusionXLPAGInpaintPipeline",
        PARTS | NINE,
        **stable.REPAINT,
        **REFINER,
        **stable.PAG,
    ),
    entry("StableDiffusionXLControlNetPipeline", PARTS, **stable.SIZED, **CONTROL),
    entry("StableDiffusionXLControlNetImg2ImgPipeline", PARTS, **stable.EDIT, **CONTROL_EDIT),
    entry("StableDiffusionXLControlNetInpaintPipeline", PARTS, **stable.REPAINT, **CONTROL_EDIT),
    entry("StableDiffusionXLControlNetPAGPipeline", PARTS, **stable.SIZED, **stable.PAG, **CONTROL),
    entry(
        "StableDiffusionXLControlNetPAGImg2ImgPipeline",
        PARTS,
        **stable.EDIT,
        **stable.PAG,
        **CONTROL_EDIT,
    ),
    entry(
        "StableDiffusionXLControlNetUnionPipeline",
        UNION,
        **stable.SIZED,
        control_image=lambda n: [pictures()(n)],
        control_mode=[0],
    ),
    entry(
        "StableDiffusionXLControlNetUnionImg2ImgPipeline",
        UNION,
        **stable.EDIT,
        control_image=lambda n: [pictures()(n)],
        control_mode=[1],
    ),
    entry(
        "StableDiffusionXLControlNetUnionInpaintPipeline",
        UNION,
        **stable.REPAINT,
        control_image=lambda n: [pictures()(n)],
        control_mode=[2],
    ),
    entry(
        "StableDiffusionXLControlNetXSPipeline",
        PARTS
        | {
            "unet": partial(unet, layers_per_block=2),
            "controlnet": partial(
                stable.controlnet_xs,
                cross_attention_dim=2 * WIDTH,
                use_linear_projection=True,
                transformer_layers_per_block=(1, 2),
                num_attention_heads=(2, 4),
            ),
        },
        **stable.SIZED,
        **CONTROL,
    ),
    entry(
        "StableDiffusionXLAdapterPipeline",
        PARTS
        | {
            "unet": partial(
                unet,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                transformer_layers_per_block=(2, 1),
            )
        },
        **stable.SIZED,
        image=pictures(),
    ),
    entry(
        "StableDiffusionXLInstructPix2PixPipeline",
        PARTS | {"unet": partial(unet, in_channels=8)},
        **stable.EDIT,
        height=32,
        width=32,
    ),
    entry(
        "TextToVideoZeroSDXLPipeline",
        PARTS | {"scheduler": stable.ddim},
        **stable.SIZED,
        video_length=3,
        t0=1,
        t1=2,
    ),
]
