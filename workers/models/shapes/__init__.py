"""The embedded model: a small real text-to-image pipeline that draws coloured shapes, offline.

`docs/shapes.md` says how it was made and what it can do.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

WEIGHTS: Final = Path(__file__).parent / "weights"
"""A diffusers model directory that `DiffusionPipeline.from_pretrained` reads."""

DEFAULTS: Final[dict[str, Any]] = {
    "num_inference_steps": 16,
    "guidance_scale": 2.5,
    "height": 128,
    "width": 128,
}
"""Call arguments to use where a request leaves them out."""


def load(device: "str | torch.device" = "cpu", dtype: "torch.dtype | None" = None) -> Any:
    """Load the pipeline from the package, without the network.

    Args:
        device: where its weights go.
        dtype: what they are computed in; float32 if None.
    """
    import torch  # here, so that grammar, drawing and oracle do without it
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(
        WEIGHTS, dtype=dtype or torch.float32, local_files_only=True
    )
    return pipeline.to(device)
