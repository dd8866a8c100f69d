"""The shapes model before training: a stock `StableDiffusionPipeline`, tiny; and its saving."""

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKL,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
)
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast

from sidestream.workers.models.shapes.grammar import WORDS

TEXT_LENGTH = 24
TEXT_WIDTH = 128
LATENT_CHANNELS = 8
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}

SLOT_COUNT = 5  # the last tokens, padding after any whole prompt: the encoder's notes on the scene


class SlotHeads(nn.Module):
    """Reads from the slot tokens' embeddings which thing is where; thrown away after training.

    Args:
        sizes: how many classes each attribute has.
    """

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes
        self.linear = nn.Linear(TEXT_WIDTH, sum(sizes))

    def forward(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Map (n, length, width) embeddings to (n, slots, classes) logits of each attribute."""
        return self.linear(embeddings[:, -SLOT_COUNT:]).split(self.sizes, dim=-1)


def build() -> StableDiffusionPipeline:
    """Build the pipeline with random weights, in float32 on the CPU."""
    tokenizer = _tokenizer()
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_WIDTH,
            intermediate_size=2 * TEXT_WIDTH,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=TEXT_LENGTH,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(24, 48, 64, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=128,
        scaling_factor=1.0,  # the weights themselves make latents of unit variance
        mid_block_add_attention=False,
    )
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        down_block_types=("CrossAttnDownBlock2D",) * 2,
        up_block_types=("CrossAttnUpBlock2D",) * 2,
        block_out_channels=(64, 128),
        layers_per_block=1,
        norm_num_groups=16,
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,  # the number of heads, by a historical misnomer
    )
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def scheduler(shift: float = 1.0) -> UniPCMultistepScheduler:
    """Build the sampler: a second-order solver of the straight flow from noise to picture.

    Args:
        shift: values above 1 spend more of the steps at high noise.
    """
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
        solver_order=2,
        steps_offset=1,
    )


def _tokenizer() -> PreTrainedTokenizerFast:
    words = (*SPECIAL.values(), *WORDS)
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex("[^a-z ]+"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[(word, words.index(word)) for word in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=TEXT_LENGTH, **SPECIAL
    )


def save(pipeline: StableDiffusionPipeline, folder: Path) -> None:
    """Write a pipeline in half precision, as every supported library version reads it."""
    pipeline.to(torch.float16)
    pipeline.save_pretrained(folder)
    pipeline.to(torch.float32)
    # Newer transformers drop this prefix and this class name: they read both forms, older ones
    # only these.
    weights = folder / "text_encoder" / "model.safetensors"
    prefixed = {
        "text_model." + name.removeprefix("text_model."): tensor
        for name, tensor in load_file(weights).items()
    }
    save_file(prefixed, weights, metadata={"format": "pt"})
    _edit(folder / "model_index.json", tokenizer=["transformers", "PreTrainedTokenizerFast"])
    _edit(folder / "tokenizer/tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    _edit(folder / "text_encoder/config.json", dtype="float32")  # what it loads as by default


def _edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2) + "\n")
