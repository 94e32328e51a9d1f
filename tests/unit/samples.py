"""Sound specs, claims and measurements, each as little as a verdict needs; tests change a part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_vramfit.baseline import Entry
from pytest_vramfit.estimating.advice import Predicted, Suggestion
from pytest_vramfit.measurement import (
    Conditions,
    Device,
    Evidence,
    GpuTime,
    HeldChange,
    Measurement,
    Memory,
    OutOfMemory,
    PhasePeak,
    Residency,
)
from pytest_vramfit.quantity import NO_HEADROOM, Headroom
from pytest_vramfit.spec import Claim, Limits, Phase, Schedule, TrainSpec
from pytest_vramfit.verdict import Case, Check, Reference, judge

KIB, MIB, GIB = 2**10, 2**20, 2**30
MS = 10**6

SPEC = TrainSpec(
    model="Small",
    config={"model_type": "llama", "hidden_size": 64},
    method="qlora",
    seq=512,
    batch=2,
    accumulation=1,
    precision="bf16",
    dtype="bf16",
    optimizer="adamw",
    rank=16,
    alpha=32.0,
    dropout=0.05,
    targets="all-linear",
    adapter_dtype="fp32",
    quant="nf4",
    double_quant=True,
    kbit_upcast=True,
)

FULL = replace(
    SPEC,
    method="full",
    dtype="fp32",
    rank=None,
    alpha=None,
    dropout=None,
    targets=None,
    adapter_dtype=None,
    quant=None,
    double_quant=None,
    kbit_upcast=None,
)

# 24 GiB, of which a step can have 23
DEVICE = Device(
    name="Card", total_bytes=24 * GIB, reserved_bytes=768 * MIB, held_bytes=256 * MIB, driver="1.2"
)

# the step needs 10 GiB, its allocator took 12, beside it lies half a GiB
MEMORY = Memory(
    load_peak_bytes=7 * GIB,
    first_step_peak_allocated_bytes=9 * GIB,
    forward_peak_bytes=9 * GIB,
    backward_peak_bytes=10 * GIB,
    optimizer_peak_bytes=8 * GIB,
    peak_reserved_bytes=12 * GIB,
    allocated_after_step_bytes=(6 * GIB,) * 5,
    reserved_after_step_bytes=(12 * GIB,) * 5,
    outside_allocator_bytes=512 * MIB,
    allocator_retries=0,
)

EVIDENCE = Evidence(
    loss=2.5,
    applied_steps=8,
    skipped_steps=0,
    batches=((2, 512),),
    layer_runs=1,
    not_training=(),
    adapters=14,
    adapters_expected=14,
    unexpected_adapters=(),
    trainable_parameters=1_000,
    total_parameters=100_000,
    trainable_tensors=28,
    without_gradient=(),
    zero_gradient=(),
    nonfinite_gradient=(),
    unmoved=(),
    wrongly_trainable=(),
    base_changed=(),
    trainable_dtypes={"float32": 1_000},
    saved_dtypes={},
    saved=(),
    base_dtypes={"float32": 10_000},
    devices={"cuda": 40},
    quantised_elements=90_000,
    matrix_elements=90_000,
    unquantised={},
)

OOM = OutOfMemory(
    phase="backward",
    step=1,
    requested_bytes=2 * GIB,
    free_bytes=512 * MIB,
    allocated_bytes=21 * GIB,
    reserved_bytes=22 * GIB,
    says="CUDA out of memory.",
)

RESIDENCY = Residency(
    off_card_bytes=0,
    uncertainty_bytes=0,
    card_bytes_per_s=700 * 10**9,
    host_bytes_per_s=25 * 10**9,
)

MEASUREMENT = Measurement(
    device=DEVICE,
    memory=MEMORY,
    oom=None,
    evidence=EVIDENCE,
    step_ns=(260 * MS, 240 * MS, 250 * MS, 900 * MS, 230 * MS),
    stages_ns={"build": 300 * MS, "timed": 1_880 * MS},
    gpu=GpuTime(busy_ns=(225 * MS, 223 * MS, 227 * MS), kernels=8_382),
    phases={},
    residency=RESIDENCY,
    conditions=Conditions(
        energy_mj=2_000_000, energy_from="counter", sm_clock_mhz=1_980, others_cpu_share=0.05
    ),
    environment={"device": "Card", "driver": "1.2", "python": "3.12.1", "torch": "2.11.0"},
)

RAN_OUT = replace(
    MEASUREMENT,
    memory=None,
    evidence=None,
    oom=OOM,
    step_ns=(),
    gpu=None,
    conditions=None,
    residency=None,
)


def claim(
    spec: TrainSpec = SPEC,
    *,
    card_bytes: int | None = None,
    headroom: Headroom = NO_HEADROOM,
    max_step_ns: int | None = None,
    phases: tuple[Phase, ...] = (),
    **more: Any,
) -> Claim:
    limits = Limits(card_bytes=card_bytes, headroom=headroom, max_step_ns=max_step_ns, **more)
    return Claim(spec=spec, limits=limits, schedule=Schedule(phases=phases))


def with_memory(**changes: Any) -> Measurement:
    return replace(MEASUREMENT, memory=replace(MEMORY, **changes))


def with_change(bytes_: int, when: str, measurement: Measurement = MEASUREMENT) -> Measurement:
    """Others took so much of the GPU, or gave it back, while it was measured."""
    change = HeldChange(bytes=bytes_, when=when)
    return replace(measurement, device=replace(measurement.device, held_change=change))


def with_phases(measurement: Measurement = MEASUREMENT, **peaks: int | None) -> Measurement:
    """What followed the steps, each with its peak; None: it ran out of memory."""
    seen = {
        name: PhasePeak(peak_bytes=peak, oom=replace(OOM, phase=name) if peak is None else None)
        for name, peak in peaks.items()
    }
    return replace(measurement, phases=seen)


def left_by_phase(name: str, off_card_bytes: int | None, peak: int = 9 * GIB) -> Measurement:
    """The phase was through with so much of the allocator's memory off the card."""
    seen = PhasePeak(peak_bytes=peak, off_card_bytes=off_card_bytes)
    return replace(MEASUREMENT, phases={name: seen})


def with_evidence(**changes: Any) -> Measurement:
    return replace(MEASUREMENT, evidence=replace(EVIDENCE, **changes))


def timed(step: float = 1, gpu: float = 1, **changes: Any) -> Measurement:
    """The same step, but so many times as long by either clock."""
    assert MEASUREMENT.gpu is not None
    busy_ns = tuple(int(gpu * one) for one in MEASUREMENT.gpu.busy_ns)
    return replace(
        MEASUREMENT,
        step_ns=tuple(int(step * one) for one in MEASUREMENT.step_ns),
        gpu=replace(MEASUREMENT.gpu, busy_ns=busy_ns),
        **changes,
    )


def recorded(
    measurement: Measurement = MEASUREMENT, spec: TrainSpec = SPEC, **changes: Any
) -> Entry:
    """A baseline of three processes that measured the same; against it one process is sure of GPU
    time to 3 %.
    """
    entry = Entry.of("test_a.py::test_b", "gpu", spec, [measurement] * 3)
    return replace(entry, **changes)


def case(measurement: Measurement = MEASUREMENT, asked: Claim | None = None) -> Case:
    return judge("test_a.py::test_b", "gpu", asked or claim(), measurement)


def compared(
    measurement: Measurement = MEASUREMENT, asked: Claim | None = None, **reference: Any
) -> Case:
    """The case against a baseline; ``reference`` says otherwise."""
    against = Reference(**{"entry": recorded(), **reference})
    return judge("test_a.py::test_b", "gpu", asked or claim(), measurement, reference=against)


def suggestion(peak_bytes: int, **keywords: Any) -> Suggestion:
    """What would fit with such a peak, and half a GiB outside the allocator."""
    predicted = Predicted(
        fits=True, peak_allocated_bytes=peak_bytes, outside_allocator_bytes=512 * MIB
    )
    return Suggestion(keywords=keywords, predicted=predicted)


def pinned(judged: Case) -> Case:
    """With intervals of 10 % around every ratio: a text does not depend on how they are found."""
    return replace(
        judged,
        checks=tuple(
            replace(one, interval=(0.9 * one.ratio, 1.1 * one.ratio))
            if one.ratio and one.interval
            else one
            for one in judged.checks
        ),
    )


def check(judged: Case, name: str) -> Check:
    """The one check of this name."""
    (found,) = (one for one in judged.checks if one.name == name)
    return found
