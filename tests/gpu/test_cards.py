"""A GPU that passes for a smaller card: what leaves that card is found, to the MiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.measurement import Device, Measurement, Memory
from pytest_vramfit.spec import Claim, Overflow
from pytest_vramfit.verdict import judge, witnesses
from pytest_vramfit.worker.client import Worker

MIB = 2**20
SCHEDULE: dict[str, object] = {"warmup": 2, "steps": 1}
KEYWORDS: dict[str, dict[str, object]] = {
    "qlora": {"model": "Qwen2.5-1.5B", **SCHEDULE},
    "qlora, checkpointing": {"model": "Qwen2.5-7B", "checkpointing": True, **SCHEDULE},
    "lora": {
        "model": "Llama-3.2-1B",
        "method": "lora",
        "seq": 1024,
        "checkpointing": True,
        **SCHEDULE,
    },
    "full": {"model": "Qwen2.5-0.5B", "method": "full", "optimizer": "adamw_8bit", **SCHEDULE},
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
ALL = {**KEYWORDS, **OPTIMIZERS, **WITH_PHASES}
OVER_PERCENT = (0.5, 1, 2, 5, 10, 25, 50)
"""By how much the memory that a case reserves exceeds what the card has for it."""
WITHIN_PERCENT = (90, 95, 99)
"""Of what the card has for it, that a case reserves."""

Emulate = Callable[..., Measurement]


@pytest.fixture(scope="module")
def emulate(measure_with) -> Iterator[Emulate]:
    """Measure a case on a card with so much for the allocator (None: the GPU itself)."""
    workers: dict[Overflow, Worker] = {"oom": Worker("gpu"), "spill": Worker("gpu")}

    @cache
    def outside_bytes(name: str) -> int:
        memory = emulate(name).memory
        assert memory is not None
        assert memory.outside_allocator_bytes is not None
        return memory.outside_allocator_bytes

    def emulate(name: str, room: int | None = None, overflow: Overflow = "oom") -> Measurement:
        card = room and Device(
            name="a card",
            total_bytes=room + outside_bytes(name),
            reserved_bytes=0,
            held_bytes=0,
            overflow=overflow,
        )
        return measure_with(workers[overflow], ALL[name], card=card or None)

    yield emulate
    for worker in workers.values():
        worker.stop()


@pytest.fixture(scope="module")
def plain(emulate) -> Callable[[str], Measurement]:
    """The case on the GPU itself."""
    return cache(emulate)


@pytest.fixture(scope="module")
def uncapped(plain) -> Callable[[str], Memory]:
    """Its memory."""

    def uncapped(name: str) -> Memory:
        memory = plain(name).memory
        assert memory is not None
        return memory

    return uncapped


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


@pytest.mark.parametrize("percent", OVER_PERCENT)
@pytest.mark.parametrize("name", KEYWORDS)
def test_what_left_the_card_is_found(emulate, plain, uncapped, name, percent):
    reserved = uncapped(name).peak_reserved_bytes
    measurement = emulate(name, int(reserved / (1 + percent / 100)), "spill")
    memory, residency = measurement.memory, measurement.residency
    served = memory.served_from_host_bytes
    found = residency.off_card_bytes
    print(
        f"{name} {percent} % over: {found / MIB:,.1f} MiB found, {served / MIB:,.1f} served, "
        f"step {measurement.median_step_ns / plain(name).median_step_ns:.2f} times, "
        f"GPU {measurement.median_gpu_ns / plain(name).median_gpu_ns:.1f} times, "
        f"looking took {measurement.stages_ns['residency'] / 1e9:.2f} s"
    )
    assert_found(found, served)
    assert seen(name, measurement) == "spilled"
    assert measurement.stages_ns["residency"] <= 1.5e9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer(emulate, plain, uncapped, name):
    """Paged states are nobody's on the card: neither found off it nor taken for spilled memory."""
    memory = uncapped(name)
    over = emulate(name, int(memory.peak_reserved_bytes / 1.05), "spill")
    within = emulate(name, int(memory.peak_reserved_bytes / 0.95), "spill")
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
    measurement = emulate(name, uncapped(name).peak_reserved_bytes + 64 * MIB, "spill")
    assert measurement.memory.served_from_host_bytes == 0
    assert measurement.residency.off_card_bytes == 0
    for phase, one in measurement.phases.items():
        found, served = one.off_card_bytes, one.served_from_host_bytes
        print(f"{name}, {phase}: {found / MIB:,.1f} MiB found, {served / MIB:,.1f} served")
        assert_found(found, served)
        assert one.peak_bytes == plain(name).phases[phase].peak_bytes
    assert [*measurement.phases] == WITH_PHASES[name]["phases"]
    assert seen(name, measurement) == "spilled"


@pytest.mark.parametrize("percent", WITHIN_PERCENT)
@pytest.mark.parametrize("name", KEYWORDS)
def test_what_stayed_is_not(emulate, uncapped, name, percent):
    memory = uncapped(name)
    measurement = emulate(name, int(memory.peak_reserved_bytes / (percent / 100)), "spill")
    print(name, percent, measurement.median_step_ns / 1e6, measurement.median_gpu_ns / 1e6)
    assert measurement.memory.served_from_host_bytes == 0
    assert measurement.residency.off_card_bytes == 0
    assert seen(name, measurement) == "fits"
    assert measurement.memory.peak_allocated_bytes == memory.peak_allocated_bytes


@pytest.mark.parametrize("name", ["qlora", "full"])
def test_a_full_card_without_a_fallback_refuses(emulate, uncapped, name):
    memory = uncapped(name)
    enough, too_little = memory.peak_reserved_bytes + 64 * MIB, memory.peak_allocated_bytes - MIB
    fits = emulate(name, enough).memory
    assert fits.peak_allocated_bytes == memory.peak_allocated_bytes
    assert emulate(name, too_little).oom is not None


def test_a_card_that_never_overflows_costs_nothing(emulate):
    name = "qlora, checkpointing"
    plain, emulated = emulate(name), emulate(name, 64 * 2**30, "spill")
    print(plain.median_gpu_ns / 1e6, emulated.median_gpu_ns / 1e6)
    same = replace(plain.memory, outside_allocator_bytes=None, host_growth_bytes=None)
    other = replace(emulated.memory, outside_allocator_bytes=None, host_growth_bytes=None)
    assert replace(other, served_from_host_bytes=None) == same
    assert emulated.median_gpu_ns == pytest.approx(plain.median_gpu_ns, rel=0.01)
