"""`LazyGroup`: commands that come with extras, imported when somebody asks for them."""

from __future__ import annotations

import importlib
from typing import Any

import click

COMMANDS = {
    "bench": ("sidestream.server.bench.cli", "server"),
    "serve": ("sidestream.server.cli", "server"),
    "trace": ("sidestream.engine.cli.trace", "trace"),
}
"""Name of a command: the module that has it under this name, and the extra that it needs."""
SHORT_HELP = {
    "bench": "Measure servers under load.",
    "serve": "Serve a model over HTTP.",
    "trace": "Record when requests ran, for Perfetto or as a picture.",
}
"""What is told of a command whose extra is missing."""


class LazyGroup(click.Group):
    """A group with further commands, which cost nothing until they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), *COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing it if need be."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, extra = COMMANDS[cmd_name]
        try:
            command: click.Command = getattr(importlib.import_module(module), cmd_name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("sidestream"):
                raise
            return _missing(cmd_name, extra, error)
        return command


def _missing(name: str, extra: str, error: ModuleNotFoundError) -> click.Command:
    """Make what stands for a command that cannot be imported."""
    message = f"sidestream {name} needs the extra: pip install 'sidestream[{extra}]' ({error})"

    def complain(**_: Any) -> None:
        raise click.ClickException(message)

    anything = click.Argument(["_"], nargs=-1, type=click.UNPROCESSED)
    return click.Command(
        name,
        params=[anything],
        callback=complain,
        short_help=f"{SHORT_HELP[name]} (needs the extra {extra!r})",
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
    )
