"""The values of a verdict: findings, checks, the card, the case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_vramfit.measurement import Engine, Measurement
from pytest_vramfit.spec import CHECKS, Claim

Status = Literal["pass", "fail", "unchecked"]
Outcome = Literal[
    "fits", "oom", "over_vram", "spilled", "no_headroom", "invalid", "slower", "heavier"
]

_FAILS_AS: dict[str, Outcome] = {
    "no_oom": "oom",
    "peak_within_vram": "over_vram",
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
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """The memory that is judged by."""

    name: str
    total_bytes: int
    usable_bytes: int
    emulated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One case, measured and judged."""

    nodeid: str
    engine: Engine
    claim: Claim
    card: Card
    measurement: Measurement
    checks: tuple[Check, ...]

    @property
    def outcome(self) -> Outcome:
        """``fits``, or what the first failed check makes it."""
        failed = {check.name for check in self.checks if check.status == "fail"}
        return next((_FAILS_AS[name] for name in CHECKS if name in failed), "fits")

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens trained on in a second of wall time, at the median step."""
        step_ns = self.measurement.median_step_ns
        return self.claim.spec.tokens * 1e9 / step_ns if step_ns else None

    @property
    def seconds_per_10k_tokens(self) -> float | None:
        """Wall time for ten thousand tokens."""
        return 1e4 / self.tokens_per_second if self.tokens_per_second else None
