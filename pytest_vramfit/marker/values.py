"""Readers of values: each turns what a user wrote into its canonical form.

A reader raises ValueError in words that follow "must be"; the caller knows the key.
"""

from __future__ import annotations

import difflib
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

Read = Callable[[object], Any]
"""From a written value to its canonical one."""

_LONGEST_SHOWN = 80
_MOST_PARTS = 10_000


def same(value: object, one: object) -> bool:
    """Equal and of the same type: True is not 1, and an array is not asked whether it is equal."""
    return type(value) is type(one) and value == one


def choice(*accepted: object) -> Read:
    """One of these, of the same type: True is not 1."""

    def read(value: object) -> object:
        for one in accepted:
            if same(value, one):
                return one
        near = nearest(value, [one for one in accepted if isinstance(one, str)])
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(f"{either(accepted)}{hint}")

    return read


def integer(least: int, most: int) -> Read:
    """An integer between both, not a bool; also another library's, by its ``__index__``."""
    words = f"an integer from {least:,} to {most:,}"

    def read(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:  # also of an array of several integers, which does have an __index__
            raise ValueError(words) from None
        if isinstance(value, bool) or not least <= number <= most:
            raise ValueError(words)
        return number

    return read


def number(words: str, holds: Callable[[float], bool], *, none: bool = False) -> Read:
    """A finite number for which ``holds``, or None where that is allowed."""

    def read(value: object) -> float | None:
        if value is None and none:
            return None
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(words)
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(words) from None
        if not math.isfinite(number) or not holds(number):
            raise ValueError(words)
        return number

    return read


def text(words: str) -> Read:
    """A text, a path or None."""

    def read(value: object) -> object:
        if value is not None and not isinstance(value, str | Path):
            raise ValueError(words)
        return value

    return read


def names(words: str, *accepted: str) -> Read:
    """Names in a list, sorted and each once; any, or those that are accepted."""

    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
            raise ValueError(words)
        if not value or not all(isinstance(name, str) and name.strip() for name in value):
            raise ValueError(words)
        read_names = sorted({name.strip() for name in value})
        unknown = next((name for name in read_names if accepted and name not in accepted), None)
        if unknown is not None:
            near = nearest(unknown, accepted)
            raise ValueError(words + (f" (did you mean {near!r}?)" if near else ""))
        return tuple(read_names)

    return read


def optional(read: Read) -> Read:
    """What ``read`` takes, or None."""
    return lambda value: None if value is None else read(value)


def shown(value: object) -> str:
    """A value as an error shows it: its repr on one line, cut where it is long, whatever the repr
    does.
    """
    kind = type(value).__name__
    try:
        if next(itertools.islice(_parts(value), _MOST_PARTS, None), None):
            return f"<{kind} of more than {_MOST_PARTS:,} values>"
        text = " ".join(repr(value).splitlines())
    except Exception as error:  # noqa: BLE001 (a user's own object may fail to show itself)
        text = f"<{kind}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def _parts(value: object, within: frozenset[int] = frozenset()) -> Iterator[bool]:
    """True for each part that the repr of a value shows.

    Few containers that hold each other several times over can have a repr that never ends.
    """
    yield True
    if isinstance(value, dict | list | tuple | set | frozenset) and id(value) not in within:
        for one in value.values() if isinstance(value, dict) else value:
            yield from _parts(one, within | {id(value)})


def either(accepted: Sequence[object]) -> str:
    """``'a', 'b' or 'c'``."""
    words = [repr(one) for one in accepted]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def nearest(value: object, accepted: Sequence[str], *, cutoff: float = 0.5) -> str | None:
    """The accepted name spelled most like ``value``, if one is close (1.0: the same)."""
    if not isinstance(value, str) or len(value) > _LONGEST_SHOWN:
        return None
    return next(iter(difflib.get_close_matches(value.lower(), accepted, n=1, cutoff=cutoff)), None)
