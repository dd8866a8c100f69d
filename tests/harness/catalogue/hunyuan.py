"""HunyuanVideo 1.5 and HunyuanImage, whose guiders are components, and HunyuanVideo by windows."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import WIDTH

from . import language, newer, parts, video
from .arguments import pictures, prompt
from .entry import Entry, entry


def hunyuan15(**changes: Any) -> Any:
    """Make the transformer of HunyuanVideo 1.5."""
    config: dict[str, Any] = {
        "in_channels": 9,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "num_layers": 2,
        "num_refiner_layers": 1,
        "mlp_ratio": 2.0,
        "text_embed_dim": 16,
        "text_embed_2_dim": WIDTH,
        "image_embed_dim": 16,
        "rope_axes_dim": (2, 2, 4),
        "target_size": 32,
        "task_type": "t2v",
    }
    return diffusers.HunyuanVideo15Transformer3DModel(**config | changes)


def hunyuan15_vae() -> Any:
    """Make the video autoencoder of HunyuanVideo 1.5."""
    return diffusers.AutoencoderKLHunyuanVideo15(
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8, 8),
        layers_per_block=1,
    )


def qwen_text() -> Any:
    """Make the language model alone, without eyes."""
    return parts.qwen_vl(tf.Qwen2_5_VLForConditionalGeneration).model.language_model


HUNYUAN15 = {
    "transformer": hunyuan15,
    "vae": hunyuan15_vae,
    "text_encoder": qwen_text,
    "tokenizer": newer.chat_tokenizer,
    "text_encoder_2": parts.t5,
    "tokenizer_2": partial(parts.word_tokenizer, 256, start=False),
    "scheduler": partial(parts.flow_scheduler, shift=7.0),
    "guider": partial(diffusers.ClassifierFreeGuidance, guidance_scale=4.0),
}
HUNYUAN15_I2V = HUNYUAN15 | {
    "transformer": partial(hunyuan15, task_type="i2v"),
    "image_encoder": newer.siglip,
    "feature_extractor": newer.siglip_processor,
}


def hunyuan_image(**changes: Any) -> Any:
    """Make the transformer of HunyuanImage."""
    config: dict[str, Any] = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 8,
        "num_layers": 1,
        "num_single_layers": 1,
        "num_refiner_layers": 1,
        "text_embed_dim": 16,
        "text_embed_2_dim": WIDTH,
        "rope_axes_dim": (4, 4),
    }
    return diffusers.HunyuanImageTransformer2DModel(**config | changes)


def hunyuan_image_vae() -> Any:
    """Make the autoencoder of HunyuanImage."""
    return diffusers.AutoencoderKLHunyuanImage(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(32, 32, 32, 32),
        layers_per_block=1,
        spatial_compression_ratio=8,
        sample_size=32,
        scaling_factor=0.75,
    )


def hunyuan_refiner_vae() -> Any:
    """Make the autoencoder of what refines pictures of HunyuanImage."""
    return diffusers.AutoencoderKLHunyuanImageRefiner(
        latent_channels=4, block_out_channels=(8, 8, 8, 8, 8), layers_per_block=1
    )


HUNYUAN_IMAGE = {
    "transformer": hunyuan_image,
    "vae": hunyuan_image_vae,
    "text_encoder": parts.qwen_vl,
    "tokenizer": parts.chat_tokenizer,
    "text_encoder_2": parts.t5,
    "tokenizer_2": partial(parts.word_tokenizer, 128, start=False),
    "scheduler": partial(parts.flow_scheduler, shift=5.0),
    "guider": diffusers.AdaptiveProjectedMixGuidance,
    "ocr_guider": diffusers.AdaptiveProjectedMixGuidance,
}
QUOTED = {"prompt": lambda n: f'{prompt(n)} "{prompt(n)}"'}
HUNYUAN_REFINER = HUNYUAN_IMAGE | {
    "transformer": partial(
        hunyuan_image,
        in_channels=16,
        out_channels=8,
        text_embed_2_dim=None,
        patch_size=(1, 1, 1),
        rope_axes_dim=(2, 2, 4),
        guidance_embeds=True,
    ),
    "vae": hunyuan_refiner_vae,
    "guider": None,
}

# ---------------------------------------------------------------------- HunyuanVideo with pictures


def framepack() -> Any:
    """Make the transformer that goes window by window."""
    return diffusers.HunyuanVideoFramepackTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        patch_size=2,
        text_embed_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        rope_axes_dim=(2, 4, 4),
        has_image_proj=True,
        image_proj_dim=16,
        has_clean_x_embedder=True,
    )


FRAMEPACK = video.HUNYUAN | {
    "transformer": framepack,
    "image_encoder": newer.siglip,
    "feature_extractor": newer.siglip_processor,
}


ENTRIES: list[Entry] = [
    entry(
        "HunyuanVideo15Pipeline",
        HUNYUAN15,
        **QUOTED,
        num_inference_steps=3,
        height=32,
        width=32,
        num_frames=5,
    ),
    entry(
        "HunyuanVideo15ImageToVideoPipeline",
        HUNYUAN15_I2V,
        prompt=prompt,
        num_inference_steps=3,
        image=pictures(),
        num_frames=5,
    ),
    entry("HunyuanImagePipeline", HUNYUAN_IMAGE, **language.SIZED | QUOTED, **language.GUIDED),
    entry("HunyuanImageRefinerPipeline", HUNYUAN_REFINER, **language.SIZED, image=pictures()),
    entry(
        "HunyuanVideoFramepackPipeline",
        FRAMEPACK,
        **video.HUNYUAN_SIZED | {"height": 32, "width": 32},
        image=pictures(),
        latent_window_size=3,
    ),
]
