"""Pipelines of their own kind: sound, tokens, three dimensions, and older designs."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import torch
import transformers as tf

from sidestream.workers.models.families_tiny import WIDTH

from . import kandinsky, parts, stable, unconditional
from .arguments import masks, pictures, prompt
from .entry import Entry, entry

# ---------------------------------------------------------------------- sound


def clap() -> Any:
    """Make a text encoder of sounds."""
    return tf.ClapTextModelWithProjection(
        tf.ClapTextConfig(
            hidden_size=WIDTH,
            intermediate_size=37,
            num_attention_heads=4,
            num_hidden_layers=2,
            pad_token_id=parts.PAD_ID,
            vocab_size=len(parts.vocabulary()),
            projection_dim=WIDTH,
            max_position_embeddings=80,
        )
    )


def vocoder() -> Any:
    """Make what turns spectrograms into waveforms, loud ones."""
    model = tf.SpeechT5HifiGan(
        tf.SpeechT5HifiGanConfig(
            model_in_dim=8,
            sampling_rate=16000,
            upsample_initial_channel=16,
            upsample_rates=[2, 2],
            upsample_kernel_sizes=[4, 4],
            resblock_kernel_sizes=[3, 7],
            resblock_dilation_sizes=[[1, 3, 5], [1, 3, 5]],
            normalize_before=False,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
    return model


AUDIO = {
    "unet": partial(
        stable.unet,
        class_embed_type="simple_projection",
        projection_class_embeddings_input_dim=WIDTH,
        class_embeddings_concat=True,
        cross_attention_dim=(4, 8),
        attention_head_dim=4,
    ),
    "vae": partial(parts.vae, in_channels=1, out_channels=1),
    "text_encoder": clap,
    "tokenizer": partial(parts.word_tokenizer, 77),
    "scheduler": stable.ddim,
    "vocoder": vocoder,
}


def stable_audio() -> Any:
    """Make the transformer of Stable Audio."""
    return diffusers.StableAudioDiTModel(
        sample_size=4,
        in_channels=3,
        num_layers=2,
        attention_head_dim=4,
        num_key_value_attention_heads=2,
        out_channels=3,
        cross_attention_dim=4,
        time_proj_dim=8,
        global_states_input_dim=8,
        cross_attention_input_dim=4,
    )


def oobleck() -> Any:
    """Make the autoencoder of Stable Audio."""
    return diffusers.AutoencoderOobleck(
        encoder_hidden_size=6,
        downsampling_ratios=[1, 2],
        decoder_channels=3,
        decoder_input_channels=3,
        audio_channels=2,
        channel_multiples=[2, 4],
        sampling_rate=4,
    )


STABLE_AUDIO = {
    "transformer": stable_audio,
    "vae": oobleck,
    "text_encoder": parts.t5,
    "tokenizer": parts.tokenizer_t5,
    "projection_model": lambda: diffusers.StableAudioProjectionModel(
        text_encoder_dim=WIDTH, conditioning_dim=4, min_value=0, max_value=32
    ),
    "scheduler": partial(diffusers.EDMDPMSolverMultistepScheduler, prediction_type="v_prediction"),
}

# ---------------------------------------------------------------------- tokens


def amused() -> Any:
    """Make the transformer of aMUSEd."""
    return diffusers.UVit2DModel(
        hidden_size=8,
        use_bias=False,
        hidden_dropout=0.0,
        cond_embed_dim=WIDTH,
        micro_cond_encode_dim=2,
        micro_cond_embed_dim=10,
        encoder_hidden_size=WIDTH,
        vocab_size=32,
        codebook_size=8,
        in_channels=8,
        block_out_channels=8,
        num_res_blocks=1,
        downsample=True,
        upsample=True,
        block_num_heads=1,
        num_hidden_layers=1,
        num_attention_heads=1,
        attention_dropout=0.0,
        intermediate_size=8,
    )


AMUSED = {
    "transformer": amused,
    "scheduler": partial(diffusers.AmusedScheduler, mask_token_id=31),
    "vqvae": partial(
        unconditional.vq_vae,
        block_out_channels=(8,),
        down_block_types=("DownEncoderBlock2D",),
        up_block_types=("UpDecoderBlock2D",),
        latent_channels=8,
        norm_num_groups=8,
        num_vq_embeddings=8,
        sample_size=8,
        mid_block_add_attention=False,
        lookup_from_codebook=True,
    ),
    "text_encoder": parts.clip_projected,
    "tokenizer": parts.tokenizer,
}
TOKENS = {"prompt": prompt, "num_inference_steps": 3}

# ---------------------------------------------------------------------- three dimensions


def shap_e_prior(**changes: Any) -> Any:
    """Make the prior of Shap-E."""
    config: dict[str, Any] = {
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "embedding_dim": 32,
        "num_embeddings": 32,
        "embedding_proj_dim": WIDTH,
        "time_embed_dim": 128,
        "num_layers": 1,
        "clip_embed_dim": 64,
        "additional_embeddings": 0,
        "time_embed_act_fn": "gelu",
        "norm_in_type": "layer",
        "encoder_hid_proj_type": None,
        "added_emb_type": None,
    }
    return diffusers.PriorTransformer(**config | changes)


def shap_e_renderer() -> Any:
    """Make what turns latents of Shap-E into pictures."""
    from diffusers.pipelines.shap_e import ShapERenderer

    return ShapERenderer(
        param_shapes=((8, 93), (8, 8), (8, 8), (8, 8)),
        d_latent=32,
        d_hidden=8,
        n_output=12,
        background=(0.1, 0.1, 0.1),
    )


LATENTS = {"num_inference_steps": 2, "frame_size": 8, "output_type": "latent"}
SHAP_E = {
    "prior": shap_e_prior,
    "text_encoder": parts.clip_projected,
    "tokenizer": parts.tokenizer,
    "shap_e_renderer": shap_e_renderer,
    "scheduler": partial(
        diffusers.HeunDiscreteScheduler,
        beta_schedule="exp",
        num_train_timesteps=1024,
        prediction_type="sample",
        use_karras_sigmas=True,
        clip_sample=True,
        clip_sample_range=1.0,
    ),
}

# ---------------------------------------------------------------------- Stable unCLIP, Kandinsky 3


def image_normalizer() -> Any:
    """Make what scales image embeddings."""
    from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import (
        StableUnCLIPImageNormalizer,
    )

    return StableUnCLIPImageNormalizer(embedding_dim=WIDTH)


UNCLIP = stable.PARTS | {
    "unet": partial(
        stable.unet,
        class_embed_type="projection",
        projection_class_embeddings_input_dim=2 * WIDTH,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
    ),
    "prior_tokenizer": partial(parts.word_tokenizer, 77),
    "prior_text_encoder": partial(parts.clip_long, tf.CLIPTextModelWithProjection),
    "prior": kandinsky.prior,
    "prior_scheduler": partial(
        diffusers.DDPMScheduler,
        variance_type="fixed_small_log",
        prediction_type="sample",
        clip_sample=True,
        clip_sample_range=5.0,
        beta_schedule="squaredcos_cap_v2",
    ),
    "image_normalizer": image_normalizer,
    "image_noising_scheduler": partial(diffusers.DDPMScheduler, beta_schedule="squaredcos_cap_v2"),
    "feature_extractor": parts.clip_processor,
    "image_encoder": parts.clip_vision,
    "scheduler": stable.ddim,
}


def kandinsky3() -> Any:
    """Make the UNet of Kandinsky 3."""
    return diffusers.Kandinsky3UNet(
        in_channels=4,
        time_embedding_dim=4,
        groups=2,
        attention_head_dim=4,
        layers_per_block=3,
        block_out_channels=(32, 64),
        cross_attention_dim=4,
        encoder_hid_dim=WIDTH,
    )


KANDINSKY3 = {
    "unet": kandinsky3,
    "scheduler": partial(diffusers.DDPMScheduler, beta_schedule="squaredcos_cap_v2"),
    "movq": kandinsky.movq,
    "text_encoder": parts.t5,
    "tokenizer": partial(parts.word_tokenizer, 128, start=False),
}

ENTRIES: list[Entry] = [
    entry("AudioLDMPipeline", AUDIO, **TOKENS, audio_length_in_s=0.016, output_type="np"),
    entry("StableAudioPipeline", STABLE_AUDIO, **TOKENS),
    entry("AmusedPipeline", AMUSED, **TOKENS, height=16, width=16),
    entry("AmusedImg2ImgPipeline", AMUSED, **TOKENS, image=pictures(16), strength=0.8),
    entry("AmusedInpaintPipeline", AMUSED, **TOKENS, image=pictures(16), mask_image=masks(16)),
    entry(
        "ShapEPipeline",
        SHAP_E,
        prompt=prompt,
        num_inference_steps=2,
        frame_size=8,
        output_type="latent",
    ),
    entry("StableUnCLIPPipeline", UNCLIP, **stable.SIZED, prior_num_inference_steps=2),
    entry("StableUnCLIPImg2ImgPipeline", UNCLIP, **stable.SIZED, image=pictures()),
    entry("Kandinsky3Pipeline", KANDINSKY3, **stable.SIZED),
    entry("Kandinsky3Img2ImgPipeline", KANDINSKY3, **stable.EDIT, strength=0.8),
]
