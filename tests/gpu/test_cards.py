"""A GPU that passes for a smaller card: what leaves that card is found, to the MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pytest_vramfit.estimating.target import target_of
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.measurement import Device, Measurement, Memory
from pytest_vramfit.spec import Claim, Overflow
from pytest_vramfit.verdict import judge, witnesses
from pytest_vramfit.worker.client import Worker

MIB = 2**20
SCHEDULE: dict[str, object] = {"warmup": 2, "steps": 1}
KEYWORDS: dict[str, dict[str, object]] = {
    "qlora": {"model": "Qwen2.5-1.5B", **SCHEDULE},
    "lora": {
        "model": "Llama-3.2-1B",
        "method": "lora",
        "seq": 1024,
        "checkpointing": True,
        **SCHEDULE,
    },
    "full": {"model": "Qwen2.5-0.5B", "method": "full", "optimizer": "adamw_8bit", **SCHEDULE},
    "qlora, checkpointing": {"model": "Qwen2.5-7B", "checkpointing": True, **SCHEDULE},
}
FULL = {"model": "Qwen2.5-0.5B", "method": "full", **SCHEDULE}
OPTIMIZERS: dict[str, dict[str, object]] = {
    **{
        name: {**FULL, "optimizer": name}
        for name in ("adamw", "adamw_fused", "sgd", "adafactor", "paged_adamw", "paged_adamw_8bit")
    },
    "qlora, paged": {**KEYWORDS["qlora"], "optimizer": "paged_adamw_8bit"},
}
WITH_PHASES: dict[str, dict[str, object]] = {
    "qlora, phases": {**KEYWORDS["qlora"], "phases": ["eval", "save", "merge"], "eval_batch": 16},
    "lora, phases": {**KEYWORDS["lora"], "phases": ["eval", "save", "merge"], "eval_batch": 16},
    "full, phases": {**KEYWORDS["full"], "phases": ["eval", "save"], "eval_batch": 16},
}
PERCENT = (90, 95, 99, 100.5, 101, 102, 105, 110, 125, 150)
"""Of what a card of 16,303 MiB has for it, that a case reserves on the whole GPU."""
SIZED: dict[str, tuple[dict[str, object], tuple[int, ...]]] = {
    "Qwen2.5-1.5B, QLoRA": (
        {"model": "Qwen2.5-1.5B", "batch": 4},
        (395, 425, 446, 454, 456, 462, 479, 505, 586, 718),
    ),
    "Qwen2.5-7B, QLoRA, checkpointing": (
        {"model": "Qwen2.5-7B", "batch": 4, "checkpointing": True},
        (416, 488, 544, 564, 572, 585, 626, 695, 896, 1217),
    ),
    "Llama-3.2-1B, LoRA, checkpointing": (
        {"model": "Llama-3.2-1B", "method": "lora", "batch": 4, "checkpointing": True},
        (1432, 1532, 1610, 1640, 1650, 1666, 1728, 1826, 2120, 2614),
    ),
    "Qwen2.5-0.5B, full, 8-bit AdamW": (
        {"model": "Qwen2.5-0.5B", "method": "full", "optimizer": "adamw_8bit", "batch": 4},
        (603, 656, 701, 716, 723, 731, 754, 808, 924, 1142),
    ),
}
"""Configurations, and the length of their sequences for each percentage."""
ON_16_GB = {
    f"{name}, {percent} %": ({**keywords, "seq": seq, **SCHEDULE}, percent)
    for name, (keywords, lengths) in SIZED.items()
    for percent, seq in zip(PERCENT, lengths, strict=True)
}
_16_GB = target_of("RTX 5070 Ti", 0)
CARD_OF_16_GB = Device(
    name=_16_GB.name,
    total_bytes=_16_GB.total_bytes,
    reserved_bytes=_16_GB.reserved_bytes,
    held_bytes=0,
    overflow="spill",
)
ALL = {
    **KEYWORDS,
    **OPTIMIZERS,
    **WITH_PHASES,
    **{name: keywords for name, (keywords, _) in ON_16_GB.items()},
}

Plain = Callable[[str], Measurement]
Emulate = Callable[..., Measurement]
Uncapped = Callable[[str], Memory]


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[Overflow, Worker]]:
    """A card that overflows needs a process of its own."""
    workers: dict[Overflow, Worker] = {"oom": Worker("gpu"), "spill": Worker("gpu")}
    yield workers
    for worker in workers.values():
        worker.stop()


@pytest.fixture(scope="module")
def plain(workers, measure_with) -> Plain:
    """Measure a case on the GPU itself, once."""
    return cache(lambda name: measure_with(workers["oom"], ALL[name]))


@pytest.fixture(scope="module")
def uncapped(plain) -> Uncapped:
    """Its memory."""

    def uncapped(name: str) -> Memory:
        memory = plain(name).memory
        assert memory is not None
        return memory

    return uncapped


@pytest.fixture(scope="module")
def emulate(workers, uncapped, measure_with) -> Emulate:
    """Measure a case on a card made for it: with so much for the allocator."""

    def emulate(name: str, room: int, overflow: Overflow = "spill") -> Measurement:
        outside = uncapped(name).outside_allocator_bytes
        assert outside is not None
        card = Device(
            name="a card",
            total_bytes=room + outside,
            reserved_bytes=0,
            held_bytes=0,
            overflow=overflow,
        )
        return measure_with(workers[overflow], ALL[name], card=card)

    return emulate


def claim_of(name: str) -> Claim:
    """What is measured; the card is told to the worker."""
    return read_claim([ALL[name]], rootdir=Path())


def assert_found(found: int, served: int) -> None:
    """What reading says is off the card is what was served from host memory, and there is some."""
    assert served > 0
    assert found == pytest.approx(served, rel=0.01, abs=8 * MIB)


def seen(name: str, measurement: Measurement) -> str:
    """The outcome, as pytest would have it."""
    claim = claim_of(name)
    case = judge("test", "gpu", claim, measurement)
    for one in witnesses(claim, measurement):
        print("  ", one)
    return case.outcome


@pytest.mark.parametrize("name", ON_16_GB)
def test_a_card_of_16_gb(plain, uncapped, measure_with, workers, name):
    """What leaves it is found, to the MiB; what stays is not flagged."""
    percent = ON_16_GB[name][1]
    measurement = measure_with(workers["spill"], ALL[name], card=CARD_OF_16_GB)
    memory, residency = measurement.memory, measurement.residency
    room = CARD_OF_16_GB.usable_bytes - memory.outside_allocator_bytes
    reserved = uncapped(name).peak_reserved_bytes
    found, served = residency.off_card_bytes, memory.served_from_host_bytes
    outcome = seen(name, measurement)
    print(
        f"{name} seq {ALL[name]['seq']} | {100 * reserved / room:.2f} % | "
        f"{found / MIB:,.1f} found | {served / MIB:,.1f} served | {outcome} | "
        f"step {measurement.median_step_ns / plain(name).median_step_ns:.2f} times | "
        f"GPU {measurement.median_gpu_ns / plain(name).median_gpu_ns:.2f} times | "
        f"looking took {measurement.stages_ns['residency'] / 1e9:.2f} s"
    )
    assert 100 * reserved / room == pytest.approx(percent, abs=0.6)
    assert measurement.oom is None  # the naive criterion: it trains
    assert measurement.stages_ns["residency"] <= 1.5e9
    if percent < 100:
        assert (found, served, outcome) == (0, 0, "fits")
        assert memory.peak_allocated_bytes == uncapped(name).peak_allocated_bytes
    else:
        assert_found(found, served)
        assert outcome == "spilled"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer(emulate, plain, uncapped, name):
    """Paged states are nobody's on the card: neither found off it nor taken for spilled memory."""
    memory = uncapped(name)
    over = emulate(name, int(memory.peak_reserved_bytes / 1.05))
    within = emulate(name, int(memory.peak_reserved_bytes / 0.95))
    served, found = over.memory.served_from_host_bytes, over.residency.off_card_bytes
    print(
        f"{name}: {found / MIB:,.1f} MiB found, {served / MIB:,.1f} served, "
        f"{memory.managed_bytes / MIB:,.1f} managed, host memory grew by "
        f"{[one.memory.host_growth_bytes / MIB for one in (plain(name), within, over)]}"
    )
    assert_found(found, served)
    assert seen(name, over) == "spilled"
    assert seen(name, within) == "fits"
    for one in (over.memory, within.memory):
        assert one.peak_allocated_bytes == memory.peak_allocated_bytes
        assert one.managed_bytes == memory.managed_bytes


@pytest.mark.parametrize("name", WITH_PHASES)
def test_what_follows_the_steps_leaves_the_card_by_itself(emulate, plain, uncapped, name):
    """On a card that has room for the steps, and to evaluate more of them at once than it can."""
    measurement = emulate(name, uncapped(name).peak_reserved_bytes + 64 * MIB)
    assert measurement.memory.served_from_host_bytes == 0
    assert measurement.residency.off_card_bytes == 0
    for phase, one in measurement.phases.items():
        found, served = one.off_card_bytes, one.served_from_host_bytes
        print(f"{name}, {phase}: {found / MIB:,.1f} MiB found, {served / MIB:,.1f} served")
        assert_found(found, served)
        assert one.peak_bytes == plain(name).phases[phase].peak_bytes
    assert [*measurement.phases] == WITH_PHASES[name]["phases"]
    assert seen(name, measurement) == "spilled"


@pytest.mark.parametrize("name", ["qlora", "full"])
def test_a_full_card_without_a_fallback_refuses(emulate, uncapped, name):
    memory = uncapped(name)
    enough, too_little = memory.peak_reserved_bytes + 64 * MIB, memory.peak_allocated_bytes - MIB
    fits = emulate(name, enough, "oom").memory
    assert fits.peak_allocated_bytes == memory.peak_allocated_bytes
    assert emulate(name, too_little, "oom").oom is not None


def test_a_card_that_never_overflows_costs_nothing(measure_with):
    """In processes that measured nothing before: the addresses they leave free decide peaks too."""
    name = "qlora, checkpointing"
    card = replace(CARD_OF_16_GB, name="a card", total_bytes=64 * 2**30, reserved_bytes=0)
    measured = []
    for one in (None, card):
        worker = Worker("gpu")
        measured.append(measure_with(worker, ALL[name], card=one))
        worker.stop()
    plain, emulated = measured
    print(plain.median_gpu_ns / 1e6, emulated.median_gpu_ns / 1e6)
    same, other = (
        replace(one.memory, outside_allocator_bytes=None, host_growth_bytes=None)
        for one in measured
    )
    assert replace(other, served_from_host_bytes=None) == same
    assert emulated.median_gpu_ns == pytest.approx(plain.median_gpu_ns, rel=0.01)
