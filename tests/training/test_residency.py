"""What is off the card, by how long the GPU took to read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vramfit.measurement import Residency
from pytest_vramfit.measuring import residency
from pytest_vramfit.measuring.residency import Speeds, judged

MIB = 2**20
SPEEDS = Speeds(card=700, host=25, launch_ns=4_000)
"""A card of 700 GB/s behind a bus of 25."""


def reading_ns(size_bytes: int, off_card: float = 0, speeds: Speeds = SPEEDS) -> float:
    """Such a share of it comes over the bus; a launch is the least."""
    on_card_ns = max(speeds.launch_ns, size_bytes / speeds.card)
    off_card_ns = max(speeds.launch_ns, size_bytes / speeds.host)
    return on_card_ns + off_card * (off_card_ns - on_card_ns)


def look(*segments: tuple[int, float], speeds: Speeds = SPEEDS) -> tuple[int, int]:
    """Bytes off the card, and how many are uncertain, of segments with their shares off it."""
    seen = judged(
        [size_bytes for size_bytes, _ in segments],
        [reading_ns(*one, speeds) for one in segments],
        speeds,
    )
    return seen.off_card_bytes, seen.uncertainty_bytes


def test_all_on_the_card():
    assert look(*[(2 * MIB, 0)] * 30, (20 * MIB, 0), (1_000 * MIB, 0)) == (0, 0)


def test_figures_beside_the_bytes():
    sizes = [20 * MIB, 30 * MIB]
    speeds = Speeds(card=3_350.4, host=53.6, launch_ns=4_000)
    assert judged(sizes, [reading_ns(one) for one in sizes], speeds) == Residency(
        off_card_bytes=0,
        uncertainty_bytes=0,
        card_bytes_per_s=3_350_400_000_000,
        host_bytes_per_s=53_600_000_000,
    )


def test_nothing_is_allocated():
    assert look() == (0, 0)


def test_whole_segments_off_the_card():
    segments = [(20 * MIB, 0), (46 * MIB, 1), (1_000 * MIB, 0), (512 * MIB, 1)]
    assert look(*segments) == (558 * MIB, 0)


@pytest.mark.parametrize("off_card", [0, 0.1, 0.24])
def test_a_little_slow_is_on_the_card(off_card):
    assert look((100 * MIB, off_card)) == (0, 0)


@pytest.mark.parametrize("off_card", [0.76, 0.9, 1, 1.5])
def test_about_as_slow_as_the_bus_is_off_it(off_card):
    assert look((100 * MIB, off_card)) == (100 * MIB, 0)


def test_faster_than_the_card_is_on_it():
    assert look((100 * MIB, -0.01)) == (0, 0)


@pytest.mark.parametrize("off_card", [0.26, 0.5, 0.74])
def test_a_part_of_a_segment_is_within_a_tenth_of_it(off_card):
    off_card_bytes, uncertain = look((20 * MIB, 0), (100 * MIB, off_card))
    assert off_card_bytes == pytest.approx(off_card * 100 * MIB, abs=1)
    assert uncertain == 10 * MIB


@pytest.mark.parametrize(("off_card", "off_card_bytes"), [(0, 0), (1, 2 * MIB)])
def test_small_segments_can_be_told(off_card, off_card_bytes):
    """2 MiB take 84 us over the bus, a launch 4."""
    assert look((2 * MIB, off_card)) == (off_card_bytes, 0)


@pytest.mark.parametrize(
    ("launch_ns", "seen"),
    [(41_900, (2 * MIB, 0)), (42_000, (0, 2 * MIB)), (100_000, (0, 2 * MIB))],
)
def test_segments_whose_launch_takes_half_their_time_are_uncertain(launch_ns, seen):
    speeds = Speeds(card=700, host=25, launch_ns=launch_ns)
    assert look((2 * MIB, 1), speeds=speeds) == seen


def test_uncertain_segments_do_not_hide_the_others():
    speeds = Speeds(card=700, host=25, launch_ns=100_000)
    segments = [*[(2 * MIB, 1)] * 3, (100 * MIB, 1), (200 * MIB, 0.5)]
    assert look(*segments, speeds=speeds) == (200 * MIB, 26 * MIB)


def test_nothing_can_be_told_where_the_bus_is_nearly_as_fast_as_the_card():
    speeds = Speeds(card=700, host=351, launch_ns=4_000)
    assert look((100 * MIB, 1), speeds=speeds) == (0, 100 * MIB)


SIZES = st.integers(1, 500).map(lambda number: number * 2 * MIB)
"""Of segments."""


@given(SIZES)
def test_every_word_of_a_segment_is_read_in_short_rows(size_bytes):
    pieces = list(residency._pieces(0x7F00, size_bytes))
    shapes = [residency._Raw(*one).__cuda_array_interface__["shape"] for one in pieces]
    assert [address for address, _ in pieces] == [
        0x7F00 + 128 * MIB * n for n in range(len(pieces))
    ]
    assert sum(rows * words * 8 for rows, words in shapes) == size_bytes
    assert max(words for _, words in shapes) < 32 * 256  # PyTorch shares rows of more


@given(on=st.lists(SIZES), off=st.lists(SIZES))
def test_whole_segments_are_told_to_the_byte(on, off):
    segments = [*((one, 0) for one in on), *((one, 1) for one in off)]
    assert look(*segments) == (sum(off), 0)


@given(segments=st.lists(st.tuples(SIZES, st.floats(-1, 2))))
def test_never_more_is_off_the_card_than_there_is(segments):
    off_card_bytes, uncertain = look(*segments)
    total = sum(size_bytes for size_bytes, _ in segments)
    assert 0 <= off_card_bytes <= total
    assert 0 <= uncertain <= total / 10
