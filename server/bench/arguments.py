"""Values on the command line of ``sidestream bench serve``, as far as click does not know them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
import httpx2

from .printable import printable

Parsed = TypeVar("Parsed")


class FiniteRange(click.FloatRange):
    """A range of numbers: neither NaN, which click's would let through, nor infinity.

    Args:
      least: smallest number.
      most: largest number; without it, all that are finite.
      min_open: the smallest number is not in it.
    """

    def __init__(self, least: float, most: float = math.inf, *, min_open: bool = False) -> None:
        super().__init__(least, most, min_open=min_open, max_open=most == math.inf)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{number} is not in the range {self._describe_range()}.", param, ctx)
        return number


def parsed(parse: Callable[[str], Parsed]) -> Callable[..., Any]:
    """Make a callback for an option, or several of its kind, from what reads one value."""

    def callback(_: click.Context, option: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return [parse(text) for text in value]
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), param=option) from error

    return callback


def parse_url(text: str) -> str:
    """Return the URL of a server.

    Raises:
      ValueError: it is none.
    """
    try:
        url = httpx2.URL(text)
        is_one = url.scheme in ("http", "https") and bool(url.host)
    except (httpx2.InvalidURL, ValueError):
        is_one = False
    if not is_one:
        raise ValueError(f"'{printable(text)}' is no URL; write http://HOST:PORT")
    return text


def parse_key(text: str) -> str:
    """Return the key.

    Raises:
      ValueError: it cannot stand in a header; the key is not told.
    """
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise ValueError("a key is printable ASCII, without space around it")
    return text
