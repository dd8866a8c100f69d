"""Dataclasses whose every field says what it accepts: the mechanism under `EngineConfig` and
`SamplingParams`.

A field is declared with `option(default, check, doc)`. A check takes a value and returns it,
perhaps converted, or raises ``ValueError(valid values)``; the field's name is added here, so that a
message always names the field and what it accepts.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")
Check = Callable[[Any], Any]

_NO_DEFAULT = object()
_kinds: list[type[Strict]] = []
"""The classes whose fields people know by name."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def option(default: Any, check: Check, doc: str) -> Any:
    """Declare a field of a `Strict` class."""
    metadata = {"check": check, "doc": doc}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint about the valid names: those that the name is a part of, else the nearest, else
    all."""
    valid = sorted(valid)
    close = _with_part(name, valid) or resembling(name, valid, 0.5)
    if not close:
        return f"valid names: {', '.join(valid)}"
    return f"did you mean {' or '.join(map(repr, close[:3]))}?"


def elsewhere(name: str, valid: Iterable[str]) -> str | None:
    """Return where a name is known, or one like it, if that is not here but in another `Strict`
    class."""
    for kind in _kinds:
        if name in names_of(kind):
            return f"it belongs to {kind.belongs.format(name)}"
    if _with_part(name, valid) or resembling(name, valid, 0.7):
        return None
    for kind in _kinds:
        for word in resembling(name, names_of(kind), 0.7):
            return f"did you mean {word!r}? That belongs to {kind.belongs.format(word)}"
    return None


def _with_part(name: str, valid: Iterable[str]) -> list[str]:
    return [word for word in valid if len(name) > 2 and name in word]


def resembling(name: str, valid: Iterable[str], cutoff: float) -> list[str]:
    """Return the nearest name, or none."""
    close = difflib.get_close_matches(name, sorted(valid), cutoff=cutoff)
    # Letters that changed places are likelier than one too many.
    return sorted(close, key=lambda word: sorted(word) != sorted(name))[:1]


@functools.cache
def names_of(cls: type) -> frozenset[str]:
    """Return the names of a dataclass's fields; `dataclasses.fields` looks for them each time."""
    return frozenset(field.name for field in dataclasses.fields(cls))


@functools.cache
def _checks_of(cls: type) -> tuple[tuple[str, Check, Any], ...]:
    """Return the fields of a `Strict` class that have checks, with these, and with their defaults
    if these need no check."""
    checks = ((field, field.metadata.get("check")) for field in dataclasses.fields(cls))
    return tuple(
        (field.name, check, _good_default(field, check))
        for field, check in checks
        if check is not None
    )


def _good_default(field: dataclasses.Field[Any], check: Check) -> Any:
    """Return a default that its check accepts as it is, else something that no field can be."""
    try:
        return field.default if check(field.default) is field.default else _NO_DEFAULT
    except ValueError:
        return _NO_DEFAULT


class _StrictMeta(type):
    """Refuses unknown keyword arguments by naming the nearest known one; `TypeError` would only
    name the culprit."""

    def __call__(cls: type[T], *args: Any, **kwargs: Any) -> T:
        names = names_of(cls)  # type: ignore[arg-type]
        if not kwargs.keys() <= names:
            name = next(name for name in kwargs if name not in names)
            hint = elsewhere(name, names) or nearest(name, names)
            raise cls.error(f"unknown {cls.noun} {name!r}: {hint}")  # type: ignore[attr-defined]
        return super().__call__(*args, **kwargs)  # type: ignore[misc, no-any-return]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strict(metaclass=_StrictMeta):
    """Base class: checks every `option` field when an instance is made."""

    error: ClassVar[type[ValueError]] = ValueError
    noun: ClassVar[str] = "field"
    belongs: ClassVar[str] = ""
    """Where a field is given, with {} for its name, for those who give it elsewhere."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.belongs:
            _kinds.append(cls)

    def __post_init__(self) -> None:
        for name, check, good in _checks_of(type(self)):
            value = getattr(self, name)
            if value is good:
                continue
            try:
                checked = check(value)
            except ValueError as wrong:
                raise self.error(f"{name} must be {wrong}, not {reprlib.repr(value)}") from None
            if checked is not value:
                object.__setattr__(self, name, checked)


def whole(low: int, high: int | None = None, *, optional: bool = False) -> Check:
    """Accept an int from `low` to `high`, both included."""
    valid = (
        f"a whole number of at least {low}"
        if high is None
        else f"a whole number from {low} to {high}"
    )

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        if type(value) is not int or value < low or (high is not None and value > high):
            raise ValueError(valid + (" or None" if optional else ""))
        return value

    return check


def number(low: float, high: float = sys.float_info.max, *, optional: bool = False) -> Check:
    """Accept a finite int or float from `low` to `high`, both included."""
    valid = (
        f"a number of at least {low:g}"
        if high == sys.float_info.max
        else f"a number from {low:g} to {high:g}"
    )

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        if type(value) not in (int, float) or not low <= value <= high:
            raise ValueError(valid + (" or None" if optional else ""))
        return float(value)

    return check


def choice(*values: str, optional: bool = False) -> Check:
    """Accept one of the given strings."""

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, str) and value in values:
            return values[values.index(value)]  # a plain string also for an enum's member
        raise ValueError(
            "one of " + ", ".join(map(repr, values)) + (" or None" if optional else "")
        )

    return check


def text(limit: int, *, optional: bool = False, empty: bool = False) -> Check:
    """Accept a string of at most `limit` characters that UTF-8 can encode."""
    valid = f"a {'' if empty else 'non-empty '}string of at most {limit} characters"

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        if type(value) is not str or len(value) > limit or not (value or empty):
            raise ValueError(valid + (" or None" if optional else ""))
        if _LONE_SURROGATE.search(value):
            raise ValueError("valid Unicode")
        return value

    return check


def flag(*, optional: bool = False) -> Check:
    """Accept True or False."""

    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        if type(value) is not bool:
            raise ValueError("true or false" + (" or None" if optional else ""))
        return value

    return check


def table() -> Check:
    """Accept a mapping with string keys; keeps a copy."""

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ValueError("a table with string keys")
        return dict(value)

    return check
