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


GPU = Clock(usual_spread=0.001)
"""Over twelve processes the same step took 82.09 to 82.20 ms of GPU time, ..."""
_HOST_SPREAD = 0.2
"""... and 256 to 405 ms by the wall clock. Another, on the GPU for a tenth of the time instead of a
quarter, 38.10 to 38.16 and 237 to 452: what varies is the host's part."""
_LEAST_WALL_SPREAD = 0.01


def wall_clock(host_share: float) -> Clock:
    """The wall clock of a step for this share of which the GPU does not work."""
    return Clock(usual_spread=_LEAST_WALL_SPREAD + _HOST_SPREAD * host_share)


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
