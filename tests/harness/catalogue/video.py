"""Transformers that make videos: CogVideoX, LTX, Mochi, HunyuanVideo, Allegro, Latte, ..."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import MAX_TOKENS, WIDTH

from . import parts, stable
from .arguments import pictures, prompt, videos
from .entry import Entry, entry

SHORT = {"prompt": prompt, "num_inference_steps": 3, "max_sequence_length": MAX_TOKENS}
LONG = SHORT | {"max_sequence_length": 256}

# ---------------------------------------------------------------------- CogVideoX


def cogvideox(**changes: Any) -> Any:
    """Make the transformer of CogVideoX."""
    config: dict[str, Any] = {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 4,
        "time_embed_dim": 2,
        "text_embed_dim": WIDTH,
        "num_layers": 1,
        "sample_width": 2,
        "sample_height": 2,
        "sample_frames": 9,
        "patch_size": 2,
        "temporal_compression_ratio": 4,
        "max_text_seq_length": 16,
        "use_rotary_positional_embeddings": True,
    }
    return diffusers.CogVideoXTransformer3DModel(**config | changes)


def cogvideox_vae() -> Any:
    """Make the video autoencoder of CogVideoX."""
    return diffusers.AutoencoderKLCogVideoX(
        in_channels=3,
        out_channels=3,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    )


COG = {
    "transformer": cogvideox,
    "vae": cogvideox_vae,
    "text_encoder": parts.t5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": diffusers.CogVideoXDDIMScheduler,
}
COG_SIZED = SHORT | {"max_sequence_length": 16, "height": 16, "width": 16, "num_frames": 9}
COG_EDIT = SHORT | {"max_sequence_length": 16, "height": 16, "width": 16}
COG_TWO = COG | {"transformer": partial(cogvideox, in_channels=8)}

# ---------------------------------------------------------------------- LTX


def ltx() -> Any:
    """Make the transformer of LTX."""
    return diffusers.LTXVideoTransformer3DModel(
        in_channels=8,
        out_channels=8,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=4,
        attention_head_dim=8,
        cross_attention_dim=32,
        num_layers=1,
        caption_channels=WIDTH,
    )


def ltx_vae() -> Any:
    """Make the video autoencoder of LTX."""
    return diffusers.AutoencoderKLLTXVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        timestep_conditioning=False,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    )


LTX = {
    "transformer": ltx,
    "vae": ltx_vae,
    "text_encoder": parts.t5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": parts.flow_scheduler,
}
LTX_SIZED = SHORT | {"height": 32, "width": 32, "num_frames": 9}

# ---------------------------------------------------------------------- Mochi


def mochi() -> Any:
    """Make the transformer of Mochi."""
    return diffusers.MochiTransformer3DModel(
        patch_size=2,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        pooled_projection_dim=16,
        in_channels=12,
        out_channels=None,
        qk_norm="rms_norm",
        text_embed_dim=WIDTH,
        time_embed_dim=4,
        activation_fn="swiglu",
        max_sequence_length=16,
    )


def mochi_vae() -> Any:
    """Make the video autoencoder of Mochi."""
    return diffusers.AutoencoderKLMochi(
        latent_channels=12,
        out_channels=3,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    )


# ---------------------------------------------------------------------- HunyuanVideo


def hunyuan(**changes: Any) -> Any:
    """Make the transformer of HunyuanVideo."""
    config: dict[str, Any] = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 10,
        "num_layers": 1,
        "num_single_layers": 1,
        "num_refiner_layers": 1,
        "patch_size": 1,
        "patch_size_t": 1,
        "guidance_embeds": True,
        "text_embed_dim": WIDTH,
        "pooled_projection_dim": WIDTH,
        "rope_axes_dim": (2, 4, 4),
    }
    return diffusers.HunyuanVideoTransformer3DModel(**config | changes)


def hunyuan_vae() -> Any:
    """Make the video autoencoder of HunyuanVideo."""
    return diffusers.AutoencoderKLHunyuanVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        down_block_types=("HunyuanVideoDownBlock3D",) * 4,
        up_block_types=("HunyuanVideoUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        act_fn="silu",
        norm_num_groups=4,
        scaling_factor=0.476986,
        spatial_compression_ratio=8,
        temporal_compression_ratio=4,
        mid_block_add_attention=True,
    )


llama = partial(parts.decoder_lm, tf.LlamaModel, tf.LlamaConfig)
HUNYUAN = {
    "transformer": hunyuan,
    "vae": hunyuan_vae,
    "text_encoder": llama,
    "tokenizer": parts.tokenizer_long,
    "text_encoder_2": parts.clip_long,
    "tokenizer_2": parts.tokenizer,
    "scheduler": partial(parts.flow_scheduler, shift=7.0),
}
TEMPLATE = {"template": "a photo of {}", "crop_start": 3}
HUNYUAN_SIZED = LONG | {"height": 16, "width": 16, "num_frames": 9, "prompt_template": TEMPLATE}

# ---------------------------------------------------------------------- Allegro, Latte


def allegro() -> Any:
    """Make the transformer of Allegro."""
    return diffusers.AllegroTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        cross_attention_dim=24,
        sample_width=8,
        sample_height=8,
        sample_frames=8,
        caption_channels=WIDTH,
    )


def allegro_vae() -> Any:
    """Make the video autoencoder of Allegro."""
    vae = diffusers.AutoencoderKLAllegro(
        in_channels=3,
        out_channels=3,
        down_block_types=("AllegroDownBlock3D",) * 4,
        up_block_types=("AllegroUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    )
    vae.enable_tiling()  # it decodes in no other way
    return vae


def latte() -> Any:
    """Make the transformer of Latte."""
    return diffusers.LatteTransformer3DModel(
        sample_size=8,
        num_layers=1,
        video_length=2,
        patch_size=2,
        attention_head_dim=8,
        num_attention_heads=3,
        caption_channels=WIDTH,
        in_channels=4,
        cross_attention_dim=24,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_single",
        norm_elementwise_affine=False,
        norm_eps=1e-6,
    )


# ---------------------------------------------------------------------- EasyAnimate


def easy_animate(**changes: Any) -> Any:
    """Make the transformer of EasyAnimate."""
    config: dict[str, Any] = {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 4,
        "time_embed_dim": 2,
        "text_embed_dim": WIDTH,
        "num_layers": 1,
        "sample_width": 16,
        "sample_height": 16,
        "patch_size": 2,
    }
    return diffusers.EasyAnimateTransformer3DModel(**config | changes)


def magvit() -> Any:
    """Make the video autoencoder of EasyAnimate."""
    return diffusers.AutoencoderKLMagvit(
        in_channels=3,
        out_channels=3,
        down_block_types=(
            "SpatialDownBlock3D",
            "SpatialTemporalDownBlock3D",
            "SpatialTemporalDownBlock3D",
            "SpatialTemporalDownBlock3D",
        ),
        up_block_types=(
            "SpatialUpBlock3D",
            "SpatialTemporalUpBlock3D",
            "SpatialTemporalUpBlock3D",
            "SpatialTemporalUpBlock3D",
        ),
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        spatial_group_norm=False,
    )


ENTRIES: list[Entry] = [
    entry("CogVideoXPipeline", COG, **COG_SIZED),
    entry("CogVideoXVideoToVideoPipeline", COG, **COG_EDIT, video=videos(9, 16)),
    entry("CogVideoXImageToVideoPipeline", COG_TWO, **COG_SIZED, image=pictures(16)),
    entry("CogVideoXFunControlPipeline", COG_TWO, **COG_EDIT, control_video=videos(9, 16)),
    entry("LTXPipeline", LTX, **LTX_SIZED),
    entry("LTXImageToVideoPipeline", LTX, **LTX_SIZED, image=pictures()),
    entry("LTXConditionPipeline", LTX, **LTX_SIZED, image=pictures()),
    entry(
        "MochiPipeline",
        {
            "transformer": mochi,
            "vae": mochi_vae,
            "text_encoder": parts.t5,
            "tokenizer": parts.tokenizer_t5,
            "scheduler": parts.flow_scheduler,
        },
        **SHORT | {"max_sequence_length": 16},
        height=16,
        width=16,
        num_frames=7,
    ),
    entry("HunyuanVideoPipeline", HUNYUAN, **HUNYUAN_SIZED),
    entry(
        "HunyuanSkyreelsImageToVideoPipeline",
        HUNYUAN | {"transformer": partial(hunyuan, in_channels=8, guidance_embeds=False)},
        **HUNYUAN_SIZED,
        image=pictures(16),
    ),
    entry(
        "AllegroPipeline",
        {
            "transformer": allegro,
            "vae": allegro_vae,
            "text_encoder": parts.t5,
            "tokenizer": parts.tokenizer_t5,
            "scheduler": stable.ddim,
        },
        **SHORT,
        height=16,
        width=16,
        num_frames=8,
        output_type="latent",
        clean_caption=False,
    ),
    entry(
        "LattePipeline",
        {
            "transformer": latte,
            "vae": parts.vae,
            "text_encoder": parts.t5,
            "tokenizer": parts.tokenizer_t5,
            "scheduler": stable.ddim,
        },
        prompt=prompt,
        num_inference_steps=3,
        height=16,
        width=16,
        video_length=2,
        clean_caption=False,
    ),
]
