"""Models that workers run: diffusers pipelines by name, and the built-in ones."""

from .loader import Pipeline, load_pipeline

__all__ = ["Pipeline", "load_pipeline"]
