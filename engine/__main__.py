"""``python -m sidestream.engine``: the command line."""

from .cli import main

main()
