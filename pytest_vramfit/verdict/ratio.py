"""By how much a time has changed, and how sure that is.

The median of a step differs from process to process, by the wall clock on a busy host much more
than within one. So processes are what is compared: the ratio is that of the middle processes, and
its interval comes from the spread between processes. A few processes know little about their
spread, so what is seen is weighed with what is usual for the clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

Samples = Sequence[int]
"""Of one process, in ns."""

_USUAL_WEIGHT = 4
"""What is usual counts like so many degrees of freedom."""
_QUANTILES = (2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t, two-sided 95 %, for 4 to 10 degrees of freedom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """One of the two clocks."""

    usual_spread: float
    """The relative standard deviation between processes that is usual."""


WALL = Clock(usual_spread=0.05)
"""Over five processes on one machine the same step took 227 to 293 ms."""
GPU = Clock(usual_spread=0.001)
"""Over the same five processes 84.81 to 84.97 ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Now ÷ before, with the interval it lies in."""

    value: float
    low: float
    high: float


def ratio(now: Sequence[Samples], before: Sequence[Samples], clock: Clock) -> Ratio:
    """The ratio of two sets of processes."""
    sides = [[math.log(median(one)) for one in side] for side in (now, before)]
    deviations = [one - median(side) for side in sides for one in side]
    freedom = len(deviations) - len(sides)
    spread = (_USUAL_WEIGHT * clock.usual_spread**2 + sum(one**2 for one in deviations)) / (
        _USUAL_WEIGHT + freedom
    )
    variance = sum(
        (spread + fmean(_median_variance(one) for one in side)) / len(side)
        for side in (now, before)
    )
    return _ratio(median(sides[0]) - median(sides[1]), math.sqrt(variance), freedom)


def ratio_of_pairs(now: Sequence[Samples], before: Sequence[Samples], clock: Clock) -> Ratio:
    """The ratio of two processes whose steps were measured in turn: drift is in both of a pair.

    More pairs tell more about the two processes, not about other processes.
    """
    logs = [math.log(median(one) / median(other)) for one, other in zip(now, before, strict=True)]
    freedom = len(logs) - 1
    between_pairs = sum((one - fmean(logs)) ** 2 for one in logs) / max(1, freedom)
    variance = 2 * clock.usual_spread**2 + between_pairs / len(logs)
    return _ratio(fmean(logs), math.sqrt(variance), freedom)


def _ratio(log: float, error: float, freedom: int) -> Ratio:
    margin = error * _QUANTILES[min(freedom, len(_QUANTILES) - 1)]
    return Ratio(value=math.exp(log), low=math.exp(log - margin), high=math.exp(log + margin))


def _median_variance(samples: Samples) -> float:
    """How uncertain the median of one process is, by the median deviation of its logarithms."""
    logs = [math.log(one) for one in samples]
    middle = median(logs)
    deviation = 1.4826 * median([abs(one - middle) for one in logs])
    return math.pi / 2 * deviation**2 / len(logs)
