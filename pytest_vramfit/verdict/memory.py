"""The checks of memory: what the steps and the phases needed, against what the card has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_vramfit.measurement import (
    HeldChange,
    Measurement,
    Memory,
    OutOfMemory,
    Prediction,
)
from pytest_vramfit.quantity import NO_HEADROOM
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict.case import Card, Check, Finding, limited, unchecked

_ENOUGH_TO_GROW = 2


def card_of(claim: Claim, measurement: Measurement) -> Card:
    """The memory to judge by: the marker's card, else the device."""
    device, size = measurement.device, claim.limits.card_bytes
    made_for_it = measurement.prediction is not None or device.emulated_on is not None
    if size is None or made_for_it or size == device.total_bytes:
        return Card(
            name=device.name,
            total_bytes=device.total_bytes,
            usable_bytes=device.usable_bytes,
            emulated=device.emulated_on is not None,
            held_bytes=device.held_bytes,
        )
    return Card(name=device.name, total_bytes=size, usable_bytes=size)


def capacity_to_try(claim: Claim, measurement: Measurement) -> int | None:
    """What the allocator may reserve in a second run that decides the headroom, if one is needed.

    The allocator's cache may fill what must stay free although the step does not need it; only a
    run with that much less memory tells. A prediction is made anew in any case: it knows how near
    to the limit is too close to tell. A card that serves from host memory what does not fit never
    makes the allocator give back its cache.
    """
    memory = measurement.memory
    if memory is None or memory.peak_reserved_bytes is None or not has_headroom(claim):
        return None
    room = _room(claim, measurement, memory)
    if measurement.prediction is not None:
        return room
    if claim.limits.overflow == "spill":
        return None
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
        checks = [no_oom(claim, measurement)]
        if memory is not None:
            checks += [
                peak_within_vram(claim, measurement, memory),
                *phases_within_vram(claim, measurement),
                *headroom(claim, measurement, memory, None),
            ]
        if any(_could_be_decided_by(change, check) for check in checks):
            return change
    return None if capped is None else contamination(_without_headroom(claim), capped)


def _could_be_decided_by(change: HeldChange, check: Check) -> bool:
    if check.ran_out:
        return change.bytes > 0
    if check.value is None or check.limit is None:
        return False
    return abs(check.value - check.limit) <= abs(change.bytes)


def _without_headroom(claim: Claim) -> Claim:
    return replace(claim, limits=replace(claim.limits, headroom=NO_HEADROOM))


def no_oom(claim: Claim, measurement: Measurement) -> Check:
    """The training steps never asked for more than there was."""
    oom, prediction = measurement.oom, measurement.prediction
    refuses = claim.limits.overflow == "oom"
    if prediction is not None and prediction.fits is None and refuses:
        memory = measurement.memory
        assert memory is not None
        room = measurement.device.usable_bytes - (memory.outside_allocator_bytes or 0)
        return unchecked("no_oom", _undecided(claim, memory, room, prediction))
    return Check(name="no_oom", status="pass") if oom is None else _ran_out("no_oom", oom)


def _undecided(claim: Claim, memory: Memory, room: int, prediction: Prediction) -> Finding:
    """Why it cannot be told whether the allocator gets through with the room."""
    refuses = claim.limits.overflow == "oom"
    if refuses and memory.peak_allocated_bytes < room * (1 - prediction.margin):
        return Finding(kind="cache_in_the_way")
    return too_close(prediction)


def too_close(prediction: Prediction) -> Finding:
    """That predictions are not so exact."""
    return Finding(kind="too_close", names=(f"{100 * prediction.margin:g} %",))


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


def peak_within_vram(claim: Claim, measurement: Measurement, memory: Memory) -> Check:
    """All that the step needs on the card: its peak, and what lies outside the allocator."""
    check = _within_vram("peak_within_vram", memory.peak_allocated_bytes, claim, measurement)
    if measurement.device.held_change is None:
        return check
    return replace(check, findings=(*check.findings, Finding(kind="others_changed")))


def _within_vram(name: str, peak: int, claim: Claim, measurement: Measurement) -> Check:
    memory, prediction = measurement.memory, measurement.prediction
    assert memory is not None
    needed = peak + (memory.outside_allocator_bytes or 0)
    usable = card_of(claim, measurement).usable_bytes
    check = limited(name, needed, usable, "bytes")
    if prediction is not None and abs(needed - usable) <= prediction.margin * usable:
        return replace(check, status="unchecked", findings=(too_close(prediction),))
    return check


def phases_within_vram(claim: Claim, measurement: Measurement) -> Iterator[Check]:
    """What follows the training steps, each by itself: its peak, and what is outside the
    allocator.
    """
    for phase in claim.schedule.phases:
        seen = measurement.phases.get(phase)
        if seen is None:
            yield unchecked(phase, Finding(kind="phase_before_ran_out"))
        elif seen.oom is not None:
            yield _ran_out(phase, seen.oom)
        else:
            assert seen.peak_bytes is not None
            check = _within_vram(phase, seen.peak_bytes, claim, measurement)
            prediction = measurement.prediction
            if seen.off_card_bytes:
                off_card = Finding(kind="phase_off_card", names=(str(seen.off_card_bytes),))
                check = replace(check, status="fail", findings=(off_card,))
            elif check.status == "pass" and prediction and phase in prediction.undecided:
                refuses = claim.limits.overflow == "oom"
                doubt = Finding(kind="cache_in_the_way") if refuses else too_close(prediction)
                check = replace(check, status="unchecked", findings=(doubt,))
            yield check


def headroom(
    claim: Claim, measurement: Measurement, memory: Memory, capped: Measurement | None
) -> Iterator[Check]:
    """What must stay free does, where the claim asks for it; ``capped`` ran with that much less."""
    if not has_headroom(claim):
        return
    room = _room(claim, measurement, memory)
    if capped is None:
        yield limited("headroom", _needed(claim, memory), room, "bytes")
    elif capped.prediction is not None:
        yield _predicted_headroom(claim, memory, room, capped.prediction)
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


def _predicted_headroom(claim: Claim, memory: Memory, room: int, prediction: Prediction) -> Check:
    """``prediction`` was made for the room."""
    fits = prediction.fits
    return Check(
        name="headroom",
        status="unchecked" if fits is None else "pass" if fits else "fail",
        value=_needed(claim, memory) if fits else memory.peak_reserved_bytes,
        limit=room,
        unit="bytes",
        findings=(_undecided(claim, memory, room, prediction),) if fits is None else (),
    )


def _needed(claim: Claim, memory: Memory) -> int:
    """What the allocator cannot do without. A card that serves from host memory what does not fit
    never makes it give back its cache.
    """
    if claim.limits.overflow == "oom" or memory.peak_reserved_bytes is None:
        return memory.peak_allocated_bytes
    return memory.peak_reserved_bytes


def steady(claim: Claim, memory: Memory) -> Check:
    """Neither allocated nor reserved bytes are more after the last timed step than after the
    first. With batches of varied lengths what is reserved may grow: that is fragmentation.
    """
    if len(memory.allocated_after_step_bytes) < _ENOUGH_TO_GROW:
        return unchecked("steady", Finding(kind="one_step"))
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


def _room(claim: Claim, measurement: Measurement, memory: Memory) -> int:
    """The bytes the allocator may have when headroom and everything beside it stay untouched."""
    usable = card_of(claim, measurement).usable_bytes
    beside = memory.outside_allocator_bytes or 0
    return max(0, usable - claim.limits.headroom.of(usable) - beside)


def has_headroom(claim: Claim) -> bool:
    """Whether the claim asks for memory that stays free."""
    return claim.limits.headroom != NO_HEADROOM
