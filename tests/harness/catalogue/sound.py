"""The newest families that make sound: Stable Audio 3, LongCat-AudioDiT."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
from diffusers.pipelines.stable_audio_3.modeling_stable_audio_3 import StableAudio3DurationEmbedder

from sidestream.workers.models.families_tiny import WIDTH

from . import language, older, parts
from .arguments import prompt, tensors
from .entry import Entry, entry

# ---------------------------------------------------------------------- Stable Audio 3


def same() -> Any:
    """Make the sound autoencoder of Stable Audio 3."""
    return diffusers.AutoencoderSAME(
        audio_channels=2,
        patch_size=4,
        encoder_channels=16,
        encoder_c_mults=[1],
        encoder_strides=[2],
        encoder_transformer_depths=[1],
        latent_dim=8,
        dim_heads=8,
        ff_mult=2,
        sampling_rate=400,
    )


def stable_audio3() -> Any:
    """Make the transformer of Stable Audio 3."""
    return diffusers.StableAudio3DiTModel(
        io_channels=8,
        embed_dim=32,
        depth=2,
        num_heads=4,
        cond_token_dim=WIDTH,
        global_cond_dim=WIDTH,
        local_add_cond_dim=9,
        timestep_features_dim=16,
        num_memory_tokens=2,
    )


STABLE_AUDIO3 = {
    "vae": same,
    "text_encoder": older.t5gemma_encoder,
    "tokenizer": partial(parts.word_tokenizer, 64),
    "duration_embedder": partial(StableAudio3DurationEmbedder, output_dim=WIDTH, fourier_dim=16),
    "transformer": stable_audio3,
    "scheduler": partial(parts.flow_scheduler, stochastic_sampling=True),
}
SOUND = {"prompt": prompt, "duration": 1.0, "num_inference_steps": 3}

# ---------------------------------------------------------------------- LongCat-AudioDiT


def longcat_audio() -> Any:
    """Make the transformer of LongCat-AudioDiT."""
    return diffusers.LongCatAudioDiTTransformer(
        dit_dim=32, dit_depth=2, dit_heads=2, dit_text_dim=WIDTH, latent_dim=8, ff_mult=2.0
    )


def longcat_audio_vae() -> Any:
    """Make the sound autoencoder of LongCat-AudioDiT."""
    return diffusers.LongCatAudioDiTVae(
        channels=8,
        c_mults=[1, 2],
        strides=[2],
        latent_dim=8,
        encoder_latent_dim=16,
        downsampling_ratio=2,
        sample_rate=100,
    )


LONGCAT_AUDIO = {
    "vae": longcat_audio_vae,
    "text_encoder": parts.umt5,
    "tokenizer": parts.tokenizer_t5,
    "transformer": longcat_audio,
    "scheduler": partial(parts.flow_scheduler, invert_sigmas=True),
}


ENTRIES: list[Entry] = [
    entry(
        "LongCatAudioDiTPipeline",
        LONGCAT_AUDIO,
        prompt=prompt,
        num_inference_steps=3,
        audio_duration_s=0.5,
    ),
    entry("StableAudio3Pipeline", STABLE_AUDIO3, **SOUND, **language.GUIDED, guidance_scale=3.0),
    entry(
        "StableAudio3AudioToAudioPipeline",
        STABLE_AUDIO3,
        **SOUND,
        audio=tensors(1, 2, 400),
        init_noise_level=0.7,
    ),
    entry(
        "StableAudio3InpaintPipeline",
        STABLE_AUDIO3,
        **SOUND,
        audio=tensors(1, 2, 400),
        mask_start_seconds=0.2,
        mask_end_seconds=0.6,
    ),
]
