"""From claim and measurement to a judged case."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from pytest_vramfit.baseline import Entry, Process
from pytest_vramfit.baseline.entry import changed_fields
from pytest_vramfit.measurement import Engine, Measurement, Memory
from pytest_vramfit.spec import Claim, Limits
from pytest_vramfit.verdict.case import Case, Check, Finding, limited, unchecked
from pytest_vramfit.verdict.fallback import doubted, may_leave_the_card
from pytest_vramfit.verdict.memory import (
    card_of,
    has_headroom,
    headroom,
    no_oom,
    peak_within_vram,
    phases_within_vram,
    steady,
)
from pytest_vramfit.verdict.regression import regressions, throttled
from pytest_vramfit.verdict.trained import trained
from pytest_vramfit.verdict.witnesses import resident

_TIMES = ("step_time", "gpu_time")
_NARROWER = 0.7
"""The interval with three processes on both sides, of that with one on this side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """What a case is compared with: an entry, or why there is none."""

    entry: Entry | None = None
    renamed: bool = False
    """Whether the entry stands under another nodeid."""
    in_turn: bool = False
    """Whether the entry was measured in turn with the case, in another environment."""
    without: Finding | None = None
    """Why there is nothing to compare with, where it is not just that nothing was recorded."""


def baseline_checks(limits: Limits) -> list[str]:
    """The checks against a baseline that the limits do not switch off."""
    ratios = {
        "step_time": limits.step_ratio,
        "gpu_time": limits.gpu_ratio,
        "peak_baseline": limits.peak_ratio,
    }
    return [name for name, one in ratios.items() if one is not None]


def judge(
    nodeid: str,
    engine: Engine,
    claim: Claim,
    measurement: Measurement,
    capped: Measurement | None = None,
    *,
    more: tuple[Measurement, ...] = (),
    reference: Reference | None = None,
) -> Case:
    """Every check of one case.

    ``capped`` is the run that :func:`capacity_to_try` asked for, ``more`` what was measured of the
    case again because a time was in doubt, ``reference`` what it is compared with.
    """
    memory = measurement.memory
    checks = [no_oom(claim, measurement)]
    reference = reference or Reference()
    if memory is not None and measurement.prediction is not None:
        checks += _of_prediction(claim, measurement, memory, capped)
    elif memory is None or measurement.evidence is None:
        names = ["peak_within_vram", "trained", "steady", *baseline_checks(claim.limits)]
        names += claim.schedule.phases
        names += ["headroom"] if has_headroom(claim) else []
        names += ["max_step"] if claim.limits.max_step_ns is not None else []
        checks += [unchecked(name, Finding(kind="did_not_run")) for name in names]
    else:
        checks += [
            peak_within_vram(claim, measurement, memory),
            *phases_within_vram(claim, measurement),
            *headroom(claim, measurement, memory, capped),
            trained(claim, engine, measurement.evidence),
            steady(claim, memory),
            *_max_step(claim, measurement),
            *_regressions(nodeid, engine, claim, (measurement, *more), reference),
        ]
    seen = resident(engine, claim, measurement)
    doubt = may_leave_the_card(measurement) if engine == "gpu" else None
    if doubt is not None:
        checks = [doubted(check, measurement, doubt) for check in checks]
    checks.append(seen)
    not_made = claim.limits.require - {check.name for check in checks}
    checks += [unchecked(name, Finding(kind="not_asked")) for name in sorted(not_made)]
    checks = [_required(check, claim.limits.require) for check in checks]
    return Case(
        nodeid=nodeid,
        engine=engine,
        claim=claim,
        card=card_of(claim, measurement),
        measurement=measurement,
        checks=tuple(checks),
        more=more,
        against=reference.entry if reference.in_turn else None,
        throttled=throttled(
            [Process.of(one) for one in (measurement, *more)],
            [one.conditions for one in (measurement, *more) if one.conditions],
        ),
    )


def _of_prediction(
    claim: Claim, measurement: Measurement, memory: Memory, capped: Measurement | None
) -> Iterator[Check]:
    """The checks that need no device; the others are not made."""
    yield peak_within_vram(claim, measurement, memory)
    yield from phases_within_vram(claim, measurement)
    yield from headroom(claim, measurement, memory, capped)
    names = ["trained", "steady", *baseline_checks(claim.limits)]
    names += ["max_step"] if claim.limits.max_step_ns is not None else []
    for name in names:
        yield unchecked(name, Finding(kind="nothing_ran"))


def _regressions(
    nodeid: str,
    engine: Engine,
    claim: Claim,
    measurements: tuple[Measurement, ...],
    reference: Reference,
) -> Iterator[Check]:
    """The checks against the reference, or why there is none to check against."""
    reason = reference.without
    if reason is None and reference.entry is not None:
        spec, before = claim.spec, reference.entry
        if before.digest != spec.digest:
            # 1 and 1.0 are equal, their digests are not; a newer version's digest is not known
            digests = ("digest", before.digest, spec.digest)
            changes = changed_fields(before.spec, spec.to_json()) or [digests]
            names = tuple(chain(*((name, str(old), str(new)) for name, old, new in changes)))
            reason = Finding(kind="config_changed", names=names)
        else:
            now = Entry.of(nodeid, engine, spec, [one for one in measurements if one.memory])
            conditions = [one.conditions for one in measurements if one.conditions]
            for check in regressions(
                claim.limits, now, before, conditions, in_turn=reference.in_turn
            ):
                yield _adopted(check, reference)
            return
    reason = reason or Finding(kind="no_baseline")
    for name in baseline_checks(claim.limits):
        without_gpu = name == "gpu_time" and engine != "gpu"
        yield unchecked(name, Finding(kind="no_gpu") if without_gpu else reason)


def _adopted(check: Check, reference: Reference) -> Check:
    """The check, with the other name its baseline was found under."""
    if not reference.renamed or reference.entry is None:
        return check
    renamed = Finding(kind="renamed", names=(reference.entry.nodeid,))
    return replace(check, findings=(*check.findings, renamed))


def _required(check: Check, required: frozenset[str]) -> Check:
    """A failure where the check had to be made and was not; recording it anew makes it."""
    kinds = {finding.kind for finding in check.findings}
    if check.status != "unchecked" or check.name not in required or "recorded" in kinds:
        return check
    return replace(check, status="fail", findings=(Finding(kind="required"), *check.findings))


def in_doubt(case: Case) -> bool:
    """Whether a time straddles its limit so that measuring more has a prospect of deciding it."""
    return any(_can_be_decided(check) for check in case.checks)


def _can_be_decided(check: Check) -> bool:
    reasons = [finding.kind for finding in check.findings if finding.kind != "required"]
    if reasons[:1] != ["too_noisy"] or not (check.value and check.limit and check.ratio):
        return False
    assert check.interval is not None
    limit = check.limit / check.value * check.ratio
    low, high = (check.ratio * math.pow(end / check.ratio, _NARROWER) for end in check.interval)
    return high <= limit or low > limit


def to_confirm(case: Case) -> bool:
    """Whether a check against the baseline failed, so that a fresh process must confirm it."""
    return any(
        check.status == "fail" and check.name in (*_TIMES, "peak_baseline") and check.ratio
        for check in case.checks
    )


def _max_step(claim: Claim, measurement: Measurement) -> Iterator[Check]:
    limit, step_ns = claim.limits.max_step_ns, measurement.median_step_ns
    if limit is not None and step_ns is not None:
        yield limited("max_step", step_ns, limit, "ns")
