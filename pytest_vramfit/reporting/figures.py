"""Quantities as people read them: MiB and GiB (2^20 and 2^30), ms and s."""

from __future__ import annotations

_MIB = 2**20
_GIB = 2**30
_MICROSECOND = 10**3
_MILLISECOND = 10**6
_SECOND = 10**9


def size(size_bytes: int) -> str:
    """``16.1 GiB``, ``270 MiB``, ``4.3 MiB``, ``512 B``."""
    if size_bytes >= _GIB:
        return f"{size_bytes / _GIB:.1f} GiB"
    if size_bytes >= 100 * _MIB:
        return f"{size_bytes / _MIB:.0f} MiB"
    if size_bytes >= 0.1 * _MIB:
        return f"{size_bytes / _MIB:.1f} MiB"
    return f"{size_bytes:,} B"


def duration(nanoseconds: int) -> str:
    """``231 ms``, ``9.4 s``."""
    if nanoseconds >= 10 * _SECOND:
        return f"{nanoseconds / _SECOND:.0f} s"
    if nanoseconds >= _SECOND:
        return f"{nanoseconds / _SECOND:.1f} s"
    if nanoseconds >= _MILLISECOND:
        return f"{nanoseconds / _MILLISECOND:.0f} ms"
    if nanoseconds >= _MICROSECOND:
        return f"{nanoseconds / _MICROSECOND:.0f} us"
    return f"{nanoseconds} ns"


def milliseconds(nanoseconds: int) -> str:
    """``84.91 ms``: for times whose small differences matter."""
    return f"{nanoseconds / _MILLISECOND:,.2f} ms"


def mib(size_bytes: int) -> str:
    """``15,412.5 MiB``: for sizes whose small differences matter."""
    return f"{size_bytes / _MIB:,.1f} MiB"


def seconds(nanoseconds: int) -> str:
    """``0.3``: for a list of shares of one duration, with the unit before it."""
    return f"{nanoseconds / _SECOND:.1f}"


def percent(part: float, whole: float) -> str:
    """``127 %``, ``4.2 %``."""
    share = 100 * part / whole
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %"  # noqa: PLR2004


def count(number: float) -> str:
    """``2,216``, ``3.4``."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"  # noqa: PLR2004
