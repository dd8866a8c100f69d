"""Files of adapters (LoRA) for tiny pipelines, as those who train them save them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model

from sidestream.workers.models import load_pipeline

TARGETS = {
    "unet": ["to_q", "to_k", "to_v", "to_out.0"],
    "transformer": ["to_q", "to_k", "to_v"],
    "text_encoder": ["q_proj", "v_proj"],
    "text_encoder_2": ["q_proj", "v_proj"],
}
PARTS = {
    "sd15": ("unet", "text_encoder"),
    "sd15-img2img": ("unet",),
    "sdxl": ("unet", "text_encoder", "text_encoder_2"),
    "flux": ("transformer", "text_encoder"),
    "wan": ("transformer",),
}
"""Which components of a family the adapters are for."""


def save_adapters(family: str, directory: Path, names: Sequence[str]) -> dict[str, str]:
    """Write one random adapter for each name.

    Args:
      family: of ``random:FAMILY``.
      directory: gets a folder for each.
      names: each adapter is another one.

    Returns:
      The setting `lora` of an engine.
    """
    for seed, name in enumerate(names):
        pipeline = load(family)
        layers: dict[str, Any] = {}
        for part in PARTS[family]:
            module = getattr(pipeline, part)
            config = LoraConfig(
                r=2 + seed, lora_alpha=5, target_modules=TARGETS[part], init_lora_weights=False
            )
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                inject_adapter_in_model(config, module, name)
            layers[f"{part}_lora_layers"] = get_peft_model_state_dict(module, adapter_name=name)
            layers[f"{part}_lora_adapter_metadata"] = config.to_dict()
        type(pipeline).save_lora_weights(directory / name, **layers)
    return {name: str(directory / name) for name in names}


def load(family: str, **options: Any) -> Any:
    """Load a tiny pipeline."""
    return load_pipeline(f"random:{family}", {}, device="cpu", dtype=None, **options)


def choose(pipeline: Any, lora: Mapping[str, float]) -> None:
    """Set adapters as the documentation of diffusers says."""
    if lora:
        pipeline.enable_lora()
        pipeline.set_adapters(list(lora), list(lora.values()))
    else:
        pipeline.disable_lora()
