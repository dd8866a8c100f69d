"""Transformers that draw pictures from one text encoder: PixArt, Hunyuan-DiT, Lumina, Sana, ..."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import MAX_TOKENS, WIDTH

from . import parts, stable
from .arguments import pictures, unit_tensors
from .entry import Entry, entry

SIZED = stable.SIZED | {"max_sequence_length": MAX_TOKENS}
CONTROL = unit_tensors(1, 3, 32, 32)

# ---------------------------------------------------------------------- PixArt


def pixart(**changes: Any) -> Any:
    """Make the transformer of PixArt."""
    config: dict[str, Any] = {
        "sample_size": 16,
        "num_layers": 2,
        "patch_size": 2,
        "attention_head_dim": 8,
        "num_attention_heads": 3,
        "caption_channels": WIDTH,
        "in_channels": 4,
        "cross_attention_dim": 24,
        "out_channels": 8,
        "attention_bias": True,
        "activation_fn": "gelu-approximate",
        "num_embeds_ada_norm": 1000,
        "norm_type": "ada_norm_single",
        "norm_elementwise_affine": False,
        "norm_eps": 1e-6,
    }
    return diffusers.PixArtTransformer2DModel(**config | changes)


PIXART = {
    "transformer": pixart,
    "vae": parts.vae,
    "text_encoder": parts.t5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": diffusers.DPMSolverMultistepScheduler,
    "pag_applied_layers": ["blocks.1"],
}
PIXART_SIZED = SIZED | {"use_resolution_binning": False, "clean_caption": False}

# ---------------------------------------------------------------------- Hunyuan-DiT

HUNYUAN = {
    "sample_size": 16,
    "patch_size": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 3,
    "in_channels": 4,
    "cross_attention_dim": WIDTH,
    "cross_attention_dim_t5": WIDTH,
    "pooled_projection_dim": 16,
    "hidden_size": 24,
    "activation_fn": "gelu-approximate",
    "text_len": 77,
    "text_len_t5": 256,
}


def hunyuan_controlnet() -> Any:
    """Make a ControlNet for Hunyuan-DiT."""
    return diffusers.HunyuanDiT2DControlNetModel(**HUNYUAN, transformer_num_layers=4)


HUNYUAN_PARTS = {
    "transformer": lambda: diffusers.HunyuanDiT2DModel(**HUNYUAN, num_layers=4),
    "controlnet": hunyuan_controlnet,
    "vae": parts.vae8,
    "text_encoder": parts.bert,
    "tokenizer": parts.tokenizer,
    "text_encoder_2": parts.t5,
    "tokenizer_2": parts.tokenizer_t5,
    "scheduler": diffusers.DDPMScheduler,
    "safety_checker": None,
    "feature_extractor": None,
    "requires_safety_checker": False,
    "pag_applied_layers": ["blocks.1", "blocks.2"],
}
HUNYUAN_SIZED = stable.SIZED | {"height": 64, "width": 64} | {"use_resolution_binning": False}

# ---------------------------------------------------------------------- Lumina


def lumina() -> Any:
    """Make the transformer of Lumina."""
    return diffusers.LuminaNextDiT2DModel(
        sample_size=4,
        patch_size=2,
        in_channels=4,
        hidden_size=24,
        num_layers=2,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=16,
        ffn_dim_multiplier=None,
        norm_eps=1e-5,
        learn_sigma=True,
        qk_norm=True,
        cross_attention_dim=WIDTH,
        scaling_factor=1.0,
    )


def lumina2() -> Any:
    """Make the transformer of Lumina 2."""
    return diffusers.Lumina2Transformer2DModel(
        sample_size=4,
        patch_size=2,
        in_channels=4,
        hidden_size=8,
        num_layers=2,
        num_attention_heads=1,
        num_kv_heads=1,
        multiple_of=16,
        ffn_dim_multiplier=None,
        norm_eps=1e-5,
        scaling_factor=1.0,
        axes_dim_rope=[4, 2, 2],
        axes_lens=[300, 64, 64],
        cap_feat_dim=WIDTH,
    )


gemma = partial(parts.decoder_lm, tf.GemmaModel, tf.GemmaConfig)
gemma2 = partial(parts.decoder_lm, tf.Gemma2Model, tf.Gemma2Config)

LUMINA = {
    "transformer": lumina,
    "vae": parts.vae,
    "text_encoder": gemma,
    "tokenizer": parts.tokenizer_long,
    "scheduler": parts.flow_scheduler,
}
LUMINA2 = LUMINA | {"transformer": lumina2, "text_encoder": gemma2, "vae": parts.flow_vae}

# ---------------------------------------------------------------------- Sana


def dc_autoencoder() -> Any:
    """Make the autoencoder of Sana."""
    return diffusers.AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )


SANA = {
    "patch_size": 1,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 4,
    "num_cross_attention_heads": 2,
    "cross_attention_head_dim": 4,
    "cross_attention_dim": 8,
    "caption_channels": WIDTH,
    "sample_size": 32,
}
SPRINT = SANA | {"guidance_embeds": True, "qk_norm": "rms_norm_across_heads"}
SANA_PARTS = {
    "transformer": lambda: diffusers.SanaTransformer2DModel(**SANA),
    "controlnet": lambda: diffusers.SanaControlNetModel(**SANA),
    "vae": dc_autoencoder,
    "text_encoder": gemma2,
    "tokenizer": parts.tokenizer,
    "scheduler": parts.flow_scheduler,
    "pag_applied_layers": ["blocks.1"],
}
SPRINT_PARTS = SANA_PARTS | {
    "transformer": lambda: diffusers.SanaTransformer2DModel(**SPRINT),
    "scheduler": diffusers.SCMScheduler,
}
SANA_SIZED = SIZED | {"use_resolution_binning": False, "complex_human_instruction": None}
SPRINT_SIZED = SANA_SIZED | {"num_inference_steps": 2}

# ---------------------------------------------------------------------- others


def cogview3() -> Any:
    """Make the transformer of CogView 3."""
    return diffusers.CogView3PlusTransformer2DModel(
        patch_size=2,
        in_channels=4,
        num_layers=1,
        attention_head_dim=4,
        num_attention_heads=2,
        out_channels=4,
        text_embed_dim=WIDTH,
        time_embed_dim=8,
        condition_dim=2,
        pos_embed_max_size=8,
        sample_size=8,
    )


def cogview4(**changes: Any) -> Any:
    """Make the transformer of CogView 4."""
    config: dict[str, Any] = {
        "patch_size": 2,
        "in_channels": 4,
        "num_layers": 2,
        "attention_head_dim": 4,
        "num_attention_heads": 4,
        "out_channels": 4,
        "text_embed_dim": WIDTH,
        "time_embed_dim": 8,
        "condition_dim": 4,
    }
    return diffusers.CogView4Transformer2DModel(**config | changes)


glm = partial(parts.decoder_lm, tf.GlmModel, tf.GlmConfig, partial_rotary_factor=0.5)
COGVIEW = {
    "transformer": cogview3,
    "vae": parts.vae,
    "text_encoder": parts.t5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": diffusers.CogVideoXDDIMScheduler,
}
COGVIEW4 = {
    "transformer": cogview4,
    "vae": parts.vae,
    "text_encoder": glm,
    "tokenizer": parts.tokenizer,
    "scheduler": partial(
        parts.flow_scheduler, base_shift=0.25, max_shift=0.75, use_dynamic_shifting=True
    ),
}


ENTRIES: list[Entry] = [
    entry("PixArtAlphaPipeline", PIXART, **PIXART_SIZED),
    entry("PixArtSigmaPipeline", PIXART, **PIXART_SIZED),
    entry("PixArtSigmaPAGPipeline", PIXART, **PIXART_SIZED, pag_scale=2.0),
    entry("HunyuanDiTPipeline", HUNYUAN_PARTS, **HUNYUAN_SIZED),
    entry("HunyuanDiTPAGPipeline", HUNYUAN_PARTS, **HUNYUAN_SIZED, pag_scale=2.0),
    entry(
        "HunyuanDiTControlNetPipeline",
        HUNYUAN_PARTS,
        **HUNYUAN_SIZED,
        control_image=unit_tensors(1, 3, 64, 64),
    ),
    entry("LuminaPipeline", LUMINA, **SIZED, clean_caption=False),
    entry("Lumina2Pipeline", LUMINA2, **SIZED | {"max_sequence_length": 256}),
    entry("SanaPipeline", SANA_PARTS, **SANA_SIZED),
    entry("SanaPAGPipeline", SANA_PARTS, **SANA_SIZED, pag_scale=2.0),
    entry("SanaControlNetPipeline", SANA_PARTS, **SANA_SIZED, control_image=CONTROL),
    entry("SanaSprintPipeline", SPRINT_PARTS, **SPRINT_SIZED),
    entry(
        "SanaSprintImg2ImgPipeline", SPRINT_PARTS, **SPRINT_SIZED, image=pictures(), strength=0.6
    ),
    entry("CogView3PlusPipeline", COGVIEW, **SIZED),
    entry("CogView4Pipeline", COGVIEW4, **SIZED),
    entry(
        "CogView4ControlPipeline",
        COGVIEW4 | {"transformer": partial(cogview4, in_channels=8)},
        **SIZED,
        control_image=pictures(),
    ),
]
