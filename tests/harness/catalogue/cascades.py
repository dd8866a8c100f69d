"""Pipelines in stages: DeepFloyd IF, Würstchen, Stable Cascade."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import WIDTH

from . import parts
from .arguments import prompt, tensors, unit_tensors
from .entry import Entry, entry

# ---------------------------------------------------------------------- DeepFloyd IF


def if_unet(**changes: Any) -> Any:
    """Make the UNet of IF, which works on pixels."""
    config: dict[str, Any] = {
        "sample_size": 32,
        "layers_per_block": 1,
        "block_out_channels": (32, 64),
        "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
        "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        "in_channels": 3,
        "out_channels": 6,
        "cross_attention_dim": WIDTH,
        "encoder_hid_dim": WIDTH,
        "attention_head_dim": 8,
        "addition_embed_type": "text",
        "addition_embed_type_num_heads": 2,
        "cross_attention_norm": "group_norm",
        "resnet_time_scale_shift": "scale_shift",
        "act_fn": "gelu",
    }
    return diffusers.UNet2DConditionModel(**config | changes)


def if_scheduler() -> Any:
    """Make the scheduler of IF."""
    return diffusers.DDPMScheduler(
        beta_schedule="squaredcos_cap_v2",
        thresholding=True,
        dynamic_thresholding_ratio=0.95,
        sample_max_value=1.0,
        variance_type="learned_range",
    )


IF = {
    "text_encoder": parts.t5,
    "tokenizer": partial(parts.word_tokenizer, 77, start=False),
    "unet": if_unet,
    "scheduler": if_scheduler,
    "image_noising_scheduler": partial(diffusers.DDPMScheduler, beta_schedule="squaredcos_cap_v2"),
    "watermarker": None,
    "safety_checker": None,
    "feature_extractor": None,
    "requires_safety_checker": False,
}
IF_LARGE = IF | {
    "unet": partial(
        if_unet, in_channels=6, class_embed_type="timestep", time_embedding_act_fn="gelu"
    )
}
IF_SHORT = {"prompt": prompt, "num_inference_steps": 3, "clean_caption": False}
SMALL = unit_tensors(1, 3, 16, 16)
PICTURE = unit_tensors(1, 3, 32, 32)
ENLARGE = {"image": SMALL, "original_image": PICTURE}

# ---------------------------------------------------------------------- Würstchen, Stable Cascade


def wuerstchen_prior() -> Any:
    """Make the prior of Würstchen."""
    from diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_prior import WuerstchenPrior

    return WuerstchenPrior(c_in=2, c=8, depth=2, c_cond=WIDTH, c_r=8, nhead=2)


def wuerstchen_decoder() -> Any:
    """Make the decoder of Würstchen."""
    from diffusers.pipelines.deprecated.wuerstchen.modeling_wuerstchen_diffnext import (
        WuerstchenDiffNeXt,
    )

    return WuerstchenDiffNeXt(
        c_cond=WIDTH,
        c_hidden=[32],
        nhead=[-1],
        blocks=[1],
        level_config=["CT"],
        clip_embd=WIDTH,
        inject_effnet=[False],
    )


def paella() -> Any:
    """Make the autoencoder of Würstchen and Stable Cascade."""
    from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel

    return PaellaVQModel(bottleneck_blocks=1, num_vq_embeddings=2, embed_dim=16)


def cascade(**changes: Any) -> Any:
    """Make the UNet of Stable Cascade, of the prior or the decoder."""
    from diffusers.models import StableCascadeUNet

    config: dict[str, Any] = {
        "conditioning_dim": 16,
        "block_out_channels": (16,),
        "num_attention_heads": (2,),
        "down_num_layers_per_block": (1,),
        "up_num_layers_per_block": (1,),
        "down_blocks_repeat_mappers": (1,),
        "up_blocks_repeat_mappers": (1,),
        "clip_text_in_channels": WIDTH,
        "clip_text_pooled_in_channels": WIDTH,
        "clip_image_in_channels": WIDTH,
        "switch_level": (False,),
        "timestep_ratio_embedding_dim": 64,
        "patch_size": 1,
    }
    return StableCascadeUNet(**config | changes)


cascade_prior = partial(
    cascade,
    in_channels=4,
    out_channels=4,
    block_types_per_layer=(("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),),
    self_attn=True,
)
cascade_decoder = partial(
    cascade,
    in_channels=4,
    out_channels=4,
    block_types_per_layer=(("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),),
    clip_text_in_channels=None,
    clip_image_in_channels=None,
    effnet_in_channels=4,
    pixel_mapper_in_channels=3,
    self_attn=False,
)
clip_cascade = partial(parts.clip_long, tf.CLIPTextModelWithProjection)
WORDS = partial(parts.word_tokenizer, 77)
WUERSTCHEN_PRIOR = {
    "prior": wuerstchen_prior,
    "text_encoder": parts.clip_long,
    "tokenizer": WORDS,
    "scheduler": diffusers.DDPMWuerstchenScheduler,
}
WUERSTCHEN = {
    "decoder": wuerstchen_decoder,
    "vqgan": paella,
    "text_encoder": parts.clip_long,
    "tokenizer": WORDS,
    "scheduler": diffusers.DDPMWuerstchenScheduler,
    "latent_dim_scale": 4.0,
}
CASCADE_PRIOR = {
    "prior": cascade_prior,
    "text_encoder": clip_cascade,
    "tokenizer": WORDS,
    "scheduler": diffusers.DDPMWuerstchenScheduler,
    "feature_extractor": None,
    "image_encoder": None,
    "resolution_multiple": 42.67,
}
CASCADE = {
    "decoder": cascade_decoder,
    "vqgan": paella,
    "text_encoder": clip_cascade,
    "tokenizer": WORDS,
    "scheduler": diffusers.DDPMWuerstchenScheduler,
    "latent_dim_scale": 4.0,
}
BOTH = {"prior_guidance_scale": 4.0, "prior_num_inference_steps": 2, "num_inference_steps": 2}

ENTRIES: list[Entry] = [
    entry("IFPipeline", IF, **IF_SHORT, height=32, width=32),
    entry("IFImg2ImgPipeline", IF, **IF_SHORT, image=PICTURE),
    entry("IFInpaintingPipeline", IF, **IF_SHORT, image=PICTURE, mask_image=PICTURE),
    entry("IFSuperResolutionPipeline", IF_LARGE, **IF_SHORT, image=SMALL, height=32, width=32),
    entry(
        "IFImg2ImgSuperResolutionPipeline",
        IF_LARGE,
        **IF_SHORT,
        image=SMALL,
        original_image=PICTURE,
    ),
    entry(
        "IFInpaintingSuperResolutionPipeline",
        IF_LARGE,
        **IF_SHORT,
        **ENLARGE,
        mask_image=PICTURE,
    ),
    entry(
        "WuerstchenPriorPipeline",
        WUERSTCHEN_PRIOR,
        prompt=prompt,
        num_inference_steps=3,
        height=128,
        width=128,
    ),
    entry(
        "WuerstchenDecoderPipeline",
        WUERSTCHEN,
        prompt=prompt,
        image_embeddings=tensors(1, 4, 4, 4),
        num_inference_steps=3,
        guidance_scale=1.0,
    ),
    entry(
        "WuerstchenCombinedPipeline",
        WUERSTCHEN | {f"prior_{name}": part for name, part in WUERSTCHEN_PRIOR.items()},
        prompt=prompt,
        **BOTH,
        height=128,
        width=128,
    ),
    entry(
        "StableCascadePriorPipeline",
        CASCADE_PRIOR,
        prompt=prompt,
        num_inference_steps=3,
        height=128,
        width=128,
    ),
    entry(
        "StableCascadeDecoderPipeline",
        CASCADE,
        prompt=prompt,
        image_embeddings=tensors(1, 4, 4, 4),
        num_inference_steps=3,
        guidance_scale=2.0,
    ),
    entry(
        "StableCascadeCombinedPipeline",
        CASCADE | {f"prior_{name}": part for name, part in CASCADE_PRIOR.items()},
        prompt=prompt,
        **BOTH,
        height=128,
        width=128,
    ),
]
