"""The newest families: with guiders of their own, with experts, with two denoisers."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf
from diffusers.pipelines.ltx2.latent_upsampler import LTX2LatentUpsamplerModel

from sidestream.workers.models.families_tiny import WIDTH
from sidestream.workers.models.tokenizers import PAD_ID, vocabulary

from . import further, language, parts, wan, world
from .arguments import pictures, videos
from .entry import Entry, entry

SIZED = language.SIZED
GUIDED = language.GUIDED
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }} "
    "{% else %}{% for part in message['content'] %}{{ part['text'] }} {% endfor %}{% endif %}"
    "{% endfor %}"
)

# ---------------------------------------------------------------------- what they share


def chat_tokenizer() -> Any:
    """Make a tokenizer for conversations of strings, or of lists of parts."""
    made = parts.chat_tokenizer()
    made.chat_template = TEMPLATE
    return made


class ChatProcessor(language.TextOnly):
    """What some pipelines call a processor, for conversations that are texts alone."""

    def __init__(self) -> None:
        self.tokenizer = chat_tokenizer()
        self.apply_chat_template = self.tokenizer.apply_chat_template


def qwen3_vl(cls: Any = tf.Qwen3VLForConditionalGeneration, layers: int = 2) -> Any:
    """Make a vision-language model of the Qwen 3 kind."""
    text = {
        "vocab_size": len(vocabulary()),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default"},
        "pad_token_id": PAD_ID,
    }
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 16,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 64,
    }
    config = tf.Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=10,
        video_token_id=11,
        vision_start_token_id=12,
        vision_end_token_id=13,
    )
    return cls(config)


def siglip(size: int = 32) -> Any:
    """Make an image encoder of the SigLIP kind."""
    return tf.SiglipVisionModel(
        tf.SiglipVisionConfig(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=size,
            patch_size=8,
        )
    )


def siglip_processor(size: int = 32) -> Any:
    """Make what prepares pictures for SigLIP."""
    return tf.SiglipImageProcessorPil(size={"height": size, "width": size})


# ---------------------------------------------------------------------- Motif


def motif(**changes: Any) -> Any:
    """Make the transformer of Motif-Video."""
    config: dict[str, Any] = {
        "in_channels": 33,
        "out_channels": 16,
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "num_layers": 1,
        "num_single_layers": 2,
        "num_decoder_layers": 1,
        "text_embed_dim": WIDTH,
        "rope_axes_dim": (4, 4, 4),
    }
    return diffusers.MotifVideoTransformer3DModel(**config | changes)


def t5gemma2() -> Any:
    """Make the encoder of Motif-Video, which reads texts, and whose eyes are used on their own."""
    text = {
        "vocab_size": len(vocabulary()),
        "hidden_size": WIDTH,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
        "pad_token_id": PAD_ID,
        "dropout_rate": 0.0,
    }
    config = tf.T5Gemma2EncoderConfig(text_config=text, vision_config=siglip().config.to_dict())
    return tf.T5Gemma2Encoder(config, eoi_token_index=len(vocabulary()) - 1)


MOTIF = wan.PARTS | {
    "transformer": motif,
    "text_encoder": parts.t5,
    "scheduler": parts.flow_scheduler,
    "guider": partial(diffusers.AdaptiveProjectedGuidance, guidance_scale=4.0),
}

# ---------------------------------------------------------------------- language models


def ernie() -> Any:
    """Make the transformer of ERNIE-Image."""
    return diffusers.ErnieImageTransformer2DModel(
        hidden_size=32,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=32,
        in_channels=16,
        out_channels=16,
        text_in_dim=WIDTH,
        rope_axes_dim=(4, 6, 6),
    )


def krea2() -> Any:
    """Make the transformer of Krea 2."""
    return diffusers.Krea2Transformer2DModel(
        in_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        timestep_embed_dim=16,
        text_hidden_dim=16,
        num_text_layers=2,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=32,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(4, 6, 6),
    )


def nucleus() -> Any:
    """Make the transformer of NucleusMoE-Image, in which each token chooses experts."""
    return diffusers.NucleusMoEImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=5,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 6, 6),
        num_experts=4,
        moe_intermediate_dim=16,
        capacity_factors=2.0,
    )


ERNIE = language.FLUX2 | {
    "transformer": ernie,
    "text_encoder": language.qwen3,
    "pe": None,
    "pe_tokenizer": None,
}
KREA2 = {
    "transformer": krea2,
    "vae": language.qwen_vae,
    "text_encoder": partial(qwen3_vl, tf.Qwen3VLModel),
    "tokenizer": parts.chat_tokenizer,
    "scheduler": partial(parts.flow_scheduler, use_dynamic_shifting=True),
    "text_encoder_select_layers": (1, 2),
}
NUCLEUS = KREA2 | {
    "transformer": nucleus,
    "text_encoder": qwen3_vl,
    "processor": ChatProcessor,
    "scheduler": parts.flow_scheduler,
}


def ideogram4() -> Any:
    """Make the transformer of Ideogram 4."""
    return diffusers.Ideogram4Transformer2DModel(
        in_channels=16,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        intermediate_size=32,
        adaln_dim=16,
        llm_features_dim=13 * 16,
        mrope_section=(4, 2, 2),
    )


IDEOGRAM4 = language.FLUX2 | {
    "text_encoder": partial(qwen3_vl, tf.Qwen3VLModel, 36),
    "tokenizer": chat_tokenizer,
    "transformer": ideogram4,
    "unconditional_transformer": ideogram4,
    "prompt_enhancer_head": None,
}


# ---------------------------------------------------------------------- others


def ltx2_upsampler() -> Any:
    """Make what enlarges the latents of LTX 2."""
    return LTX2LatentUpsamplerModel(in_channels=4, mid_channels=32, num_blocks_per_stage=1)


ENTRIES: list[Entry] = [
    entry(
        "Ideogram4Pipeline",
        IDEOGRAM4,
        **SIZED,
        guidance_schedule=(7.0, 7.0, 3.0),
        max_sequence_length=32,
    ),
    entry("MotifVideoPipeline", MOTIF, **wan.SIZED, **GUIDED),
    entry(
        "MotifVideoImage2VideoPipeline",
        MOTIF
        | {
            "transformer": partial(motif, image_embed_dim=16),
            "text_encoder": t5gemma2,
            "feature_extractor": siglip_processor,
        },
        **wan.SIZED,
        **GUIDED,
        image=pictures(16),
    ),
    entry("ErnieImagePipeline", ERNIE, **SIZED, **GUIDED),
    entry("Krea2Pipeline", KREA2, **SIZED, **GUIDED, max_sequence_length=32),
    entry(
        "NucleusMoEImagePipeline",
        NUCLEUS,
        **SIZED,
        **GUIDED,
        max_sequence_length=256,
        return_index=-1,
    ),
    entry(
        "LTX2LatentUpsamplePipeline",
        world.LTX2 | {"latent_upsampler": ltx2_upsampler},
        video=videos(5),
        height=32,
        width=32,
        num_frames=5,
    ),
    entry(
        "HeliosPyramidPipeline",
        further.HELIOS
        | {"scheduler": partial(diffusers.HeliosScheduler, stages=2, stage_range=[0, 0.5, 1])},
        **{k: v for k, v in wan.SIZED.items() if k != "num_inference_steps"}
        | {"height": 32, "width": 32},
        pyramid_num_inference_steps_list=[2, 2],
    ),
]
