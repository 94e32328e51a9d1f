"""By how much a time changed, and how sure that is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vramfit.verdict.ratio import GPU, Clock, Ratio, ratio, ratio_of_pairs, wall_clock

WALL = wall_clock(0.2)
MS = 10**6
RUNS = 2_000
"""Simulated comparisons: a share of them is known to about two percent."""


def processes(*medians_ms: float) -> list[list[int]]:
    """Processes of one sample each, so that nothing varies within them."""
    return [[round(one * MS)] for one in medians_ms]


def simulated(
    generator: random.Random, number: int, *, between: float, within: float, ms: float = 250
) -> list[list[int]]:
    """Processes of five steps, with a spread between and within them."""
    sides = []
    for _ in range(number):
        own = ms * math.exp(generator.gauss(0, between))
        sides.append([round(own * MS * math.exp(generator.gauss(0, within))) for _ in range(5)])
    return sides


def simulate(
    clock: Clock, now: int, before: int, *, truth: float = 1.0, **spread: float
) -> list[Ratio]:
    generator = random.Random(5)
    return [
        ratio(
            simulated(generator, now, ms=250 * truth, **spread),
            simulated(generator, before, **spread),
            clock,
        )
        for _ in range(RUNS)
    ]


def share(ratios: Sequence[Ratio], true: Sequence[bool]) -> float:
    return sum(true) / len(ratios)


def test_ratio_is_that_of_the_middle_processes() -> None:
    seen = ratio(processes(300, 330, 290), processes(200, 250, 150), WALL)
    assert seen.value == pytest.approx(300 / 200)


@pytest.mark.parametrize(
    ("host_share", "usual_spread"), [(0, 0.01), (0.2, 0.05), (0.25, 0.06), (0.9, 0.19), (1, 0.21)]
)
def test_wall_clock_varies_with_the_host_s_share_of_the_step(
    host_share: float, usual_spread: float
) -> None:
    assert wall_clock(host_share).usual_spread == pytest.approx(usual_spread)


def test_interval_of_one_process_each_without_any_spread() -> None:
    """Nothing is seen of the spread, so it is the usual one of 5 %, on both sides; Student's t for
    4 degrees of freedom is 2.78.
    """
    margin = 2.78 * math.sqrt(2 * 0.05**2)
    seen = ratio(processes(300), processes(250), WALL)
    assert (seen.low, seen.high) == pytest.approx((1.2 * math.exp(-margin), 1.2 * math.exp(margin)))


def test_interval_of_three_processes_each() -> None:
    """Deviations of 0 and twice ln 1.1 on one side, none on the other: 4 degrees of freedom seen,
    4 usual.
    """
    deviation = math.log(1.1)
    variance = (4 * 0.001**2 + 2 * deviation**2) / 8
    margin = 2.31 * math.sqrt(variance / 3 + variance / 3)
    seen = ratio(processes(100, 110, 100 / 1.1), processes(100, 100, 100), GPU)
    assert seen.value == pytest.approx(1)
    assert seen.high == pytest.approx(math.exp(margin), rel=1e-6)


def test_spread_within_a_process_widens_the_interval() -> None:
    """Five samples with a median deviation of ln 1.02."""
    steady = ratio([[100] * 5], [[100] * 5], GPU)
    samples = [round(MS * 1.02**power) for power in (-1, -1, 0, 1, 1)]
    seen = ratio([samples], [[MS] * 5], GPU)
    within = math.pi / 2 * (1.4826 * math.log(1.02)) ** 2 / 5
    margin = 2.78 * math.sqrt(2 * 0.001**2 + within)
    assert seen.high == pytest.approx(math.exp(margin), rel=1e-5)
    assert seen.high > steady.high


def test_one_wild_step_is_not_the_process() -> None:
    calm = ratio([[100, 101, 99, 100, 100]], processes(100 / MS), GPU)
    wild = ratio([[100, 101, 99, 100, 900]], processes(100 / MS), GPU)
    assert wild.value == calm.value


@pytest.mark.parametrize("clock", [WALL, GPU])
def test_more_processes_narrow_the_interval(clock: Clock) -> None:
    widths = []
    for number in (1, 2, 3, 5):
        seen = ratio(processes(*[250] * number), processes(250, 250, 250), clock)
        widths.append(seen.high / seen.low)
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) == len(widths)


@given(
    now=st.lists(st.integers(10**6, 10**10), min_size=1, max_size=4),
    before=st.lists(st.integers(10**6, 10**10), min_size=1, max_size=4),
)
def test_interval_holds_the_ratio_and_turns_over_with_it(now: list[int], before: list[int]) -> None:
    seen = ratio([[one] for one in now], [[one] for one in before], WALL)
    other = ratio([[one] for one in before], [[one] for one in now], WALL)
    assert 0 < seen.low < seen.value < seen.high
    assert (other.value, other.low, other.high) == pytest.approx(
        (1 / seen.value, 1 / seen.high, 1 / seen.low)
    )


@pytest.mark.parametrize("now", [1, 3])
def test_interval_holds_the_truth_as_often_as_it_says(now: int) -> None:
    """95 %, a little less for the median of few; with the usual spread of the clock."""
    seen = simulate(WALL, now, 3, between=0.05, within=0.02)
    assert share(seen, [one.low <= 1 <= one.high for one in seen]) > 0.93


@pytest.mark.parametrize("now", [1, 3])
@pytest.mark.parametrize(
    ("clock", "limit", "between", "within"),
    [(WALL, 1.25, 0.05, 0.03), (WALL, 1.25, 0.09, 0.05), (GPU, 1.05, 0.002, 0.0004)],
    ids=["wall", "a busy host", "gpu"],
)
def test_no_false_alarm_at_the_default_limits(
    clock: Clock, limit: float, between: float, within: float, now: int
) -> None:
    """The same step on both sides, one process or three against a baseline of three."""
    seen = simulate(clock, now, 3, between=between, within=within)
    assert share(seen, [one.low > limit for one in seen]) == 0


def test_a_gpu_step_that_is_two_percent_slower_is_seen_by_one_process() -> None:
    seen = simulate(GPU, 1, 3, truth=1.02, between=0.001, within=0.0004)
    assert share(seen, [one.low > 1.01 for one in seen]) > 0.98


def test_half_as_fast_by_the_wall_clock_is_seen_by_one_process() -> None:
    seen = simulate(WALL, 1, 3, truth=2.0, between=0.05, within=0.03)
    assert share(seen, [one.low > 1.25 for one in seen]) > 0.99


def test_pairs_cancel_a_drift() -> None:
    """Both halve their speed over three turns: each pair has the same ratio."""
    seen = ratio_of_pairs(processes(110, 165, 220), processes(100, 150, 200), GPU)
    margin = 2.45 * math.sqrt(2 * 0.001**2)
    assert seen.value == pytest.approx(1.1)
    assert (seen.low, seen.high) == pytest.approx((1.1 * math.exp(-margin), 1.1 * math.exp(margin)))


def test_pairs_that_differ_widen_the_interval() -> None:
    """Logarithms of -d, 0, d have a standard deviation of d."""
    deviation = math.log(1.1)
    seen = ratio_of_pairs(processes(100 / 1.1, 100, 110), processes(100, 100, 100), GPU)
    margin = 2.45 * math.sqrt(2 * 0.001**2 + deviation**2 / 3)
    assert seen.value == pytest.approx(1)
    assert seen.high == pytest.approx(math.exp(margin), rel=1e-6)


def test_one_pair() -> None:
    seen = ratio_of_pairs(processes(120), processes(100), GPU)
    assert seen.value == pytest.approx(1.2)
    assert seen.high == pytest.approx(1.2 * math.exp(2.78 * math.sqrt(2) * 0.001))
