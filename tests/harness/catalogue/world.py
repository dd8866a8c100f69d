"""Cosmos and LTX 2: videos with a check of their contents, and videos with sound."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import torch
import transformers as tf
from torch import nn

from sidestream.workers.models.families_tiny import WIDTH

from . import parts, wan
from .arguments import pictures, prompt
from .entry import Entry, entry

SHORT = {"prompt": prompt, "num_inference_steps": 3, "height": 32, "width": 32, "num_frames": 9}

# ---------------------------------------------------------------------- Cosmos


class Guardrail(nn.Module):
    """Finds nothing wrong with any text or video."""

    device = torch.device("cpu")
    dtype = torch.float32

    def check_text_safety(self, text: str) -> bool:
        """Say that a text is harmless."""
        return True

    def check_video_safety(self, video: Any) -> Any:
        """Return a video as it is."""
        return video


def cosmos(**changes: Any) -> Any:
    """Make the transformer of Cosmos."""
    config: dict[str, Any] = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "num_layers": 2,
        "mlp_ratio": 2,
        "text_embed_dim": WIDTH,
        "adaln_lora_dim": 4,
        "max_size": (4, 32, 32),
        "patch_size": (1, 2, 2),
        "rope_scale": (2.0, 1.0, 1.0),
        "concat_padding_mask": True,
        "extra_pos_embed_type": "learnable",
    }
    return diffusers.CosmosTransformer3DModel(**config | changes)


def cosmos_vae() -> Any:
    """Make the video autoencoder of the first Cosmos."""
    return diffusers.AutoencoderKLCosmos(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        encoder_block_out_channels=(8, 8, 8, 8),
        decode_block_out_channels=(8, 8, 8, 8),
        attention_resolutions=(8,),
        resolution=64,
        num_layers=2,
        patch_size=4,
        patch_type="haar",
        scaling_factor=1.0,
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
    )


COSMOS = {
    "transformer": cosmos,
    "vae": cosmos_vae,
    "text_encoder": parts.t5,
    "tokenizer": parts.tokenizer_t5,
    "scheduler": partial(
        diffusers.EDMEulerScheduler,
        sigma_min=0.002,
        sigma_max=80,
        sigma_data=0.5,
        sigma_schedule="karras",
        prediction_type="epsilon",
        final_sigmas_type="sigma_min",
    ),
    "safety_checker": Guardrail,
}
COSMOS2 = COSMOS | {
    "transformer": partial(cosmos, in_channels=16, out_channels=16),
    "vae": wan.vae,
    "scheduler": partial(parts.flow_scheduler, use_karras_sigmas=True),
}
COSMOS_SIZED = SHORT | {"max_sequence_length": 48}

# ---------------------------------------------------------------------- LTX 2


def gemma3() -> Any:
    """Make the language model that reads prompts for LTX 2."""
    text = {
        "vocab_size": len(parts.vocabulary()),
        "hidden_size": WIDTH,
        "intermediate_size": 37,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 1024,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = tf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    return tf.Gemma3ForConditionalGeneration(config)


def ltx2() -> Any:
    """Make the transformer of LTX 2, which makes sound beside the video."""
    return diffusers.LTX2VideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        patch_size=1,
        patch_size_t=1,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        num_layers=2,
        qk_norm="rms_norm_across_heads",
        caption_channels=WIDTH,
        rope_double_precision=False,
        rope_type="split",
    )


def connectors() -> Any:
    """Make what leads from the language model to the transformer."""
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    return LTX2TextConnectors(
        caption_channels=WIDTH,
        text_proj_in_factor=3,
        video_connector_num_attention_heads=4,
        video_connector_attention_head_dim=8,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=None,
        audio_connector_num_attention_heads=4,
        audio_connector_attention_head_dim=8,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None,
        connector_rope_base_seq_len=32,
        rope_theta=10000.0,
        rope_double_precision=False,
        causal_temporal_positioning=False,
        rope_type="split",
    )


def ltx2_vae() -> Any:
    """Make the video autoencoder of LTX 2."""
    vae = diffusers.AutoencoderKLLTX2Video(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(8,),
        decoder_block_out_channels=(8,),
        layers_per_block=(1,),
        decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False),
        downsample_type=("spatial",),
        upsample_residual=(False,),
        upsample_factor=(1,),
        timestep_conditioning=False,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    )
    vae.use_framewise_encoding = vae.use_framewise_decoding = False
    return vae


def ltx2_audio_vae() -> Any:
    """Make the sound autoencoder of LTX 2."""
    return diffusers.AutoencoderKLLTX2Audio(
        base_channels=4,
        output_channels=2,
        ch_mult=(1,),
        num_res_blocks=1,
        attn_resolutions=None,
        in_channels=2,
        resolution=32,
        latent_channels=2,
        norm_type="pixel",
        causality_axis="height",
        dropout=0.0,
        mid_block_add_attention=False,
        sample_rate=16000,
        mel_hop_length=160,
        is_causal=True,
        mel_bins=8,
    )


def ltx2_vocoder() -> Any:
    """Make what turns spectrograms into sound."""
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

    return LTX2Vocoder(
        in_channels=16,
        hidden_channels=32,
        out_channels=2,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
        leaky_relu_negative_slope=0.1,
        output_sampling_rate=16000,
    )


LTX2 = {
    "transformer": ltx2,
    "vae": ltx2_vae,
    "audio_vae": ltx2_audio_vae,
    "text_encoder": gemma3,
    "tokenizer": parts.tokenizer_long,
    "connectors": connectors,
    "vocoder": ltx2_vocoder,
    "scheduler": parts.flow_scheduler,
    "processor": None,
    "prompt_enhancer": None,
    "duration_head": None,
}
LTX2_SIZED = SHORT | {
    "num_frames": 5,
    "frame_rate": 25.0,
    "guidance_scale": 3.0,
    "max_sequence_length": 48,
    "use_cross_timestep": False,
    "spatio_temporal_guidance_blocks": [1],
}

ENTRIES: list[Entry] = [
    entry("CosmosTextToWorldPipeline", COSMOS, **COSMOS_SIZED),
    entry(
        "CosmosVideoToWorldPipeline",
        COSMOS | {"transformer": partial(cosmos, in_channels=5)},
        **COSMOS_SIZED,
        image=pictures(),
    ),
    entry(
        "Cosmos2TextToImagePipeline",
        COSMOS2,
        **{name: value for name, value in COSMOS_SIZED.items() if name != "num_frames"},
    ),
    entry(
        "Cosmos2VideoToWorldPipeline",
        COSMOS2 | {"transformer": partial(cosmos, in_channels=17, out_channels=16)},
        **COSMOS_SIZED,
        image=pictures(),
    ),
    entry("LTX2Pipeline", LTX2, **LTX2_SIZED),
    entry("LTX2ImageToVideoPipeline", LTX2, **LTX2_SIZED, image=pictures(), image_crf=0),
]
