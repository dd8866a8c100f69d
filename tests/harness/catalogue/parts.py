"""Components that many families share, tiny: text and image encoders, autoencoders, processors."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import MAX_TOKENS, WIDTH, tiny_clip, tiny_t5, tiny_vae
from sidestream.workers.models.tokenizers import (
    END_ID,
    PAD_ID,
    START_ID,
    vocabulary,
    word_tokenizer,
)

clip = tiny_clip
clip_projected = partial(tiny_clip, tf.CLIPTextModelWithProjection)
t5 = tiny_t5
umt5 = partial(tiny_t5, tf.UMT5EncoderModel, tf.UMT5Config)
vae = tiny_vae
tokenizer = partial(word_tokenizer, MAX_TOKENS)
tokenizer_t5 = partial(word_tokenizer, MAX_TOKENS, start=False)

flow_vae = partial(
    tiny_vae, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5
)
"""An autoencoder of the flow-matching families: no quantisation layers, shifted latents."""


vae8 = partial(
    tiny_vae,
    block_out_channels=(4, 8, 8, 8),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
)
"""An autoencoder that makes each side an eighth, which some pipelines take for granted."""

tokenizer_long = partial(word_tokenizer, 512)
"""A tokenizer with room for what some pipelines put around a prompt."""


def clip_long(cls: Any = tf.CLIPTextModel) -> Any:
    """Make a CLIP text encoder for the 77 tokens that some pipelines take for granted."""
    return cls(type(clip().config)(**clip().config.to_dict() | {"max_position_embeddings": 77}))


def flow_scheduler(**changes: Any) -> Any:
    """Make the scheduler of most newer families."""
    return diffusers.FlowMatchEulerDiscreteScheduler(**changes)


def chat_tokenizer() -> Any:
    """Make a tokenizer for prompts that are put as a conversation."""
    made = word_tokenizer(2048)
    made.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return made


def qwen_vl(cls: Any = None) -> Any:
    """Make a two-layer vision-language model of the Qwen 2.5 kind."""
    text = {
        "vocab_size": len(vocabulary()),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
        "rope_theta": 1000000.0,
        "pad_token_id": PAD_ID,
    }
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 16,
    }
    config = tf.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=10,
        video_token_id=11,
        vision_start_token_id=12,
        vision_end_token_id=13,
    )
    return (cls or tf.Qwen2_5_VLForConditionalGeneration)(config)


def clip_vision(cls: Any = tf.CLIPVisionModelWithProjection, **changes: Any) -> Any:
    """Make a two-layer CLIP image encoder of pictures of 32 pixels."""
    config: dict[str, Any] = {
        "hidden_size": WIDTH,
        "projection_dim": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 32,
        "intermediate_size": 37,
        "patch_size": 8,
    }
    return cls(tf.CLIPVisionConfig(**config | changes))


def clip_processor(size: int = 32) -> Any:
    """Make what prepares pictures for the CLIP image encoder."""
    return tf.CLIPImageProcessorPil(
        crop_size={"height": size, "width": size}, size={"shortest_edge": size}
    )


def bert(cls: Any = tf.BertModel) -> Any:
    """Make a two-layer BERT."""
    return cls(
        tf.BertConfig(
            vocab_size=len(vocabulary()),
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=37,
            max_position_embeddings=512,
        )
    )


def decoder_lm(cls: Any, config: Any, **changes: Any) -> Any:
    """Make a two-layer decoder-only language model, as newer families use for prompts."""
    sizes: dict[str, Any] = {
        "vocab_size": len(vocabulary()),
        "hidden_size": WIDTH,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "head_dim": 8,
        "bos_token_id": START_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
    }
    return cls(config(**sizes | changes))
