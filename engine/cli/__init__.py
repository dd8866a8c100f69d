"""The command line: ``sidestream generate "a red circle" -o out/``."""

from .commands import cli as cli, main as main
