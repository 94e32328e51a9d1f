"""Quantities as people read them: powers of 1024 with their own names, three digits or so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vramfit.quantity import parse_size
from pytest_vramfit.reporting import figures


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (104_857, "104,857 B"),
        (104_858, "0.1 MiB"),
        (4_508_877, "4.3 MiB"),
        (104_857_599, "100.0 MiB"),
        (104_857_600, "100 MiB"),
        (283_115_520, "270 MiB"),
        (1_073_741_823, "1024 MiB"),
        (1_073_741_824, "1.0 GiB"),
        (17_094_934_528, "15.9 GiB"),
        (1_100_000_000_000, "1024.5 GiB"),
    ],
)
def test_size(size_bytes: int, text: str) -> None:
    assert figures.size(size_bytes) == text


@given(size_bytes=st.integers(1, 2**45))
def test_size_says_what_it_was_to_a_twentieth(size_bytes: int) -> None:
    """And half a digit of the small ones: what is shown can be read again."""
    read = parse_size(figures.size(size_bytes).replace(",", ""))
    unit = 1024**3 if size_bytes >= 1024**3 else 1024**2
    assert abs(read - size_bytes) <= max(0.05 * unit, 0.005 * size_bytes) + 1


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (350_400, "350 us"),
        (1_000_000, "1 ms"),
        (231_400_000, "231 ms"),
        (1_000_000_000, "1.0 s"),
        (9_372_000_000, "9.4 s"),
        (10_000_000_000, "10 s"),
        (600_000_000_000, "600 s"),
    ],
)
def test_duration(nanoseconds: int, text: str) -> None:
    assert figures.duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.00 ms"),
        (4_999, "0.00 ms"),
        (84_914_999, "84.91 ms"),
        (84_915_001, "84.92 ms"),
        (1_234_567_890, "1,234.57 ms"),
        (600_000_000_000, "600,000.00 ms"),
    ],
)
def test_milliseconds(nanoseconds: int, text: str) -> None:
    assert figures.milliseconds(nanoseconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0.0 MiB"),
        (512, "0.0 MiB"),
        (157_286, "0.1 MiB"),
        (104_857_600, "100.0 MiB"),
        (16_161_177_600, "15,412.5 MiB"),
        (1_100_000_000_000, "1,049,041.7 MiB"),
    ],
)
def test_mib(size_bytes: int, text: str) -> None:
    assert figures.mib(size_bytes) == text


@given(nanoseconds=st.integers(10**7, 10**12))
def test_two_times_that_differ_by_a_thousandth_look_different(nanoseconds: int) -> None:
    """Which is what GPU time is judged by."""
    later = nanoseconds + max(10**4, nanoseconds // 1000)
    assert figures.milliseconds(later) != figures.milliseconds(nanoseconds)


@pytest.mark.parametrize(
    ("nanoseconds", "text"), [(0, "0.0"), (314_000_000, "0.3"), (10**11, "100.0")]
)
def test_seconds(nanoseconds: int, text: str) -> None:
    assert figures.seconds(nanoseconds) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 8, "0.0 %"), (42, 1000, "4.2 %"), (1, 10, "10 %"), (8, 8, "100 %"), (127, 100, "127 %")],
)
def test_percent(part: int, whole: int, text: str) -> None:
    assert figures.percent(part, whole) == text


@pytest.mark.parametrize(("number", "text"), [(3.44, "3.4"), (10, "10"), (2216.4, "2,216")])
def test_count(number: float, text: str) -> None:
    assert figures.count(number) == text
