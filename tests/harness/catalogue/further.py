"""Relatives of families in the other modules: with pictures, videos or windows to go by."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import diffusers
import transformers as tf
from diffusers.pipelines.ltx.modeling_latent_upsampler import LTXLatentUpsamplerModel
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from diffusers.pipelines.ltx2.pipeline_ltx2_hdr_lora import LTX2HDRReferenceCondition
from diffusers.pipelines.ltx2.pipeline_ltx2_ic_lora import LTX2ReferenceCondition

from sidestream.workers.models.families_tiny import WIDTH

from . import language, older, parts, video, wan, world
from .arguments import masks, pictures, prompt, unit_tensors, videos
from .entry import Entry, entry

VIDEO = unit_tensors(1, 3, 5, 32, 32)
EASY_SIZED = older.SIZED | {"negative_prompt": "old", "num_frames": 5}


def chrono_edit() -> Any:
    """Make the transformer of ChronoEdit."""
    return diffusers.ChronoEditTransformer3DModel(
        **wan.CONFIG | {"in_channels": 36, "image_dim": 4}, rope_temporal_skip_len=2
    )


def latent_upsampler() -> Any:
    """Make what enlarges the latents of LTX."""
    return LTXLatentUpsamplerModel(in_channels=8, mid_channels=32, num_blocks_per_stage=1)


def bria_fibo() -> Any:
    """Make the transformer of Bria FIBO."""
    return diffusers.BriaFiboTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=2 * WIDTH,
        text_encoder_dim=WIDTH,
        axes_dims_rope=[0, 4, 4],
    )


def helios() -> Any:
    """Make the transformer of Helios."""
    config = {name: value for name, value in wan.CONFIG.items() if name != "rope_max_seq_len"}
    return diffusers.HeliosTransformer3DModel(**config, rope_dim=(4, 4, 4))


def any_flow() -> Any:
    """Make the transformer of AnyFlow."""
    config = {name: value for name, value in wan.CONFIG.items() if name != "qk_norm"}
    return diffusers.AnyFlowTransformer3DModel(**config)


def ovis() -> Any:
    """Make the transformer of Ovis-Image."""
    return diffusers.OvisImageTransformer2DModel(
        in_channels=16,
        out_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 4, 8),
    )


def magvit() -> Any:
    """Make the video autoencoder of EasyAnimate."""
    vae = video.magvit()
    vae.register_to_config(cache_mag_vae=False)  # inpainting asks, as checkpoints say it
    return vae


def longcat() -> Any:
    """Make the transformer of LongCat-Image."""
    return diffusers.LongCatImageTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=16,
        axes_dims_rope=[4, 4, 8],
    )


def any_flow_far() -> Any:
    """Make the transformer of AnyFlow that goes chunk by chunk."""
    config = {name: value for name, value in wan.CONFIG.items() if name != "qk_norm"}
    return diffusers.AnyFlowFARTransformer3DModel(**config)


OVIS = {
    "transformer": ovis,
    "vae": parts.flow_vae,
    "text_encoder": language.qwen3,
    "tokenizer": parts.chat_tokenizer,
    "scheduler": partial(parts.flow_scheduler, use_dynamic_shifting=True),
}
FIBO = {
    "transformer": bria_fibo,
    "vae": wan.vae,
    "text_encoder": partial(parts.decoder_lm, tf.SmolLM3ForCausalLM, tf.SmolLM3Config),
    "tokenizer": parts.chat_tokenizer,
    "scheduler": parts.flow_scheduler,
}
FIBO_SIZED = language.SIZED | language.GUIDED | {"max_sequence_length": 64}
ANY_FLOW = wan.PARTS | {
    "transformer": any_flow,
    "scheduler": diffusers.FlowMapEulerDiscreteScheduler,
}
LONGCAT = OVIS | {
    "transformer": longcat,
    "vae": partial(parts.flow_vae, latent_channels=16),
    "text_encoder": parts.qwen_vl,
    "text_processor": language.TextOnly,
}
HELIOS = wan.PARTS | {
    "transformer": helios,
    "scheduler": partial(diffusers.HeliosScheduler, stages=1),
}
SEEING = partial(language.kandinsky5, visual_cond=True)

ENTRIES: list[Entry] = [
    entry(
        "LTXLatentUpsamplePipeline",
        video.LTX | {"latent_upsampler": latent_upsampler},
        video=videos(9),
        height=32,
        width=32,
    ),
    entry("BriaFiboPipeline", FIBO, **FIBO_SIZED),
    entry(
        "BriaFiboEditPipeline",
        FIBO,
        **FIBO_SIZED | {"prompt": lambda n: json.dumps({"edit_instruction": prompt(n)})},
        image=pictures(),
        _auto_resize=False,
    ),
    entry("HeliosPipeline", HELIOS, **wan.SIZED),
    entry(
        "ZImageControlNetInpaintPipeline",
        language.Z_PARTS | {"controlnet": partial(older.z_controlnet, 33)},
        **language.Z_SIZED,
        image=pictures(),
        mask_image=masks(),
        control_image=pictures(),
    ),
    entry(
        "EasyAnimateInpaintPipeline",
        older.EASY
        | {
            "transformer": partial(video.easy_animate, in_channels=9, text_embed_dim=16),
            "vae": magvit,
        },
        **EASY_SIZED,
        video=VIDEO,
        mask_video=lambda n: (VIDEO(n)[:, :1] > 0.5).float(),
    ),
    entry(
        "Kandinsky5I2VPipeline",
        language.KANDINSKY5 | {"transformer": SEEING},
        **language.SIZED,
        image=pictures(),
        num_frames=21,  # it looks at the fifth latent frame and later ones
        max_sequence_length=512,
    ),
    entry(
        "Kandinsky5I2IPipeline",
        language.KANDINSKY5_IMAGE | {"transformer": SEEING},
        **language.SIZED,
        image=pictures(),
        max_sequence_length=1024,
        output_type="latent",
    ),
    entry(
        "LTX2ConditionPipeline",
        world.LTX2,
        **world.LTX2_SIZED,
        conditions=lambda n: [LTX2VideoCondition(frames=pictures()(n), index=0, crf=0)],
    ),
    entry(
        "LTX2InContextPipeline",
        world.LTX2,
        **world.LTX2_SIZED,
        reference_conditions=lambda n: [LTX2ReferenceCondition(frames=videos(5)(n))],
    ),
    entry("LTXI2VLongMultiPromptPipeline", video.LTX, **video.LTX_SIZED, cond_image=pictures()),
    entry(
        "ChronoEditPipeline",
        wan.PARTS | wan.FROM_IMAGE | {"transformer": chrono_edit},
        **wan.SIZED,
        image=pictures(16),
    ),
    entry("AnyFlowPipeline", ANY_FLOW, **wan.SIZED),
    entry(
        "AnyFlowFARPipeline",
        ANY_FLOW | {"transformer": any_flow_far},
        **wan.SIZED,
        chunk_partition=[1, 2],
    ),
    entry(
        "LTX2HDRPipeline",
        world.LTX2,
        **world.LTX2_SIZED,
        reference_conditions=lambda n: [LTX2HDRReferenceCondition(frames=videos(5)(n))],
    ),
    entry(
        "LongCatImagePipeline",
        LONGCAT,
        **language.SIZED,
        guidance_scale=3.0,
        enable_prompt_rewrite=False,
    ),
    entry("OvisImagePipeline", OVIS, **language.SIZED, guidance_scale=3.0),
    entry(
        "PRXPixelPipeline",
        {
            "transformer": partial(older.prx, in_channels=3),
            "text_encoder": older.t5gemma_encoder,
            "tokenizer": partial(parts.word_tokenizer, 256),
            "scheduler": parts.flow_scheduler,
        },
        **older.SIZED,
        use_resolution_binning=False,
    ),
]
