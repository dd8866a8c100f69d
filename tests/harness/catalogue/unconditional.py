"""Pipelines without a prompt: pictures and sound from noise, by class or from a picture."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers

from . import parts, stable
from .arguments import pictures, prompt, tensors, unit_tensors
from .entry import Entry, entry


def unet(**changes: Any) -> Any:
    """Make a UNet without a condition."""
    config: dict[str, Any] = {
        "block_out_channels": (4, 8),
        "layers_per_block": 1,
        "norm_num_groups": 2,
        "sample_size": 16,
        "in_channels": 3,
        "out_channels": 3,
        "attention_head_dim": 4,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    return diffusers.UNet2DModel(**config | changes)


def vq_vae(**changes: Any) -> Any:
    """Make an autoencoder with a codebook."""
    config: dict[str, Any] = {
        "block_out_channels": (4, 8),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "latent_channels": 3,
        "norm_num_groups": 2,
        "layers_per_block": 1,
        "num_vq_embeddings": 32,
    }
    return diffusers.VQModel(**config | changes)


def ldm_bert() -> Any:
    """Make the text encoder of the first latent diffusion model."""
    from diffusers.pipelines.latent_diffusion.pipeline_latent_diffusion import (
        LDMBertConfig,
        LDMBertModel,
    )

    return LDMBertModel(
        LDMBertConfig(
            vocab_size=200,
            d_model=32,
            encoder_layers=2,
            encoder_ffn_dim=37,
            encoder_attention_heads=4,
            head_dim=8,
            max_position_embeddings=77,
        )
    )


def dance_unet() -> Any:
    """Make a UNet of waveforms."""
    return diffusers.UNet1DModel(
        block_out_channels=(32, 32, 64),
        extra_in_channels=64,
        sample_size=512,
        sample_rate=16_000,
        in_channels=2,
        out_channels=2,
        flip_sin_to_cos=True,
        use_timestep_embedding=False,
        time_embedding_type="fourier",
        mid_block_type="UNetMidBlock1D",
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
    )


def dit() -> Any:
    """Make a transformer that draws a class."""
    return diffusers.DiTTransformer2DModel(
        sample_size=16,
        num_layers=2,
        patch_size=4,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    )


PARTS = {"unet": unet, "scheduler": diffusers.DDIMScheduler}
SHORT = {"num_inference_steps": 4, "output_type": "np"}
MARIGOLD = {
    "unet": partial(stable.unet, in_channels=8),
    "vae": parts.vae,
    "scheduler": stable.ddim,
    "text_encoder": parts.clip,
    "tokenizer": parts.tokenizer,
    "prediction_type": "depth",
    "scale_invariant": True,
    "shift_invariant": True,
    "default_denoising_steps": 2,
    "default_processing_resolution": 32,
}
LOOK = {"image": pictures(), "num_inference_steps": 3, "processing_resolution": 0}

ENTRIES: list[Entry] = [
    entry("DDIMPipeline", PARTS, **SHORT),
    entry("DDPMPipeline", {"unet": unet, "scheduler": diffusers.DDPMScheduler}, **SHORT),
    entry("PNDMPipeline", {"unet": unet, "scheduler": diffusers.PNDMScheduler}, **SHORT),
    entry(
        "ScoreSdeVePipeline",
        {"unet": unet, "scheduler": diffusers.ScoreSdeVeScheduler},
        **SHORT,
    ),
    entry("KarrasVePipeline", {"unet": unet, "scheduler": diffusers.KarrasVeScheduler}, **SHORT),
    entry(
        "RePaintPipeline",
        {"unet": unet, "scheduler": diffusers.RePaintScheduler},
        image=tensors(1, 3, 16, 16),
        mask_image=lambda n: (unit_tensors(1, 1, 16, 16)(n) > 0.5).float(),
        num_inference_steps=4,
        jump_length=2,
        jump_n_sample=2,
        eta=0.0,
        output_type="np",
    ),
    entry(
        "ConsistencyModelPipeline",
        {
            "unet": unet,
            "scheduler": partial(
                diffusers.CMStochasticIterativeScheduler,
                num_train_timesteps=40,
                sigma_min=0.002,
                sigma_max=80.0,
            ),
        },
        num_inference_steps=3,
    ),
    entry(
        "LDMPipeline",
        {"vqvae": vq_vae, "unet": unet, "scheduler": diffusers.DDIMScheduler},
        **SHORT,
    ),
    entry(
        "LDMSuperResolutionPipeline",
        {
            "vqvae": vq_vae,
            "unet": partial(unet, in_channels=6),
            "scheduler": diffusers.DDIMScheduler,
        },
        **SHORT,
        image=pictures(32),
    ),
    entry(
        "LDMTextToImagePipeline",
        {
            "vqvae": parts.vae,
            "bert": ldm_bert,
            "tokenizer": parts.tokenizer,
            "unet": stable.unet,
            "scheduler": stable.ddim,
        },
        prompt=prompt,
        height=32,
        width=32,
        **SHORT,
    ),
    entry(
        "DanceDiffusionPipeline",
        {"unet": dance_unet, "scheduler": diffusers.IPNDMScheduler},
        num_inference_steps=4,
    ),
    entry(
        "DiTPipeline",
        {"transformer": dit, "vae": parts.vae, "scheduler": diffusers.DDIMScheduler},
        class_labels=lambda n: [n + 1],
        **SHORT,
    ),
    entry("MarigoldDepthPipeline", MARIGOLD, **LOOK),
    entry("MarigoldNormalsPipeline", MARIGOLD | {"prediction_type": "normals"}, **LOOK),
    entry(
        "MarigoldIntrinsicsPipeline",
        MARIGOLD
        | {
            "unet": partial(stable.unet, in_channels=12, out_channels=8),
            "prediction_type": "intrinsics",
            "target_properties": {
                "target_names": ["albedo", "shading"],
                "albedo": {"prediction_space": "srgb"},
                "shading": {"prediction_space": "linear"},
            },
        },
        **LOOK,
    ),
]
