"""Pipelines whose prompts are read by a large language model: Qwen-Image, Z-Image, Flux 2, ..."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf

from sidestream.workers.models.families_tiny import WIDTH

from . import dits, mmdit, parts, stable, video, wan
from .arguments import masks, pictures, tensors
from .entry import Entry, entry

SIZED = stable.SIZED | {"num_inference_steps": 3}
REPAINT = {"image": pictures(), "mask_image": masks()}
GUIDED = {"negative_prompt": "old"}

# ---------------------------------------------------------------------- Qwen-Image

QWEN: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 16,
    "out_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 3,
    "joint_attention_dim": 16,
    "guidance_embeds": False,
    "axes_dims_rope": (8, 4, 4),
}


def qwen_vae() -> Any:
    """Make the autoencoder of Qwen-Image."""
    return diffusers.AutoencoderKLQwenImage(
        base_dim=24,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )


def qwen_controlnet(**changes: Any) -> Any:
    """Make a ControlNet for Qwen-Image."""
    config = {name: value for name, value in QWEN.items() if name != "guidance_embeds"}
    return diffusers.QwenImageControlNetModel(**config | {"num_layers": 1} | changes)


QWEN_PARTS = {
    "transformer": lambda: diffusers.QwenImageTransformer2DModel(**QWEN),
    "vae": qwen_vae,
    "text_encoder": parts.qwen_vl,
    "tokenizer": parts.chat_tokenizer,
    "scheduler": parts.flow_scheduler,
    "controlnet": qwen_controlnet,
}
QWEN_SIZED = SIZED | GUIDED | {"true_cfg_scale": 2.0, "max_sequence_length": 64}

# ---------------------------------------------------------------------- Z-Image

Z: dict[str, Any] = {
    "all_patch_size": (2,),
    "all_f_patch_size": (1,),
    "in_channels": 16,
    "dim": 32,
    "n_layers": 2,
    "n_refiner_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 2,
    "norm_eps": 1e-5,
    "qk_norm": True,
    "cap_feat_dim": 32,
    "rope_theta": 256.0,
    "t_scale": 1000.0,
    "axes_dims": [8, 4, 4],
    "axes_lens": [512, 32, 32],
}
qwen3 = partial(parts.decoder_lm, tf.Qwen3Model, tf.Qwen3Config)
qwen3_causal = partial(parts.decoder_lm, tf.Qwen3ForCausalLM, tf.Qwen3Config)
Z_PARTS = {
    "transformer": lambda: diffusers.ZImageTransformer2DModel(**Z),
    "vae": partial(parts.flow_vae, latent_channels=16),
    "text_encoder": qwen3,
    "tokenizer": parts.chat_tokenizer,
    "scheduler": parts.flow_scheduler,
}
Z_SIZED = SIZED | {"guidance_scale": 3.0, "max_sequence_length": 64}

# ---------------------------------------------------------------------- Flux 2


def flux2() -> Any:
    """Make the transformer of Flux 2."""
    return diffusers.Flux2Transformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        timestep_guidance_channels=256,
        axes_dims_rope=[4, 4, 4, 4],
    )


def flux2_vae() -> Any:
    """Make the autoencoder of Flux 2."""
    return diffusers.AutoencoderKLFlux2(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=2,
        sample_size=32,
    )


FLUX2 = {
    "transformer": flux2,
    "vae": flux2_vae,
    "text_encoder": qwen3_causal,
    "tokenizer": parts.chat_tokenizer,
    "scheduler": parts.flow_scheduler,
    "is_distilled": False,
}
FLUX2_KV = SIZED | {"max_sequence_length": 64, "text_encoder_out_layers": (1,)}
EMBEDDED = {"prompt": None, "prompt_embeds": tensors(1, 8, WIDTH)}
FLUX2_SIZED = FLUX2_KV | {"guidance_scale": 4.0}

# ---------------------------------------------------------------------- Kandinsky 5


def kandinsky5(**changes: Any) -> Any:
    """Make the transformer of Kandinsky 5."""
    config: dict[str, Any] = {
        "in_visual_dim": 4,
        "in_text_dim": 16,
        "in_text_dim2": WIDTH,
        "time_dim": 32,
        "out_visual_dim": 4,
        "patch_size": (1, 2, 2),
        "model_dim": 48,
        "ff_dim": 128,
        "num_text_blocks": 1,
        "num_visual_blocks": 1,
        "axes_dims": (8, 8, 8),
        "visual_cond": False,
    }
    return diffusers.Kandinsky5Transformer3DModel(**config | changes)


class TextOnly:
    """What some pipelines call a processor, for texts alone."""

    def __init__(self) -> None:
        self.tokenizer = parts.chat_tokenizer()

    def __call__(self, text: Any, images: Any = None, videos: Any = None, **options: Any) -> Any:
        """Tokenize texts."""
        return self.tokenizer(text, **options)

    def decode(self, *args: Any, **options: Any) -> str:
        """Turn tokens into text."""
        return self.tokenizer.decode(*args, **options)

    batch_decode = decode


KANDINSKY5 = {
    "transformer": kandinsky5,
    "vae": video.hunyuan_vae,
    "text_encoder": parts.qwen_vl,
    "tokenizer": TextOnly,
    "text_encoder_2": parts.clip_long,
    "tokenizer_2": partial(parts.word_tokenizer, 77),
    "scheduler": partial(parts.flow_scheduler, shift=7.0),
}
KANDINSKY5_IMAGE = KANDINSKY5 | {"vae": parts.vae8}

# ---------------------------------------------------------------------- HiDream


def hidream() -> Any:
    """Make the transformer of HiDream."""
    return diffusers.HiDreamImageTransformer2DModel(
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_channels=[WIDTH, WIDTH],
        text_emb_dim=2 * WIDTH,
        num_routed_experts=4,
        num_activated_experts=2,
        axes_dims_rope=(4, 2, 2),
        max_resolution=(32, 32),
        llama_layers=(0, 1),
    )


HIDREAM = mmdit.SD3_PARTS | {
    "transformer": hidream,
    "text_encoder_4": partial(parts.decoder_lm, tf.LlamaForCausalLM, tf.LlamaConfig),
    "tokenizer_4": parts.tokenizer_long,
}

# ---------------------------------------------------------------------- Sana-Video, Bria, PRX


def sana_video() -> Any:
    """Make the transformer of Sana-Video."""
    return diffusers.SanaVideoTransformer3DModel(
        in_channels=16,
        out_channels=16,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=12,
        cross_attention_dim=24,
        caption_channels=WIDTH,
        sample_size=8,
        patch_size=(1, 2, 2),
        norm_elementwise_affine=False,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )


ENTRIES: list[Entry] = [
    entry("QwenImagePipeline", QWEN_PARTS, **QWEN_SIZED),
    entry("QwenImageImg2ImgPipeline", QWEN_PARTS, **QWEN_SIZED, image=pictures()),
    entry(
        "QwenImageInpaintPipeline", QWEN_PARTS, **QWEN_SIZED, image=pictures(), mask_image=masks()
    ),
    entry("QwenImageControlNetPipeline", QWEN_PARTS, **QWEN_SIZED, control_image=pictures()),
    entry(
        "QwenImageControlNetInpaintPipeline",
        QWEN_PARTS | {"controlnet": partial(qwen_controlnet, extra_condition_channels=4)},
        **QWEN_SIZED,
        control_image=pictures(),
        control_mask=masks(),
    ),
    entry("ZImagePipeline", Z_PARTS, **Z_SIZED),
    entry("ZImageImg2ImgPipeline", Z_PARTS, **Z_SIZED, image=pictures()),
    entry("ZImageInpaintPipeline", Z_PARTS, **Z_SIZED, image=pictures(), mask_image=masks()),
    entry("Flux2KleinPipeline", FLUX2, **FLUX2_SIZED),
    entry("Flux2KleinInpaintPipeline", FLUX2, **FLUX2_SIZED, **REPAINT),
    entry("Flux2KleinKVPipeline", FLUX2, **FLUX2_KV, image=pictures(64)),
    entry(
        "Flux2Pipeline", FLUX2, **FLUX2_SIZED | {"prompt": None}, prompt_embeds=tensors(1, 8, WIDTH)
    ),
    entry("Kandinsky5T2VPipeline", KANDINSKY5, **SIZED, num_frames=5, max_sequence_length=512),
    entry(
        "Kandinsky5T2IPipeline",
        KANDINSKY5_IMAGE,
        **SIZED,
        max_sequence_length=1024,
        output_type="latent",
    ),
    entry(
        "HiDreamImagePipeline",
        HIDREAM,
        **SIZED | {"num_inference_steps": 2},
        max_sequence_length=48,
    ),
    entry(
        "SanaVideoPipeline",
        {
            "transformer": sana_video,
            "vae": wan.vae,
            "text_encoder": dits.gemma2,
            "tokenizer": parts.tokenizer_long,
            "scheduler": diffusers.DPMSolverMultistepScheduler,
        },
        **SIZED,
        frames=9,
        complex_human_instruction=[],
        use_resolution_binning=False,
        max_sequence_length=64,
    ),
    entry(
        "SanaImageToVideoPipeline",
        {
            "transformer": sana_video,
            "vae": wan.vae,
            "text_encoder": dits.gemma2,
            "tokenizer": parts.tokenizer_long,
            "scheduler": parts.flow_scheduler,
        },
        **SIZED,
        image=pictures(),
        frames=9,
        complex_human_instruction=[],
        use_resolution_binning=False,
        max_sequence_length=64,
    ),
]
