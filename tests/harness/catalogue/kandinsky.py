"""Kandinsky 2: a prior that makes image embeddings, and decoders that draw them."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import numpy as np
import transformers as tf

from sidestream.workers.models.families_tiny import WIDTH

from . import parts
from .arguments import masks, pictures, prompt, tensors, unit_tensors
from .entry import Entry, entry


def kandinsky_unet(**changes: Any) -> Any:
    """Make the UNet of Kandinsky 2."""
    config: dict[str, Any] = {
        "in_channels": 4,
        "out_channels": 8,
        "addition_embed_type": "image",
        "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "encoder_hid_dim": WIDTH,
        "encoder_hid_dim_type": "image_proj",
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 4,
        "resnet_time_scale_shift": "scale_shift",
        "sample_size": 16,
    }
    return diffusers.UNet2DConditionModel(**config | changes)


def movq(downsamplings: int = 1) -> Any:
    """Make the autoencoder of Kandinsky 2."""
    return diffusers.VQModel(
        block_out_channels=(32,) * downsamplings + (64,),
        down_block_types=("DownEncoderBlock2D",) * downsamplings + ("AttnDownEncoderBlock2D",),
        up_block_types=("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * downsamplings,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=8,
        norm_type="spatial",
        num_vq_embeddings=12,
        vq_embed_dim=4,
    )


def prior(**changes: Any) -> Any:
    """Make the transformer that turns prompts into image embeddings."""
    config: dict[str, Any] = {
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "embedding_dim": WIDTH,
        "num_layers": 1,
    }
    model = diffusers.PriorTransformer(**config | changes)
    model.clip_std.data.fill_(1.0)
    return model


def mclip() -> Any:
    """Make the multilingual text encoder of Kandinsky 2.1."""
    from diffusers.pipelines.kandinsky.text_encoder import MCLIPConfig, MultilingualCLIP

    return MultilingualCLIP(
        MCLIPConfig(
            numDims=WIDTH,
            transformerDimensions=WIDTH,
            hidden_size=WIDTH,
            intermediate_size=37,
            num_attention_heads=4,
            num_hidden_layers=2,
            vocab_size=1005,
        )
    )


def prior_scheduler() -> Any:
    """Make the scheduler of the prior."""
    return diffusers.UnCLIPScheduler(
        variance_type="fixed_small_log",
        prediction_type="sample",
        clip_sample=True,
        clip_sample_range=5.0,
    )


def kandinsky_scheduler() -> Any:
    """Make the scheduler of the decoder."""
    return diffusers.DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )


def _mask(index: int) -> Any:
    return np.asarray(masks(64)(index), dtype=np.float32) / 255


PRIOR = {
    "prior": prior,
    "image_encoder": partial(parts.clip_vision, image_size=32),
    "text_encoder": partial(parts.clip_long, tf.CLIPTextModelWithProjection),
    "tokenizer": partial(parts.word_tokenizer, 77),
    "scheduler": prior_scheduler,
    "image_processor": parts.clip_processor,
}
PRIOR_PARTS = {
    f"prior_{name}": PRIOR[name]
    for name in ("prior", "image_encoder", "text_encoder", "tokenizer", "scheduler")
} | {"prior_image_processor": parts.clip_processor}
V22 = {"unet": kandinsky_unet, "scheduler": kandinsky_scheduler, "movq": movq}
V21 = V22 | {
    "unet": partial(
        kandinsky_unet, addition_embed_type="text_image", encoder_hid_dim_type="text_image_proj"
    ),
    "text_encoder": mclip,
    "tokenizer": partial(parts.word_tokenizer, 77),
}
CONTROL = V22 | {
    "unet": partial(kandinsky_unet, in_channels=8, addition_embed_type="image_hint"),
    "movq": partial(movq, downsamplings=3),
}
NINE = partial(kandinsky_unet, in_channels=9)
NINE_V21 = partial(
    kandinsky_unet,
    in_channels=9,
    addition_embed_type="text_image",
    encoder_hid_dim_type="text_image_proj",
)
V21_NINE = V21 | {"unet": NINE_V21}
EMBEDDED = {"image_embeds": tensors(1, WIDTH), "negative_image_embeds": tensors(1, WIDTH)}
SIZED = {"height": 64, "width": 64, "num_inference_steps": 3}
EDIT = SIZED | {"image": pictures(64), "strength": 0.7}
REPAINT = SIZED | {"image": pictures(64), "mask_image": _mask}
STEPS = {"prior_num_inference_steps": 2}

ENTRIES: list[Entry] = [
    entry("KandinskyV22PriorPipeline", PRIOR, prompt=prompt, num_inference_steps=3),
    entry(
        "KandinskyV22PriorEmb2EmbPipeline",
        PRIOR,
        prompt=prompt,
        image=pictures(),
        num_inference_steps=5,
    ),
    entry("KandinskyV22Pipeline", V22, **EMBEDDED, **SIZED),
    entry("KandinskyV22Img2ImgPipeline", V22, **EMBEDDED, **EDIT),
    entry("KandinskyV22InpaintPipeline", V22 | {"unet": NINE}, **EMBEDDED, **REPAINT),
    entry(
        "KandinskyV22ControlnetPipeline",
        CONTROL,
        **EMBEDDED,
        **SIZED,
        hint=unit_tensors(1, 3, 64, 64),
    ),
    entry(
        "KandinskyV22ControlnetImg2ImgPipeline",
        CONTROL,
        **EMBEDDED,
        **EDIT,
        hint=unit_tensors(1, 3, 64, 64),
    ),
    entry("KandinskyV22CombinedPipeline", V22 | PRIOR_PARTS, prompt=prompt, **SIZED, **STEPS),
    entry("KandinskyV22Img2ImgCombinedPipeline", V22 | PRIOR_PARTS, prompt=prompt, **EDIT, **STEPS),
    entry(
        "KandinskyV22InpaintCombinedPipeline",
        V22 | PRIOR_PARTS | {"unet": NINE},
        prompt=prompt,
        **REPAINT,
        **STEPS,
    ),
    entry("KandinskyPriorPipeline", PRIOR, prompt=prompt, num_inference_steps=3),
    entry("KandinskyPipeline", V21, prompt=prompt, **EMBEDDED, **SIZED),
    entry("KandinskyImg2ImgPipeline", V21, prompt=prompt, **EMBEDDED, **EDIT),
    entry(
        "KandinskyInpaintPipeline", V21 | {"unet": NINE_V21}, prompt=prompt, **EMBEDDED, **REPAINT
    ),
    entry("KandinskyCombinedPipeline", V21 | PRIOR_PARTS, prompt=prompt, **SIZED, **STEPS),
    entry("KandinskyImg2ImgCombinedPipeline", V21 | PRIOR_PARTS, prompt=prompt, **EDIT, **STEPS),
    entry(
        "KandinskyInpaintCombinedPipeline",
        V21_NINE | PRIOR_PARTS,
        prompt=prompt,
        **REPAINT,
        **STEPS,
    ),
]
