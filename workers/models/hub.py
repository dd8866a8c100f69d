"""Why something is not to be had from the hub, in one line instead of its libraries' pages."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_CUT_OFF = (ConnectionError, TimeoutError, socket.gaierror)
"""What ends the chain of causes where there is no network."""


@contextmanager
def hub_errors_of(what: str) -> Iterator[None]:
    """Turn errors of the hub into one that says what is not to be had, and why.

    Args:
        what: Such as ``"model 'owner/name'"``.

    Raises:
        ValueError: Instead of an error of the hub; others go on as they are.
    """
    try:
        yield
    except Exception as error:
        reason = hub_reason(error)
        if reason is None:
            raise
        raise ValueError(f"{what}: there is no such directory, and {reason}") from error


def ask_hub(repository: str, file: str, options: Mapping[str, Any]) -> None:
    """Ask once whether the hub has a repository, unless the cache has the file or is all that
    counts. Without a network a download would be tried again and again for half a minute.

    Args:
        repository: ``owner/name``.
        file: Its name there.
        options: How to use the hub, as diffusers takes them.

    Raises:
        Exception: As the hub's client has it; see `hub_reason`.
    """
    from huggingface_hub import model_info, try_to_load_from_cache

    cached = try_to_load_from_cache(repository, file, cache_dir=options.get("cache_dir"))
    if cached is None and not options.get("local_files_only"):
        model_info(repository)


def hub_reason(error: BaseException) -> str | None:
    """Return what the hub had to do with an error, None if it had nothing.

    diffusers raises errors of its own in their stead, in the context of those that tell.
    """
    from huggingface_hub import errors

    causes = tuple(_causes(error))
    reasons = (
        (errors.GatedRepoError, "the hub gives it only to those who asked for it and logged in"),
        (errors.RepositoryNotFoundError, "the hub has none of this name, or it is private"),
        (errors.RevisionNotFoundError, "what the hub has of this name has no such revision"),
        (errors.RemoteEntryNotFoundError, "what the hub has of this name lacks a file"),
        (_CUT_OFF, "it is not in the hub's cache, and the hub cannot be reached"),
        (errors.LocalEntryNotFoundError, "it is not in the hub's cache"),
    )
    for kinds, reason in reasons:
        if any(isinstance(cause, kinds) for cause in causes):
            return reason
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
