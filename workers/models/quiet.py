"""Keeping libraries from writing on a stderr that may be the user's."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import CRITICAL, ERROR


@contextmanager
def quiet(*, diffusers: bool = False) -> Iterator[None]:
    """Keep diffusers and transformers from drawing bars, and from advice about what is missing.

    Args:
        diffusers: Whether diffusers says nothing either, not even of errors, which it raises too.
    """
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    libraries = (diffusers_logging, transformers_logging)
    drawing = [library for library in libraries if library.is_progress_bar_enabled()]
    for library in drawing:
        library.disable_progress_bar()
    silent = libraries if diffusers else (transformers_logging,)
    verbosities = [library.get_verbosity() for library in silent]
    for library in silent:
        library.set_verbosity(CRITICAL if library is diffusers_logging else ERROR)
    try:
        yield
    finally:
        for library, verbosity in zip(silent, verbosities, strict=True):
            library.set_verbosity(verbosity)
        for library in drawing:
            library.enable_progress_bar()
