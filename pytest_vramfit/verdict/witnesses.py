"""Whether memory left the card: the check, and what every witness of it saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_vramfit.measurement import Engine, Measurement, Memory, Prediction
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict.case import Check, Finding, unchecked
from pytest_vramfit.verdict.fallback import may_leave_the_card
from pytest_vramfit.verdict.memory import card_of, too_close

_MUCH_PCIE_SHARE = 0.05
"""Of the allocator's memory, over the bus in a step: batches and the loss are kilobytes."""
_BUSY_PERCENT, _IDLE_PERCENT = 90, 5
"""A GPU that is always busy and hardly reads its memory waits for another one."""
_MUCH_HOST_BYTES = 256 * 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """One that may know whether memory left the card."""

    name: str
    saw: Literal["off", "on", "nothing"]
    """Memory off the card, none, or nothing that tells."""
    finding: Finding


def resident(engine: Engine, claim: Claim, measurement: Measurement) -> Check:
    """All that the allocator had after the timed steps was on the card."""
    residency = measurement.residency
    if measurement.prediction is not None:
        return _predicted(claim, measurement, measurement.prediction)
    if engine != "gpu":
        return unchecked("resident", Finding(kind="no_card"))
    if measurement.memory is None:
        return unchecked("resident", Finding(kind="did_not_run"))
    if residency is None:
        return unchecked("resident", Finding(kind="cannot_look"))
    off_card = residency.off_card_bytes
    return Check(
        name="resident",
        status="fail" if off_card else "pass",
        value=off_card,
        limit=0,
        unit="bytes",
    )


def _predicted(claim: Claim, measurement: Measurement, prediction: Prediction) -> Check:
    """Of a card that refuses what does not fit there is nothing to tell."""
    memory = measurement.memory
    if claim.limits.overflow == "oom" or memory is None:
        return unchecked("resident", Finding(kind="nothing_ran"))
    if prediction.fits is None:
        return unchecked("resident", too_close(prediction))
    return Check(
        name="resident",
        status="pass" if prediction.fits else "fail",
        value=max(0, _over(claim, measurement, memory)),
        limit=0,
        unit="bytes",
        findings=() if prediction.fits else (Finding(kind="cache_spills"),),
    )


def _over(claim: Claim, measurement: Measurement, memory: Memory) -> int:
    """How much more than the card has was reserved and beside it; below zero: less."""
    assert memory.peak_reserved_bytes is not None
    beside = memory.outside_allocator_bytes or 0
    return memory.peak_reserved_bytes + beside - card_of(claim, measurement).usable_bytes


def witnesses(
    claim: Claim, measurement: Measurement, checks: Sequence[Check] = ()
) -> Iterator[Witness]:
    """Each with what it saw, whether or not they agree. ``checks``: those of the case, of which one
    is the clock's.
    """
    memory = measurement.memory
    if memory is None or memory.peak_reserved_bytes is None or measurement.prediction is not None:
        return
    over = _over(claim, measurement, memory)
    yield _seen("accounting", over > 0, str(max(0, over)), str(-min(0, over)))
    yield _residency(measurement)
    yield _pcie(measurement, memory.peak_reserved_bytes)
    yield _utilisation(measurement)
    yield _retries(memory)
    yield _grown("host_memory", memory.host_growth_bytes, memory)
    if memory.non_local_growth_bytes is not None or may_leave_the_card(measurement):
        yield _grown("non_local", memory.non_local_growth_bytes, memory, memory.local_bytes or 0)
    yield _clock(checks)


def _residency(measurement: Measurement) -> Witness:
    residency = measurement.residency
    if residency is None:
        return _blind("residency")
    return _seen(
        "residency",
        residency.off_card_bytes > 0,
        *map(str, (residency.off_card_bytes, residency.uncertainty_bytes)),
        f"{residency.host_bytes_per_s / 1e9:,.0f}",
        f"{residency.card_bytes_per_s / 1e9:,.0f}",
    )


def _pcie(measurement: Measurement, reserved_bytes: int) -> Witness:
    conditions, steps = measurement.conditions, len(measurement.step_ns)
    if conditions is None or conditions.pcie_bytes is None or not steps:
        return _blind("pcie")
    per_step = conditions.pcie_bytes // steps
    return _seen("pcie", per_step > _MUCH_PCIE_SHARE * reserved_bytes, str(per_step))


def _utilisation(measurement: Measurement) -> Witness:
    conditions = measurement.conditions
    if conditions is None or conditions.gpu_busy_percent is None:
        return _blind("utilisation")
    busy, reading = conditions.gpu_busy_percent, conditions.memory_busy_percent or 0
    waits = busy >= _BUSY_PERCENT and reading <= _IDLE_PERCENT
    return _seen("utilisation", waits, str(busy), str(reading))


def _retries(memory: Memory) -> Witness:
    retries = memory.allocator_retries
    return _blind("retries") if retries is None else _seen("retries", retries > 0, str(retries))


def _grown(name: str, growth_bytes: int | None, memory: Memory, *beside: int) -> Witness:
    """Of memory that is the host's, in which paged optimizers may have their states as well: how
    many of them are there or on the card is not told. ``beside``: what else its sentence names.
    """
    if growth_bytes is None:
        return _blind(name)
    surely = growth_bytes - (memory.managed_bytes or 0)
    figures = tuple(map(str, (growth_bytes, *beside)))
    if surely <= _MUCH_HOST_BYTES < growth_bytes:
        return Witness(name=name, saw="nothing", finding=Finding(kind=name, names=figures))
    return _seen(name, surely > _MUCH_HOST_BYTES, *figures)


def _clock(checks: Sequence[Check]) -> Witness:
    check = next((one for one in checks if one.name == "step_time"), None)
    if check is None or check.ratio is None:
        return _blind("step_time")
    return _seen("step_time", check.status == "fail", f"{check.ratio:.2f}")


def _seen(name: str, off: bool, *figures: str) -> Witness:  # noqa: FBT001
    return Witness(name=name, saw="off" if off else "on", finding=Finding(kind=name, names=figures))


def _blind(name: str) -> Witness:
    return Witness(name=name, saw="nothing", finding=Finding(kind="blind"))
