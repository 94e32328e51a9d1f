"""From claim and measurement to a judged case."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from pytest_vramfit.baseline import Entry, Process
from pytest_vramfit.baseline.entry import changed_fields
from pytest_vramfit.measurement import Engine, HeldChange, Measurement, Memory, OutOfMemory
from pytest_vramfit.quantity import NO_HEADROOM
from pytest_vramfit.spec import Claim, Limits
from pytest_vramfit.verdict.case import Card, Case, Check, Finding, Status
from pytest_vramfit.verdict.fallback import doubted, may_leave_the_card
from pytest_vramfit.verdict.regression import regressions, throttled
from pytest_vramfit.verdict.trained import trained

_NOT_BUILT = ("resident",)
_ENOUGH_TO_GROW = 2
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


def card_of(claim: Claim, measurement: Measurement) -> Card:
    """The memory to judge by: the marker's card, else the device."""
    device, size = measurement.device, claim.limits.card_bytes
    if size is None:
        return Card(
            name=device.name,
            total_bytes=device.total_bytes,
            usable_bytes=device.usable_bytes,
            held_bytes=device.held_bytes,
        )
    return Card(name=device.name, total_bytes=size, usable_bytes=size)


def capacity_to_try(claim: Claim, measurement: Measurement) -> int | None:
    """What the allocator may reserve in a second run that decides the headroom, if one is needed.

    The allocator's cache may fill what must stay free although the step does not need it; only a
    run with that much less memory tells.
    """
    memory = measurement.memory
    if memory is None or memory.peak_reserved_bytes is None or not _has_headroom(claim):
        return None
    room = _room(claim, measurement, memory)
    needed = memory.peak_allocated_bytes <= room < memory.peak_reserved_bytes
    return room if needed else None


def contamination(
    claim: Claim, measurement: Measurement, capped: Measurement | None = None
) -> HeldChange | None:
    """What others took or gave back while the case ran, if that could decide a check of memory.

    Then the case cannot be judged. ``capped`` is the run that :func:`capacity_to_try` asked for.
    """
    change, memory = measurement.device.held_change, measurement.memory
    if change is not None:
        checks = [_no_oom(measurement)]
        if memory is not None:
            checks += [
                _peak_within_vram(claim, measurement, memory),
                *_phases(claim, measurement, memory),
                *_headroom(claim, measurement, memory, None),
            ]
        if any(_could_be_decided_by(change, check) for check in checks):
            return change
    return None if capped is None else contamination(_without_headroom(claim), capped)


def _could_be_decided_by(change: HeldChange, check: Check) -> bool:
    if any(finding.kind == "out_of_memory" for finding in check.findings):
        return change.bytes > 0
    if check.value is None or check.limit is None:
        return False
    return abs(check.value - check.limit) <= abs(change.bytes)


def _without_headroom(claim: Claim) -> Claim:
    return replace(claim, limits=replace(claim.limits, headroom=NO_HEADROOM))


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
    checks = [_no_oom(measurement)]
    reference = reference or Reference()
    if memory is None or measurement.evidence is None:
        names = ["peak_within_vram", "trained", "steady", *baseline_checks(claim.limits)]
        names += claim.schedule.phases
        names += ["headroom"] if _has_headroom(claim) else []
        names += ["max_step"] if claim.limits.max_step_ns is not None else []
        checks += [_unchecked(name, Finding(kind="did_not_run")) for name in names]
    else:
        checks += [
            _peak_within_vram(claim, measurement, memory),
            *_phases(claim, measurement, memory),
            *_headroom(claim, measurement, memory, capped),
            trained(claim, engine, measurement.evidence),
            _steady(claim, memory),
            *_max_step(claim, measurement),
            *_regressions(nodeid, engine, claim, (measurement, *more), reference),
        ]
    doubt = may_leave_the_card(measurement) if engine == "gpu" else None
    if doubt is not None:
        checks = [doubted(check, doubt) for check in checks]
    checks += [_unchecked(name, Finding(kind="not_built")) for name in _NOT_BUILT]
    not_made = claim.limits.require - {check.name for check in checks}
    checks += [_unchecked(name, Finding(kind="not_asked")) for name in sorted(not_made)]
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
        yield _unchecked(name, Finding(kind="no_gpu") if without_gpu else reason)


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


def _room(claim: Claim, measurement: Measurement, memory: Memory) -> int:
    """The bytes the allocator may have when headroom and everything beside it stay untouched."""
    usable = card_of(claim, measurement).usable_bytes
    beside = memory.outside_allocator_bytes or 0
    return max(0, usable - claim.limits.headroom.of(usable) - beside)


def _has_headroom(claim: Claim) -> bool:
    return claim.limits.headroom != NO_HEADROOM


def _unchecked(name: str, reason: Finding) -> Check:
    return Check(name=name, status="unchecked", findings=(reason,))


def _check(name: str, value: int, limit: int, unit: Literal["bytes", "ns", "count"]) -> Check:
    status: Status = "pass" if value <= limit else "fail"
    return Check(name=name, status=status, value=value, limit=limit, unit=unit)


def _no_oom(measurement: Measurement) -> Check:
    oom = measurement.oom
    return Check(name="no_oom", status="pass") if oom is None else _ran_out("no_oom", oom)


def _ran_out(name: str, oom: OutOfMemory) -> Check:
    """The check that fails where the device could not serve a request."""
    return Check(
        name=name,
        status="fail",
        value=oom.requested_bytes,
        limit=oom.free_bytes,
        unit="bytes",
        findings=(Finding(kind="out_of_memory"),),
    )


def _peak_within_vram(claim: Claim, measurement: Measurement, memory: Memory) -> Check:
    """All that the step needs on the card: its peak, and what lies outside the allocator."""
    peak = memory.peak_allocated_bytes + (memory.outside_allocator_bytes or 0)
    check = _check("peak_within_vram", peak, card_of(claim, measurement).usable_bytes, "bytes")
    changed = measurement.device.held_change is not None
    return replace(check, findings=(Finding(kind="others_changed"),) if changed else ())


def _phases(claim: Claim, measurement: Measurement, memory: Memory) -> Iterator[Check]:
    """What follows the training steps, each by itself: its peak, and what is outside the
    allocator.
    """
    usable = card_of(claim, measurement).usable_bytes
    for phase in claim.schedule.phases:
        seen = measurement.phases.get(phase)
        if seen is None:
            yield _unchecked(phase, Finding(kind="phase_before_ran_out"))
        elif seen.oom is not None:
            yield _ran_out(phase, seen.oom)
        else:
            assert seen.peak_bytes is not None
            peak = seen.peak_bytes + (memory.outside_allocator_bytes or 0)
            yield _check(phase, peak, usable, "bytes")


def _headroom(
    claim: Claim, measurement: Measurement, memory: Memory, capped: Measurement | None
) -> Iterator[Check]:
    if not _has_headroom(claim):
        return
    room = _room(claim, measurement, memory)
    if capped is None:
        yield _check("headroom", memory.peak_allocated_bytes, room, "bytes")
    else:
        ran = capped.oom is None
        yield Check(
            name="headroom",
            status="pass" if ran else "fail",
            value=memory.peak_reserved_bytes,
            limit=room,
            unit="bytes",
            findings=(Finding(kind="ran_with_less" if ran else "oom_with_less"),),
        )


def _steady(claim: Claim, memory: Memory) -> Check:
    """Neither allocated nor reserved bytes are more after the last timed step than after the
    first. With batches of varied lengths what is reserved may grow: that is fragmentation.
    """
    if len(memory.allocated_after_step_bytes) < _ENOUGH_TO_GROW:
        return _unchecked("steady", Finding(kind="one_step"))
    growth = {"allocated": _growth(memory.allocated_after_step_bytes)}
    findings = []
    if memory.reserved_after_step_bytes is not None:
        reserved = _growth(memory.reserved_after_step_bytes)
        if claim.spec.lengths == "full":
            growth["reserved"] = reserved
        else:
            names = (str(reserved), str(memory.allocator_retries))
            findings.append(Finding(kind="fragmented", names=names))
    grown = tuple(name for name, value in growth.items() if value > 0)
    if grown:
        findings.insert(0, Finding(kind="grew", names=grown))
    return Check(
        name="steady",
        status="fail" if grown else "pass",
        value=max(growth.values()),
        limit=0,
        unit="bytes",
        findings=tuple(findings),
    )


def _growth(series: tuple[int, ...]) -> int:
    return series[-1] - series[0]


def _max_step(claim: Claim, measurement: Measurement) -> Iterator[Check]:
    limit, step_ns = claim.limits.max_step_ns, measurement.median_step_ns
    if limit is not None and step_ns is not None:
        yield _check("max_step", step_ns, limit, "ns")
