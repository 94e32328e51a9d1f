"""Sizes, shares and durations as users write them, turned into integers.

Inside the package every figure is an integer in bytes or nanoseconds; text like
``"16303MiB"`` lives only at the border, here and in :mod:`pytest_vramfit.reporting`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

_BINARY = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_WHOLE_PERCENT = 100
_LONGEST = 40
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)\s*", re.ASCII)


def parse_size(text: object) -> int:
    """The bytes of a size such as ``"16303MiB"`` or ``"15.9GiB"``.

    Raises ValueError, in words that follow "must be", for anything else. ``GB`` and ``MB`` are
    refused because half of their writers mean 2^30 and 2^20.
    """
    number, unit = _number_and_unit(text, "a size such as '16303MiB' or '15.9GiB'")
    if unit not in _BINARY:
        binary = unit.upper().removesuffix("B").removesuffix("I").capitalize() + "iB"
        written = str(text).strip().removesuffix(unit).rstrip()
        hint = f"; write '{written}{binary}' for powers of 1024" if binary in _BINARY else ""
        raise ValueError(f"a size in {', '.join(_BINARY)}{hint}")
    return _positive(round(number * _BINARY[unit]), "a size above zero")


def parse_duration(text: object) -> int:
    """The nanoseconds of a duration such as ``"2s"`` or ``"350ms"``; ValueError as for sizes."""
    number, unit = _number_and_unit(text, "a duration such as '2s' or '350ms'")
    if unit not in _SECONDS:
        raise ValueError(f"a duration in {', '.join(_SECONDS)}")
    return _positive(round(number * _SECONDS[unit]), "a duration above zero")


@dataclass(frozen=True, kw_only=True, slots=True)
class Headroom:
    """What must stay free: a share of the usable memory, or a number of bytes."""

    share: float = 0.0
    size_bytes: int = 0

    @classmethod
    def parse(cls, text: object) -> Headroom:
        """Read ``"10%"`` or ``"1GiB"``; ValueError, in words that follow "must be"."""
        number, unit = _number_and_unit(text, "a share such as '10%' or a size such as '1GiB'")
        if unit == "%":
            if number >= _WHOLE_PERCENT:
                raise ValueError("a share below 100%")
            return cls(share=float(number / _WHOLE_PERCENT))
        try:
            return cls(size_bytes=parse_size(text))
        except ValueError as error:
            raise ValueError(f"a share such as '10%' or {error}") from None

    def of(self, usable_bytes: int) -> int:
        """The bytes that must stay free of ``usable_bytes``."""
        # the share as written: 0.07 * 100 is 7.000000000000001 in binary
        return self.size_bytes + math.ceil(Fraction(str(self.share)) * usable_bytes)


NO_HEADROOM = Headroom()


def _number_and_unit(text: object, wanted: str) -> tuple[Fraction, str]:
    match = (
        _NUMBER_AND_UNIT.fullmatch(text) if isinstance(text, str) and len(text) < _LONGEST else None
    )
    if match is None:
        raise ValueError(wanted)
    return Fraction(match[1]), match[2]


def _positive(value: int, wanted: str) -> int:
    if value <= 0:
        raise ValueError(wanted)
    return value
