"""Stable Diffusion 3, AuraFlow, Flux and their kin: transformers that join text and picture."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers

from sidestream.workers.models.families_tiny import MAX_TOKENS, WIDTH

from . import parts, stable
from .arguments import pictures, unit_tensors
from .entry import Entry, entry

SHORT = {"max_sequence_length": MAX_TOKENS}
SIZED = stable.SIZED | SHORT
EDIT = stable.EDIT | SHORT | {"height": 32, "width": 32}
REPAINT = stable.REPAINT | SHORT
CONTROL = unit_tensors(1, 3, 32, 32)

# ---------------------------------------------------------------------- Stable Diffusion 3

SD3 = {
    "sample_size": 32,
    "patch_size": 1,
    "in_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "caption_projection_dim": 32,
    "joint_attention_dim": WIDTH,
    "pooled_projection_dim": 2 * WIDTH,
    "out_channels": 4,
}


def sd3_controlnet(**changes: Any) -> Any:
    """Make a ControlNet for Stable Diffusion 3."""
    return diffusers.SD3ControlNetModel(**SD3 | {"num_layers": 1} | changes)


SD3_PARTS = {
    "transformer": lambda: diffusers.SD3Transformer2DModel(**SD3),
    "vae": parts.flow_vae,
    "text_encoder": parts.clip_projected,
    "text_encoder_2": parts.clip_projected,
    "text_encoder_3": parts.t5,
    "tokenizer": parts.tokenizer,
    "tokenizer_2": parts.tokenizer,
    "tokenizer_3": parts.tokenizer_t5,
    "scheduler": parts.flow_scheduler,
    "image_encoder": None,
    "feature_extractor": None,
    "controlnet": sd3_controlnet,
    "pag_applied_layers": "1",
}

SIXTEEN = {
    "transformer": lambda: diffusers.SD3Transformer2DModel(
        **SD3 | {"in_channels": 16, "out_channels": 16}
    ),
    "vae": partial(parts.flow_vae, latent_channels=16),
}

# ---------------------------------------------------------------------- Flux

FLUX = {
    "patch_size": 1,
    "in_channels": 16,
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": WIDTH,
    "pooled_projection_dim": WIDTH,
    "axes_dims_rope": (4, 4, 8),
    "guidance_embeds": True,
}


def flux(**changes: Any) -> Any:
    """Make the transformer of Flux."""
    return diffusers.FluxTransformer2DModel(**FLUX | changes)


def flux_controlnet() -> Any:
    """Make a ControlNet for Flux."""
    return diffusers.FluxControlNetModel(**FLUX | {"num_layers": 1, "num_single_layers": 1})


FLUX_PARTS = {
    "transformer": flux,
    "vae": parts.flow_vae,
    "text_encoder": parts.clip,
    "text_encoder_2": parts.t5,
    "tokenizer": parts.tokenizer,
    "tokenizer_2": parts.tokenizer_t5,
    "scheduler": partial(parts.flow_scheduler, use_dynamic_shifting=True),
    "controlnet": flux_controlnet,
    "image_encoder": None,
    "feature_extractor": None,
}
FLUX_CONTROL = FLUX_PARTS | {"transformer": partial(flux, in_channels=32, out_channels=16)}
FLUX_FILL = FLUX_PARTS | {
    "transformer": partial(flux, in_channels=16 + 16 + 4 * 4, out_channels=16)
}


def chroma() -> Any:
    """Make the transformer of Chroma."""
    model = diffusers.ChromaTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 4, 8),
        approximator_num_channels=8,
        approximator_hidden_dim=32,
        approximator_layers=1,
    )
    model.register_to_config(guidance_embeds=False)  # inpainting asks, as checkpoints say it
    return model


CHROMA_PARTS = {
    "transformer": chroma,
    "vae": parts.flow_vae,
    "text_encoder": parts.t5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": parts.flow_scheduler,
    "image_encoder": None,
    "feature_extractor": None,
}

# ---------------------------------------------------------------------- AuraFlow


def aura_flow() -> Any:
    """Make the transformer of AuraFlow."""
    return diffusers.AuraFlowTransformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=WIDTH,
        out_channels=4,
        pos_embed_max_size=256,
    )


AURA_PARTS = {
    "transformer": aura_flow,
    "vae": partial(parts.vae, sample_size=32),
    "text_encoder": parts.umt5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": parts.flow_scheduler,
}

ENTRIES: list[Entry] = [
    entry("StableDiffusion3Pipeline", SD3_PARTS, **SIZED),
    entry("StableDiffusion3Img2ImgPipeline", SD3_PARTS, **EDIT),
    entry("StableDiffusion3InpaintPipeline", SD3_PARTS | SIXTEEN, **REPAINT),
    entry("StableDiffusion3PAGPipeline", SD3_PARTS, **SIZED, pag_scale=1.5),
    entry("StableDiffusion3PAGImg2ImgPipeline", SD3_PARTS, **EDIT, pag_scale=1.5),
    entry("StableDiffusion3ControlNetPipeline", SD3_PARTS, **SIZED, control_image=CONTROL),
    entry(
        "StableDiffusion3ControlNetInpaintingPipeline",
        SD3_PARTS | {"controlnet": partial(sd3_controlnet, extra_conditioning_channels=1)},
        **SIZED,
        control_image=CONTROL,
        control_mask=lambda n: (unit_tensors(1, 1, 32, 32)(n) > 0.5).float(),
    ),
    entry("FluxPipeline", FLUX_PARTS, **SIZED),
    entry("FluxImg2ImgPipeline", FLUX_PARTS, **EDIT),
    entry("FluxInpaintPipeline", FLUX_PARTS, **REPAINT),
    entry("FluxControlPipeline", FLUX_CONTROL, **SIZED, control_image=pictures()),
    entry("FluxControlImg2ImgPipeline", FLUX_CONTROL, **EDIT, control_image=pictures()),
    entry("FluxControlInpaintPipeline", FLUX_CONTROL, **REPAINT, control_image=pictures()),
    entry("FluxControlNetPipeline", FLUX_PARTS, **SIZED, control_image=CONTROL),
    entry("FluxControlNetImg2ImgPipeline", FLUX_PARTS, **EDIT, control_image=CONTROL),
    entry("FluxControlNetInpaintPipeline", FLUX_PARTS, **REPAINT, control_image=CONTROL),
    entry("FluxFillPipeline", FLUX_FILL, **REPAINT),
    entry("FluxKontextPipeline", FLUX_PARTS, **EDIT, max_area=32 * 32, _auto_resize=False),
    entry(
        "FluxKontextInpaintPipeline", FLUX_PARTS, **REPAINT, max_area=32 * 32, _auto_resize=False
    ),
    entry("ChromaPipeline", CHROMA_PARTS, **SIZED),
    entry("ChromaImg2ImgPipeline", CHROMA_PARTS, **EDIT),
    entry("ChromaInpaintPipeline", CHROMA_PARTS, **REPAINT),
    entry("AuraFlowPipeline", AURA_PARTS, **SIZED),
]
