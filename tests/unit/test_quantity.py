"""Sizes, durations and headroom: what is read, what is refused, and in which words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vramfit.quantity import NO_HEADROOM, Headroom, parse_duration, parse_size

SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
DURATIONS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}

NO_SIZE = "a size such as '16303MiB' or '15.9GiB'"
NO_DURATION = "a duration such as '2s' or '350ms'"
NO_HEADROOM_AT_ALL = "a share such as '10%' or a size such as '1GiB'"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1B", 1),
        ("2KiB", 2_048),
        ("16303MiB", 17_094_934_528),
        ("15.9GiB", 17_072_495_002),  # 17,072,495,001.6
        ("0.5TiB", 549_755_813_888),
        (" 8 GiB ", 8_589_934_592),
    ],
)
def test_size(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@given(number=st.integers(1, 2**80), unit=st.sampled_from(list(SIZES)))
def test_size_in_whole_units_is_exact(number: int, unit: str) -> None:
    """Also above 2^53, where a float cannot hold every byte."""
    assert parse_size(f"{number}{unit}") == number * SIZES[unit]


@given(size_bytes=st.integers(1, 2**44), unit=st.sampled_from(["KiB", "MiB", "GiB"]))
def test_size_written_with_enough_decimals_is_read_back(size_bytes: int, unit: str) -> None:
    assert parse_size(f"{size_bytes / SIZES[unit]:.12f}{unit}") == size_bytes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("16GB", "a size in B, KiB, MiB, GiB, TiB; write '16GiB' for powers of 1024"),
        ("16303MB", "a size in B, KiB, MiB, GiB, TiB; write '16303MiB' for powers of 1024"),
        ("15.9 gb", "a size in B, KiB, MiB, GiB, TiB; write '15.9GiB' for powers of 1024"),
        ("24G", "a size in B, KiB, MiB, GiB, TiB; write '24GiB' for powers of 1024"),
        ("24gib", "a size in B, KiB, MiB, GiB, TiB; write '24GiB' for powers of 1024"),
        ("16694272KB", "a size in B, KiB, MiB, GiB, TiB; write '16694272KiB' for powers of 1024"),
        ("24", "a size in B, KiB, MiB, GiB, TiB"),
        ("10%", "a size in B, KiB, MiB, GiB, TiB"),
        ("24b", "a size in B, KiB, MiB, GiB, TiB"),
        ("0GiB", "a size above zero"),
        ("0.4B", "a size above zero"),
        ("", NO_SIZE),
        ("GiB", NO_SIZE),
        ("-1GiB", NO_SIZE),
        ("1e3MiB", NO_SIZE),
        ("1,5GiB", NO_SIZE),
        ("16 GiB of 24 GiB", NO_SIZE),
        ("٣GiB", NO_SIZE),
        ("9" * 10_000 + "GiB", NO_SIZE),
        (24, NO_SIZE),
        (24.0, NO_SIZE),
        (True, NO_SIZE),
        (None, NO_SIZE),
        (b"24GiB", NO_SIZE),
    ],
)
def test_size_is_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        parse_size(text)


@given(number=st.integers(1, 10**9), unit=st.sampled_from(list(DURATIONS)))
def test_duration_in_whole_units_is_exact(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == number * DURATIONS[unit]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2s", 2_000_000_000),
        ("350ms", 350_000_000),
        ("0.35 s", 350_000_000),
        ("1.5min", 90 * 10**9),
    ],
)
def test_duration(text: str, nanoseconds: int) -> None:
    assert parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2", "a duration in ns, us, ms, s, min"),
        ("2h", "a duration in ns, us, ms, s, min"),
        ("2S", "a duration in ns, us, ms, s, min"),
        ("0s", "a duration above zero"),
        ("0.2ns", "a duration above zero"),
        ("two seconds", NO_DURATION),
        (2, NO_DURATION),
        (float("nan"), NO_DURATION),
    ],
)
def test_duration_is_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "usable_bytes", "free_bytes"),
    [
        ("0%", 1_000, 0),
        ("10%", 1_000, 100),
        ("7%", 100, 7),  # 0.07 * 100 is more than 7 in binary
        ("33.3%", 1_000, 333),
        ("10%", 1_001, 101),  # 100.1: part of a byte is a byte
        ("512B", 1_000, 512),
        ("2KiB", 1_000, 2_048),  # more than there is: nothing fits
    ],
)
def test_headroom_of_usable_memory(text: str, usable_bytes: int, free_bytes: int) -> None:
    assert Headroom.parse(text).of(usable_bytes) == free_bytes


@given(percent=st.integers(0, 99), usable_bytes=st.integers(0, 2**45))
def test_headroom_share_is_rounded_up_to_a_byte(percent: int, usable_bytes: int) -> None:
    assert Headroom.parse(f"{percent}%").of(usable_bytes) == -(-percent * usable_bytes // 100)


def test_headroom_of_zero_percent_is_none() -> None:
    assert Headroom.parse("0%") == NO_HEADROOM


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("100%", "a share below 100%"),
        ("-1%", NO_HEADROOM_AT_ALL),
        (0.1, NO_HEADROOM_AT_ALL),
        (None, NO_HEADROOM_AT_ALL),
        ("10", "a share such as '10%' or a size in B, KiB, MiB, GiB, TiB"),
        (
            "1GB",
            (
                "a share such as '10%' or a size in B, KiB, MiB, GiB, TiB; "
                "write '1GiB' for powers of 1024"
            ),
        ),
        ("0GiB", "a share such as '10%' or a size above zero"),
    ],
)
def test_headroom_is_refused(text: object, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        Headroom.parse(text)
