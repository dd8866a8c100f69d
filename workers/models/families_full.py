"""Full-size pipelines with random weights, built straight on the device: for measurements.

Every module has the architecture of its release, text encoders included (CLIP-L, OpenCLIP-bigG,
T5-XXL, UMT5-XXL), so a request costs what it costs in production; only the pictures are noise.
The numbers come from the ``config.json`` files of the releases named in each builder. Tokenizers
are the small ones of `tokenizers`, which does not change the cost: prompts are padded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import diffusers
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

from .tokenizers import END_ID, PAD_ID, START_ID, word_tokenizer

CLIP_TOKENS = 77
T5_TOKENS = 512


@contextmanager
def creating(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Create modules within this context on ``device``, with weights of ``dtype``."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(previous)


def scheduler(cls: Callable[..., Any], **config: Any) -> Any:
    """Make a scheduler; its tables stay on the CPU in full precision, wherever the modules go."""
    with creating(torch.device("cpu"), torch.float32):
        return cls(**config)


def clip_l(cls: Callable[..., Any] = CLIPTextModel) -> Any:
    """Make the text encoder of CLIP ViT-L/14 (123 million parameters)."""
    return _clip(cls, 768, 12, 3072, heads=12, activation="quick_gelu")


def clip_big_g() -> Any:
    """Make the text encoder of OpenCLIP ViT-bigG/14 (695 million parameters)."""
    return _clip(CLIPTextModelWithProjection, 1280, 32, 5120, heads=20, activation="gelu")


def _clip(
    cls: Callable[..., Any], width: int, layers: int, hidden: int, *, heads: int, activation: str
) -> Any:
    return cls(
        CLIPTextConfig(
            bos_token_id=START_ID,
            eos_token_id=END_ID,
            pad_token_id=PAD_ID,
            hidden_size=width,
            projection_dim=width,
            num_hidden_layers=layers,
            intermediate_size=hidden,
            num_attention_heads=heads,
            hidden_act=activation,
            vocab_size=49408,
            max_position_embeddings=CLIP_TOKENS,
        )
    )


def t5_xxl() -> Any:
    """Make the encoder of T5 v1.1 XXL (4.8 billion parameters)."""
    return T5EncoderModel(T5Config(vocab_size=32128, **_XXL))


def umt5_xxl() -> Any:
    """Make the encoder of UMT5 XXL (5.7 billion parameters)."""
    return UMT5EncoderModel(UMT5Config(vocab_size=256384, **_XXL))


_XXL: dict[str, Any] = {
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}


def vae(latent_channels: int, **config: Any) -> Any:
    """Make the image autoencoder of Stable Diffusion and Flux, which halves each side 3 times."""
    return diffusers.AutoencoderKL(
        latent_channels=latent_channels,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(128, 256, 512, 512),
        layers_per_block=2,
        force_upcast=False,
        **config,
    )


def _flow_vae(scale: float, shift: float) -> Any:
    return vae(
        16,
        sample_size=1024,
        scaling_factor=scale,
        shift_factor=shift,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def sd15() -> Any:
    """Make Stable Diffusion 1.5: a UNet of 0.86 billion parameters, 512x512."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=64,
        block_out_channels=(320, 640, 1280, 1280),
        attention_head_dim=8,
        cross_attention_dim=768,
    )
    return diffusers.StableDiffusionPipeline(
        unet=unet,
        vae=vae(4, sample_size=512),
        text_encoder=clip_l(),
        tokenizer=word_tokenizer(CLIP_TOKENS),
        scheduler=scheduler(diffusers.DPMSolverMultistepScheduler, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def sdxl() -> Any:
    """Make Stable Diffusion XL base 1.0: a UNet of 2.6 billion parameters, 1024x1024."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=128,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(320, 640, 1280),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )
    return diffusers.StableDiffusionXLPipeline(
        unet=unet,
        vae=vae(4, sample_size=1024, scaling_factor=0.13025),
        text_encoder=clip_l(),
        text_encoder_2=clip_big_g(),
        tokenizer=word_tokenizer(CLIP_TOKENS),
        tokenizer_2=word_tokenizer(CLIP_TOKENS),
        scheduler=scheduler(diffusers.EulerDiscreteScheduler),
        add_watermarker=False,
    )


def sd3() -> Any:
    """Make Stable Diffusion 3 medium: an MMDiT of 2 billion parameters, 1024x1024."""
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=128,
        patch_size=2,
        in_channels=16,
        out_channels=16,
        num_layers=24,
        attention_head_dim=64,
        num_attention_heads=24,
        joint_attention_dim=4096,
        caption_projection_dim=1536,
        pooled_projection_dim=2048,
        pos_embed_max_size=192,
    )
    return diffusers.StableDiffusion3Pipeline(
        transformer=transformer,
        vae=_flow_vae(1.5305, 0.0609),
        text_encoder=clip_l(CLIPTextModelWithProjection),
        text_encoder_2=clip_big_g(),
        text_encoder_3=t5_xxl(),
        tokenizer=word_tokenizer(CLIP_TOKENS),
        tokenizer_2=word_tokenizer(CLIP_TOKENS),
        tokenizer_3=word_tokenizer(T5_TOKENS, start=False),
        scheduler=scheduler(diffusers.FlowMatchEulerDiscreteScheduler, shift=3.0),
    )


def flux() -> Any:
    """Make Flux.1 schnell: a transformer of 12 billion parameters, 1024x1024 in 4 steps."""
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=64,
        num_layers=19,
        num_single_layers=38,
        attention_head_dim=128,
        num_attention_heads=24,
        joint_attention_dim=4096,
        pooled_projection_dim=768,
        guidance_embeds=False,
    )
    return diffusers.FluxPipeline(
        transformer=transformer,
        vae=_flow_vae(0.3611, 0.1159),
        text_encoder=clip_l(),
        text_encoder_2=t5_xxl(),
        tokenizer=word_tokenizer(CLIP_TOKENS),
        tokenizer_2=word_tokenizer(T5_TOKENS, start=False),
        scheduler=scheduler(diffusers.FlowMatchEulerDiscreteScheduler, shift=1.0),
    )


def wan() -> Any:
    """Make Wan 2.1 T2V 1.3B: a video transformer, 81 frames of 832x480."""
    transformer = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=12,
        attention_head_dim=128,
        in_channels=16,
        out_channels=16,
        text_dim=4096,
        freq_dim=256,
        ffn_dim=8960,
        num_layers=30,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=1024,
    )
    return diffusers.WanPipeline(
        transformer=transformer,
        vae=diffusers.AutoencoderKLWan(),
        text_encoder=umt5_xxl(),
        tokenizer=word_tokenizer(T5_TOKENS, start=False),
        scheduler=scheduler(
            diffusers.UniPCMultistepScheduler,
            prediction_type="flow_prediction",
            use_flow_sigmas=True,
            flow_shift=3.0,
        ),
    )


# family -> (builder, arguments that a request gets unless it says otherwise)
FAMILIES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "sd15-full": (sd15, {}),
    "sdxl-full": (sdxl, {}),
    "sd3-full": (sd3, {}),
    "flux-full": (flux, {"num_inference_steps": 4, "guidance_scale": 0.0}),
    "wan-full": (wan, {}),
}
