"""Tiny pipelines with random weights: stock diffusers classes that run on a CPU in milliseconds.

The shapes are those of diffusers' own fast tests, so each family keeps its real data flow: two
or three text encoders, classifier-free guidance, dynamic shifting, a causal video decoder.
"""

from collections.abc import Callable
from typing import Any

import diffusers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from .tokenizers import END_ID, PAD_ID, START_ID, vocabulary, word_tokenizer
from .wan_chunks import WanChunksPipeline

MAX_TOKENS = 48
WIDTH = 32  # of every text encoder


def tiny_clip(cls: Callable[..., Any] = CLIPTextModel) -> Any:
    """Make a two-layer CLIP text encoder."""
    return cls(
        CLIPTextConfig(
            bos_token_id=START_ID,
            eos_token_id=END_ID,
            pad_token_id=PAD_ID,
            hidden_size=WIDTH,
            intermediate_size=37,
            projection_dim=WIDTH,
            num_attention_heads=4,
            num_hidden_layers=2,
            vocab_size=len(vocabulary()),
            max_position_embeddings=MAX_TOKENS,
        )
    )


def tiny_t5(cls: Callable[..., Any] = T5EncoderModel, config: Any = T5Config) -> Any:
    """Make a two-layer T5 text encoder."""
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
    return cls(config(vocab_size=len(vocabulary()), **sizes))


def tiny_vae(**changes: Any) -> Any:
    """Make an image autoencoder that halves each side once."""
    config: dict[str, Any] = {
        "block_out_channels": (4, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "latent_channels": 4,
        "norm_num_groups": 2,
        "sample_size": 64,
    }
    return diffusers.AutoencoderKL(**config | changes)


def _flow_vae() -> Any:
    return tiny_vae(
        use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5
    )


def _sd15_components(in_channels: int = 4) -> dict[str, Any]:
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=32,
        in_channels=in_channels,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        norm_num_groups=2,
    )
    return {
        "unet": unet,
        "vae": tiny_vae(),
        "text_encoder": tiny_clip(),
        "tokenizer": word_tokenizer(MAX_TOKENS),
        "scheduler": diffusers.DPMSolverMultistepScheduler(steps_offset=1),
        "safety_checker": None,
        "feature_extractor": None,
        "requires_safety_checker": False,
    }


def sd15() -> Any:
    """Make a Stable Diffusion 1.5 pipeline: UNet with cross-attention, one CLIP."""
    return diffusers.StableDiffusionPipeline(**_sd15_components())


def sd15_img2img() -> Any:
    """Make a Stable Diffusion 1.5 pipeline that starts from an image."""
    return diffusers.StableDiffusionImg2ImgPipeline(**_sd15_components())


def sd15_inpaint() -> Any:
    """Make a Stable Diffusion 1.5 pipeline that repaints a masked part of an image."""
    return diffusers.StableDiffusionInpaintPipeline(**_sd15_components(in_channels=9))


def sdxl() -> Any:
    """Make a Stable Diffusion XL pipeline: UNet with size conditioning, two CLIPs."""
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
        cross_attention_dim=2 * WIDTH,
        norm_num_groups=2,
    )
    return diffusers.StableDiffusionXLPipeline(
        unet=unet,
        vae=tiny_vae(scaling_factor=0.13025),
        text_encoder=tiny_clip(),
        text_encoder_2=tiny_clip(CLIPTextModelWithProjection),
        tokenizer=word_tokenizer(MAX_TOKENS),
        tokenizer_2=word_tokenizer(MAX_TOKENS),
        scheduler=diffusers.EulerDiscreteScheduler(),
        add_watermarker=False,
    )


def sd3() -> Any:
    """Make a Stable Diffusion 3 pipeline: MMDiT, two CLIPs and a T5."""
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=32,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=2 * WIDTH,
    )
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        vae=_flow_vae(),
        text_encoder=tiny_clip(CLIPTextModelWithProjection),
        text_encoder_2=tiny_clip(CLIPTextModelWithProjection),
        text_encoder_3=tiny_t5(),
        tokenizer=word_tokenizer(MAX_TOKENS),
        tokenizer_2=word_tokenizer(MAX_TOKENS),
        tokenizer_3=word_tokenizer(MAX_TOKENS, start=False),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


def flux() -> Any:
    """Make a Flux pipeline: double and single stream blocks, embedded guidance, CLIP and T5."""
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(4, 4, 8),
        guidance_embeds=True,
    )
    return diffusers.FluxPipeline(
        transformer=transformer,
        vae=_flow_vae(),
        text_encoder=tiny_clip(),
        text_encoder_2=tiny_t5(),
        tokenizer=word_tokenizer(MAX_TOKENS),
        tokenizer_2=word_tokenizer(MAX_TOKENS, start=False),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    )


def _wan_components() -> dict[str, Any]:
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=32,
        num_layers=2,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=3,
        z_dim=16,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
    return {
        "transformer": transformer,
        "vae": vae,
        "text_encoder": tiny_t5(UMT5EncoderModel, UMT5Config),
        "tokenizer": word_tokenizer(MAX_TOKENS, start=False),
        "scheduler": diffusers.UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
    }


def wan() -> Any:
    """Make a Wan 2.1 text-to-video pipeline: 3D DiT, UMT5, causal video autoencoder."""
    return diffusers.WanPipeline(**_wan_components())


def wan_chunks() -> Any:
    """Make a Wan 2.1 pipeline that tells its video window by window."""
    return WanChunksPipeline(**_wan_components())


_IMAGE = {"height": 64, "width": 64, "num_inference_steps": 4}
_EDIT = {"num_inference_steps": 4}
_VIDEO = _IMAGE | {"height": 32, "width": 32, "max_sequence_length": MAX_TOKENS}

# family -> (builder, arguments that a request gets unless it says otherwise)
FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "sd15": (sd15, _IMAGE),
    "sd15-img2img": (sd15_img2img, _EDIT),
    "sd15-inpaint": (sd15_inpaint, _IMAGE),
    "sdxl": (sdxl, _IMAGE),
    "sd3": (sd3, _IMAGE | {"max_sequence_length": MAX_TOKENS}),
    "flux": (flux, _IMAGE | {"max_sequence_length": MAX_TOKENS}),
    "wan": (wan, _VIDEO | {"num_frames": 9}),
    "wan-chunks": (wan_chunks, _VIDEO | {"num_frames": 13, "chunk_frames": 5}),
}
