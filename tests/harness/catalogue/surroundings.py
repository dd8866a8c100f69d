"""The surroundings of a run: one thread, no network, no noise of the libraries."""

from __future__ import annotations

import logging
import os
import warnings

import torch


def quiet() -> None:
    """Prepare this process, and those that it forks, for running the catalogue."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
