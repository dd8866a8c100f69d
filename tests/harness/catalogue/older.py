"""More uses of components of other families, and designs of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import WIDTH

from . import kandinsky, language, mmdit, parts, stable, various, video
from .arguments import pictures, prompt, tensors, unit_tensors
from .entry import Entry, entry

SIZED = stable.SIZED | {"num_inference_steps": 3}


def unclip_text_projection() -> Any:
    """Make what turns embeddings into conditions of the UnCLIP decoder."""
    from diffusers.pipelines.deprecated.unclip.text_proj import UnCLIPTextProjModel

    return UnCLIPTextProjModel(
        clip_embeddings_dim=WIDTH, time_embed_dim=128, cross_attention_dim=WIDTH
    )


def super_resolution() -> Any:
    """Make the UNet that enlarges pictures for UnCLIP."""
    return diffusers.UNet2DModel(
        sample_size=64,
        layers_per_block=1,
        down_block_types=("ResnetDownsampleBlock2D", "ResnetDownsampleBlock2D"),
        up_block_types=("ResnetUpsampleBlock2D", "ResnetUpsampleBlock2D"),
        block_out_channels=(32, 64),
        in_channels=6,
        out_channels=3,
    )


UNCLIP = {
    "prior": kandinsky.prior,
    "decoder": partial(
        kandinsky.kandinsky_unet,
        in_channels=3,
        out_channels=6,
        sample_size=16,
        addition_embed_type=None,
        encoder_hid_dim=None,
        encoder_hid_dim_type=None,
        class_embed_type="identity",
    ),
    "text_encoder": partial(parts.clip_long, tf.CLIPTextModelWithProjection),
    "tokenizer": partial(parts.word_tokenizer, 77),
    "text_proj": unclip_text_projection,
    "super_res_first": super_resolution,
    "super_res_last": super_resolution,
    "prior_scheduler": kandinsky.prior_scheduler,
    "decoder_scheduler": partial(
        diffusers.UnCLIPScheduler, variance_type="learned_range", prediction_type="epsilon"
    ),
    "super_res_scheduler": partial(
        diffusers.UnCLIPScheduler, variance_type="fixed_small_log", prediction_type="epsilon"
    ),
    "feature_extractor": parts.clip_processor,
    "image_encoder": parts.clip_vision,
}


def bria() -> Any:
    """Make the transformer of Bria."""
    return diffusers.BriaTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=[0, 4, 4],
    )


def prx(**changes: Any) -> Any:
    """Make the transformer of PRX."""
    config: dict[str, Any] = {
        "in_channels": 4,
        "patch_size": 1,
        "context_in_dim": WIDTH,
        "hidden_size": 8,
        "mlp_ratio": 2.0,
        "num_heads": 2,
        "depth": 2,
        "axes_dim": [2, 2],
    }
    return diffusers.PRXTransformer2DModel(**config | changes)


def t5gemma_encoder() -> Any:
    """Make the text encoder of PRX."""
    sizes = {
        "vocab_size": len(parts.vocabulary()),
        "hidden_size": WIDTH,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "layer_types": ["full_attention", "full_attention"],
    }
    config = tf.T5GemmaConfig(encoder=sizes, decoder=sizes, is_encoder_decoder=False)
    return tf.T5GemmaEncoderModel(config)


def z_controlnet(channels: int = 16) -> Any:
    """Make a ControlNet for Z-Image."""
    names = ("all_patch_size", "all_f_patch_size", "dim", "n_refiner_layers", "n_heads")
    names += ("n_kv_heads", "norm_eps", "qk_norm")
    return diffusers.ZImageControlNetModel(
        control_layers_places=[0, 1],
        control_in_dim=channels,
        **{name: language.Z[name] for name in names},
    )


def latent_upscaler() -> Any:
    """Make the UNet that enlarges latents."""
    return diffusers.UNet2DConditionModel(
        act_fn="gelu",
        attention_head_dim=8,
        norm_num_groups=None,
        block_out_channels=(32, 32, 64, 64),
        time_cond_proj_dim=160,
        conv_in_kernel=1,
        conv_out_kernel=1,
        cross_attention_dim=WIDTH,
        down_block_types=("KDownBlock2D",) + ("KCrossAttnDownBlock2D",) * 3,
        up_block_types=("KCrossAttnUpBlock2D",) * 3 + ("KUpBlock2D",),
        in_channels=8,
        out_channels=5,
        mid_block_type=None,
        only_cross_attention=False,
        resnet_time_scale_shift="scale_shift",
        time_embedding_type="fourier",
        timestep_post_act="gelu",
    )


def depth_estimator() -> Any:
    """Make a model that sees depth."""
    return tf.DPTForDepthEstimation(
        tf.DPTConfig(
            image_size=32,
            patch_size=16,
            num_channels=3,
            hidden_size=32,
            num_hidden_layers=4,
            backbone_out_indices=(0, 1, 2, 3),
            num_attention_heads=4,
            intermediate_size=37,
            is_decoder=False,
            initializer_range=0.02,
            is_hybrid=False,
            neck_hidden_sizes=(16, 32),
        )
    )


EASY = {
    "transformer": partial(video.easy_animate, text_embed_dim=16),
    "vae": video.magvit,
    "text_encoder": parts.qwen_vl,
    "tokenizer": parts.chat_tokenizer,
    "text_encoder_2": None,
    "tokenizer_2": None,
    "scheduler": parts.flow_scheduler,
}

ENTRIES: list[Entry] = [
    entry(
        "UnCLIPPipeline",
        UNCLIP,
        prompt=prompt,
        prior_num_inference_steps=2,
        decoder_num_inference_steps=2,
        super_res_num_inference_steps=2,
    ),
    entry(
        "UnCLIPImageVariationPipeline",
        UNCLIP,
        image=pictures(),
        decoder_num_inference_steps=2,
        super_res_num_inference_steps=2,
    ),
    entry(
        "ShapEImg2ImgPipeline",
        various.SHAP_E
        | {
            "prior": partial(
                various.shap_e_prior, num_embeddings=17, embedding_proj_norm_type="layer"
            ),
            "image_encoder": partial(parts.clip_vision, tf.CLIPVisionModel),
            "image_processor": parts.clip_processor,
        },
        image=pictures(),
        **various.LATENTS,
    ),
    entry(
        "BriaPipeline",
        mmdit.CHROMA_PARTS
        | {"transformer": bria, "vae": partial(parts.vae, shift_factor=0.06, scaling_factor=1.5)},
        **SIZED,
        max_sequence_length=48,
    ),
    entry(
        "PRXPipeline",
        {
            "transformer": prx,
            "vae": parts.flow_vae,
            "text_encoder": t5gemma_encoder,
            "tokenizer": partial(parts.word_tokenizer, 256),
            "scheduler": parts.flow_scheduler,
        },
        **SIZED,
        use_resolution_binning=False,
    ),
    entry(
        "ZImageControlNetPipeline",
        language.Z_PARTS | {"controlnet": z_controlnet},
        **language.Z_SIZED,
        control_image=pictures(),
    ),
    entry(
        "StableDiffusionLatentUpscalePipeline",
        {
            "unet": latent_upscaler,
            "vae": parts.vae8,
            "text_encoder": parts.clip,
            "tokenizer": parts.tokenizer,
            "scheduler": partial(diffusers.EulerDiscreteScheduler, prediction_type="sample"),
        },
        prompt=prompt,
        image=tensors(1, 4, 16, 16),
        num_inference_steps=3,
    ),
    entry(
        "StableDiffusionDepth2ImgPipeline",
        stable.PARTS
        | {
            "unet": partial(stable.unet, in_channels=5),
            "depth_estimator": depth_estimator,
            "feature_extractor": parts.clip_processor,
        },
        **stable.EDIT,
        depth_map=unit_tensors(1, 32, 32),
    ),
    entry(
        "StableDiffusionDiffEditPipeline",
        stable.DDIM | {"inverse_scheduler": diffusers.DDIMInverseScheduler},
        prompt=prompt,
        mask_image=lambda n: (unit_tensors(1, 16, 16)(n) > 0.5).float(),
        image_latents=tensors(1, 2, 4, 16, 16),
        num_inference_steps=2,
        inpaint_strength=1.0,
    ),
    entry("EasyAnimatePipeline", EASY, **SIZED, negative_prompt="old", num_frames=5),
]
