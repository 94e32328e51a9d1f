"""From claim and measurement to named checks: pass, fail or unchecked. No prose, no pytest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pytest_vramfit.measurement import Engine, Evidence, Measurement, Memory
from pytest_vramfit.quantity import NO_HEADROOM
from pytest_vramfit.spec import Claim, TrainSpec

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
"""The outcome of a case whose first failed check is this one, in the order of precedence."""

_NOT_BUILT = ("resident", "step_time", "gpu_time", "peak_baseline")
_ENOUGH_TO_GROW = 2
_QUANTISED_SHARE = 0.9
"""Of the base's matrices; routers and the like stay unquantised in any model."""


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
        return next((_FAILS_AS[name] for name in _FAILS_AS if name in failed), "fits")


def card_of(claim: Claim, measurement: Measurement) -> Card:
    """The memory to judge by: the marker's card, else the device."""
    device, size = measurement.device, claim.limits.card_bytes
    if size is None:
        return Card(
            name=device.name, total_bytes=device.total_bytes, usable_bytes=device.usable_bytes
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


def judge(
    nodeid: str,
    engine: Engine,
    claim: Claim,
    measurement: Measurement,
    capped: Measurement | None = None,
) -> Case:
    """Every check of one case. ``capped`` is the run that :func:`capacity_to_try` asked for."""
    memory = measurement.memory
    checks = [_no_oom(measurement)]
    if memory is None or measurement.evidence is None:
        names = ["peak_within_vram", "trained", "steady"]
        names += ["headroom"] if _has_headroom(claim) else []
        names += ["max_step"] if claim.limits.max_step_ns is not None else []
        checks += [_unchecked(name, "did_not_run") for name in names]
    else:
        checks += [
            _peak_within_vram(claim, measurement, memory),
            *_headroom(claim, measurement, memory, capped),
            _trained(claim, engine, measurement.evidence),
            _steady(memory),
            *_max_step(claim, measurement),
        ]
    checks += [_unchecked(name, "not_built") for name in _NOT_BUILT]
    return Case(
        nodeid=nodeid,
        engine=engine,
        claim=claim,
        card=card_of(claim, measurement),
        measurement=measurement,
        checks=tuple(checks),
    )


def _room(claim: Claim, measurement: Measurement, memory: Memory) -> int:
    """The bytes the allocator may have when headroom and everything beside it stay untouched."""
    usable = card_of(claim, measurement).usable_bytes
    return usable - claim.limits.headroom.of(usable) - (memory.outside_allocator_bytes or 0)


def _has_headroom(claim: Claim) -> bool:
    return claim.limits.headroom != NO_HEADROOM


def _unchecked(name: str, kind: str) -> Check:
    return Check(name=name, status="unchecked", findings=(Finding(kind=kind),))


def _check(name: str, value: int, limit: int, unit: Literal["bytes", "ns", "count"]) -> Check:
    status: Status = "pass" if value <= limit else "fail"
    return Check(name=name, status=status, value=value, limit=limit, unit=unit)


def _no_oom(measurement: Measurement) -> Check:
    oom = measurement.oom
    if oom is None:
        return Check(name="no_oom", status="pass")
    return Check(
        name="no_oom",
        status="fail",
        value=oom.requested_bytes,
        limit=oom.free_bytes,
        unit="bytes",
        findings=(Finding(kind="out_of_memory"),),
    )


def _peak_within_vram(claim: Claim, measurement: Measurement, memory: Memory) -> Check:
    """All that the step needs on the card: its peak, and what lies outside the allocator."""
    peak = memory.peak_allocated_bytes + (memory.outside_allocator_bytes or 0)
    return _check("peak_within_vram", peak, card_of(claim, measurement).usable_bytes, "bytes")


def _headroom(
    claim: Claim, measurement: Measurement, memory: Memory, capped: Measurement | None
) -> Iterator[Check]:
    if not _has_headroom(claim):
        return
    room = _room(claim, measurement, memory)
    if capped is None:
        yield _check("headroom", memory.peak_allocated_bytes, room, "bytes")
    else:
        yield Check(
            name="headroom",
            status="pass" if capped.oom is None else "fail",
            value=memory.peak_reserved_bytes,
            limit=room,
            unit="bytes",
            findings=(Finding(kind="tried_with_less"),),
        )


def _steady(memory: Memory) -> Check:
    """Neither allocated nor reserved bytes are more after the last timed step than after the
    first.
    """
    if len(memory.allocated_after_step_bytes) < _ENOUGH_TO_GROW:
        return _unchecked("steady", "one_step")
    growth = {"allocated": _growth(memory.allocated_after_step_bytes)}
    if memory.reserved_after_step_bytes is not None:
        growth["reserved"] = _growth(memory.reserved_after_step_bytes)
    grown = tuple(name for name, value in growth.items() if value > 0)
    return Check(
        name="steady",
        status="fail" if grown else "pass",
        value=max(growth.values()),
        limit=0,
        unit="bytes",
        findings=(Finding(kind="grew", names=grown),) if grown else (),
    )


def _growth(series: tuple[int, ...]) -> int:
    return series[-1] - series[0]


def _max_step(claim: Claim, measurement: Measurement) -> Iterator[Check]:
    limit = claim.limits.max_step_ns
    if limit is not None:
        yield _check("max_step", median(measurement.step_ns), limit, "ns")


def _trained(claim: Claim, engine: Engine, evidence: Evidence) -> Check:
    findings = tuple(_objections(claim, engine, evidence))
    return Check(
        name="trained",
        status="fail" if findings else "pass",
        value=evidence.applied_steps,
        limit=claim.schedule.warmup + claim.schedule.steps,
        unit="count",
        findings=findings,
    )


def _objections(claim: Claim, engine: Engine, evidence: Evidence) -> Iterator[Finding]:
    """Everything that speaks against "this step trained what was asked"."""
    spec = claim.spec
    if evidence.loss is None:
        yield Finding(kind="loss_not_finite")
    if evidence.applied_steps <= claim.schedule.warmup:
        yield Finding(kind="steps_skipped", names=(str(evidence.skipped_steps),))
    if evidence.batches != ((spec.batch, spec.seq),) * spec.accumulation:
        yield Finding(kind="other_batches", names=tuple(str(one) for one in evidence.batches[:3]))
    if evidence.adapters != evidence.adapters_expected:
        yield Finding(
            kind="adapters_missing",
            names=(str(evidence.adapters), str(evidence.adapters_expected)),
        )
    if evidence.trainable_tensors == 0:
        yield Finding(kind="nothing_trainable")
    for kind in (
        "wrongly_trainable",
        "without_gradient",
        "zero_gradient",
        "nonfinite_gradient",
        "unmoved",
        "base_changed",
    ):
        names: tuple[str, ...] = getattr(evidence, kind)
        if names:
            yield Finding(kind=kind, names=names)
    yield from _wrong_dtypes(spec, evidence)
    device_type = "cuda" if engine == "gpu" else "cpu"
    elsewhere = tuple(sorted(set(evidence.devices) - {device_type}))
    if elsewhere:
        yield Finding(kind="elsewhere", names=elsewhere)
    quantised, matrices = evidence.quantised_elements, evidence.matrix_elements
    if quantised < (_QUANTISED_SHARE * matrices if spec.method == "qlora" else 0):
        yield Finding(kind="not_quantised", names=(str(matrices - quantised), str(matrices)))


_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _wrong_dtypes(spec: TrainSpec, evidence: Evidence) -> Iterator[Finding]:
    trained = _TORCH_NAMES[spec.adapter_dtype or spec.dtype]
    wrong = tuple(sorted(set(evidence.trainable_dtypes) - {trained}))
    if wrong:
        yield Finding(kind="trainable_dtype", names=(trained, *wrong))
    base = {_TORCH_NAMES[spec.dtype]}
    if spec.kbit_upcast:
        # bitsandbytes casts the biases of its linears back to the compute dtype
        base |= {"float32"}
        upcast = evidence.base_dtypes.get("float32", 0)
        if upcast < _QUANTISED_SHARE * sum(evidence.base_dtypes.values()):
            yield Finding(kind="not_upcast")
    wrong = tuple(sorted(set(evidence.base_dtypes) - base))
    if wrong:
        yield Finding(kind="base_dtype", names=(_TORCH_NAMES[spec.dtype], *wrong))


def median(samples: tuple[int, ...]) -> int:
    """The middle sample, the lower one of two: a sample that was taken, not a mean."""
    return sorted(samples)[(len(samples) - 1) // 2]
