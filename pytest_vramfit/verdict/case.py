"""The values of a verdict: findings, checks, the card, the case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_vramfit.baseline import Entry
from pytest_vramfit.estimating.advice import Advice
from pytest_vramfit.measurement import Engine, Measurement
from pytest_vramfit.spec import CHECKS, Claim

Status = Literal["pass", "fail", "unchecked"]
Outcome = Literal[
    "fits", "oom", "over_vram", "spilled", "no_headroom", "invalid", "slower", "heavier"
]

_FAILS_AS: dict[str, Outcome] = {
    "no_oom": "oom",
    "peak_within_vram": "over_vram",
    "eval": "over_vram",
    "save": "over_vram",
    "merge": "over_vram",
    "resident": "spilled",
    "headroom": "no_headroom",
    "trained": "invalid",
    "max_step": "slower",
    "step_time": "slower",
    "gpu_time": "slower",
    "steady": "heavier",
    "peak_baseline": "heavier",
}
"""The outcome of a case whose first failed check is this one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One fact behind a check that did not pass."""

    kind: str
    """Named for :mod:`pytest_vramfit.reporting.words`, which has a sentence for each."""
    names: tuple[str, ...] = ()
    """The tensors, dtypes or numbers it is about."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One named claim and how it went."""

    name: str
    status: Status
    value: int | None = None
    limit: int | None = None
    unit: Literal["bytes", "ns", "count"] | None = None
    ratio: float | None = None
    """Measured ÷ baseline."""
    interval: tuple[float, float] | None = None
    """That the ratio lies in, with the spread between processes."""
    findings: tuple[Finding, ...] = ()

    @property
    def ran_out(self) -> bool:
        """Whether memory ran out in what it is about."""
        return any(finding.kind == "out_of_memory" for finding in self.findings)

    @property
    def left_the_card(self) -> bool:
        """Whether it is about a phase after the steps, whose memory was seen off the card."""
        return any(finding.kind == "phase_off_card" for finding in self.findings)


def unchecked(name: str, reason: Finding) -> Check:
    """A check that was not made, and why."""
    return Check(name=name, status="unchecked", findings=(reason,))


def limited(name: str, value: int, limit: int, unit: Literal["bytes", "ns", "count"]) -> Check:
    """A check that passes at or below its limit."""
    status: Status = "pass" if value <= limit else "fail"
    return Check(name=name, status=status, value=value, limit=limit, unit=unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """The memory that is judged by."""

    name: str
    total_bytes: int
    usable_bytes: int
    emulated: bool = False
    held_bytes: int = 0
    """What others held at the start, so that it was not usable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One case, measured and judged."""

    nodeid: str
    engine: Engine
    claim: Claim
    card: Card
    measurement: Measurement
    checks: tuple[Check, ...]
    more: tuple[Measurement, ...] = ()
    """Of the same case, taken because the first left a time in doubt."""
    against: Entry | None = None
    """The same case in another environment, where it was compared with that, not a baseline."""
    throttled: tuple[str, ...] = ()
    """Why the GPU's clocks were held down from outside while it was measured."""
    advice: Advice | None = None
    """What would make it fit; None where it was not asked for, or its training step fits."""

    @property
    def outcome(self) -> Outcome:
        """``fits``, or what the first failed check makes it."""
        failed = {check.name: check for check in self.checks if check.status == "fail"}
        if self.seen_off_card and "no_oom" not in failed:  # not only more than the card has
            return "spilled"
        first = next((failed[name] for name in CHECKS if name in failed), None)
        if first is None:
            return "fits"
        if first.ran_out:
            return "oom"
        return "spilled" if first.left_the_card else _FAILS_AS[first.name]

    @property
    def seen_off_card(self) -> bool:
        """Whether memory of the training steps was seen off the card, or is predicted there."""
        return any(
            one.name == "resident" and one.status == "fail" and one.value is not None
            for one in self.checks
        )

    @property
    def phase_peaks(self) -> dict[str, int]:
        """The peak of what followed the training steps, where it got through."""
        phases = self.measurement.phases.items()
        return {name: one.peak_bytes for name, one in phases if one.peak_bytes is not None}

    @property
    def in_turn(self) -> bool:
        """Whether it was measured in turn with what it was compared with."""
        return self.against is not None

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """All that got through, the first one first."""
        return tuple(one for one in (self.measurement, *self.more) if one.memory is not None)

    @property
    def joules_per_10k_tokens(self) -> float | None:
        """Energy of the GPU for ten thousand tokens; an upper bound where only its power limit is
        known.
        """
        measurement = self.measurement
        conditions = measurement.conditions
        if conditions is None or conditions.energy_mj is None or not measurement.step_ns:
            return None
        if self.claim.spec.lengths != "full":
            return None
        tokens = self.claim.spec.tokens * len(measurement.step_ns)
        return conditions.energy_mj / 1000 / tokens * 1e4

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens trained on in a second of wall time, at the median step; None where steps differ
        in their tokens.
        """
        spec, step_ns = self.claim.spec, self.measurement.median_step_ns
        return spec.tokens * 1e9 / step_ns if step_ns and spec.lengths == "full" else None

    @property
    def seconds_per_10k_tokens(self) -> float | None:
        """Wall time for ten thousand tokens."""
        return 1e4 / self.tokens_per_second if self.tokens_per_second else None
