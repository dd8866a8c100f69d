"""Pipelines that look at pictures by a language model: Qwen-Image-Edit, JoyImage, VisualCloze."""

from __future__ import annotations

from functools import partial
from typing import Any

import diffusers
import transformers as tf
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder

from sidestream.workers.models.tokenizers import UNKNOWN_ID

from . import language, mmdit, newer, parts, wan
from .arguments import masks, pictures, prompt
from .entry import Entry, entry

IMAGE_ID = 10
"""The token that stands for a patch of a picture; texts do not have it."""

PLACEHOLDER = "<|image_pad|>"


class Seeing(newer.ChatProcessor):
    """A processor for texts with pictures: a token for every patch, where the placeholder is."""

    def __init__(self, patch: int = 14) -> None:
        super().__init__()
        self.apply_chat_template = self._conversation
        view = 16 * patch * patch
        self.image_processor = tf.Qwen2VLImageProcessorPil(
            min_pixels=view, max_pixels=view, patch_size=patch
        )

    def __call__(self, text: Any, images: Any = None, videos: Any = None, **options: Any) -> Any:
        """Tokenize texts, and cut pictures into patches."""
        texts = [text] if isinstance(text, str) else text
        seen = {} if images is None else dict(self.image_processor(images, return_tensors="pt"))
        patches = [int(grid.prod()) // 4 for grid in seen.get("image_grid_thw", ())]
        ids = [self._tokens(one, patches) for one in texts]
        options = {
            name: value for name, value in options.items() if name in ("padding", "return_tensors")
        }
        tokens = self.tokenizer.pad({"input_ids": ids}, **options)
        kinds = (tokens["input_ids"] == IMAGE_ID).long()
        return tf.BatchFeature({**tokens, "mm_token_type_ids": kinds, **seen})

    def _conversation(self, messages: Any, *, tokenize: bool = True, **options: Any) -> Any:
        made = self.tokenizer.apply_chat_template(messages, tokenize=tokenize, **options)
        return [made] if tokenize else made

    def _tokens(self, text: str, patches: list[int]) -> list[int]:
        first, *further = (
            [
                UNKNOWN_ID if i == IMAGE_ID else i
                for i in self.tokenizer.encode(piece, add_special_tokens=False)
            ]
            for piece in text.split(PLACEHOLDER)
        )
        for count, piece in zip(patches, further, strict=True):
            first = [*first, *[IMAGE_ID] * count, *piece]
        return first


# ---------------------------------------------------------------------- Qwen-Image-Edit


def large_vae() -> Any:
    """Make an autoencoder for pictures of a million pixels, which these insist on."""
    return diffusers.AutoencoderKLQwenImage(
        base_dim=2,
        z_dim=4,
        dim_mult=[1] * 6,
        num_res_blocks=1,
        temperal_downsample=[False] * 5,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )


EDIT = language.QWEN_PARTS | {"vae": large_vae, "processor": Seeing}
EDIT_SIZED = {
    "prompt": prompt,
    "negative_prompt": "old",
    "num_inference_steps": 2,
    "true_cfg_scale": 2.0,
}
EDIT_SMALL = EDIT_SIZED | {"height": 64, "width": 64}
LAYERED = EDIT | {
    "transformer": lambda: diffusers.QwenImageTransformer2DModel(
        **language.QWEN | {"use_layer3d_rope": True, "use_additional_t_cond": True}
    ),
}

# ---------------------------------------------------------------------- JoyImage, Qwen-Image 2.1


def joy() -> Any:
    """Make the transformer of JoyImage."""
    return diffusers.JoyImageEditPlusTransformer3DModel(
        in_channels=16,
        hidden_size=32,
        num_attention_heads=2,
        text_dim=16,
        mlp_width_ratio=2.0,
        num_layers=2,
        rope_dim_list=[4, 6, 6],
    )


JOY = {
    "scheduler": parts.flow_scheduler,
    "vae": wan.vae,
    "text_encoder": newer.qwen3_vl,
    "tokenizer": newer.chat_tokenizer,
    "processor": partial(Seeing, 16),
    "transformer": joy,
}


def qwen21() -> Any:
    """Make the transformer of Qwen-Image 2.1, which keeps what it made of the condition."""
    return diffusers.QwenImage21Transformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        context_in_dim=16,
        axes_dims_rope=(4, 6, 6),
    )


def qwen21_vae() -> Any:
    """Make the autoencoder of Qwen-Image 2.1, for pictures with transparency."""
    return diffusers.AutoencoderKLQwenImage21(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=4,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )


QWEN21 = {
    "scheduler": parts.flow_scheduler,
    "vae": qwen21_vae,
    "text_encoder": newer.qwen3_vl,
    "processor": partial(Seeing, 16),
    "transformer": qwen21,
}

# ---------------------------------------------------------------------- VisualCloze, Redux

CLOZE = mmdit.FLUX_PARTS | {
    "transformer": partial(mmdit.flux, in_channels=48, out_channels=16),
    "resolution": 32,
}
GRID = {
    "task_prompt": "a photo and a drawing",
    "content_prompt": prompt,
    "image": lambda n: [[pictures()(n), pictures()(n + 5)], [pictures()(n + 9), None]],
}


def redux() -> Any:
    """Make what turns an image's embedding into a prompt's."""
    return ReduxImageEncoder(redux_dim=16, txt_in_features=4096)


REDUX = {
    "image_encoder": newer.siglip,
    "feature_extractor": newer.siglip_processor,
    "image_embedder": redux,
    "text_encoder": None,
}

ENTRIES: list[Entry] = [
    entry("QwenImageEditPipeline", EDIT, **EDIT_SMALL, image=pictures(64)),
    entry("QwenImageEditPlusPipeline", EDIT, **EDIT_SMALL, image=lambda n: [pictures(64)(n)]),
    entry(
        "QwenImageEditInpaintPipeline",
        EDIT,
        **EDIT_SMALL | {"num_inference_steps": 4},
        image=pictures(64),
        mask_image=masks(64),
        output_type="latent",
    ),
    entry(
        "QwenImageLayeredPipeline",
        LAYERED,
        **EDIT_SIZED,
        image=pictures(64),
        layers=2,
        resolution=640,
    ),
    entry("JoyImageEditPlusPipeline", JOY, **language.SIZED, **language.GUIDED),
    entry("QwenImage21Pipeline", QWEN21, **language.SIZED, **language.GUIDED, true_cfg_scale=2.0),
    entry(
        "VisualClozeGenerationPipeline",
        CLOZE,
        **GRID,
        num_inference_steps=2,
        max_sequence_length=32,
    ),
    entry(
        "VisualClozePipeline",
        CLOZE,
        **GRID,
        num_inference_steps=2,
        max_sequence_length=32,
        upsampling_height=32,
        upsampling_width=32,
        upsampling_strength=0.7,
    ),
    entry("FluxPriorReduxPipeline", REDUX, image=pictures()),
]
