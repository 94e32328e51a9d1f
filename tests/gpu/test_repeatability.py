"""The same case has the same peaks to the byte, whatever ran before it."""

from __future__ import annotations

import pytest

from pytest_vramfit.measurement import Measurement

CASE = {"model": "Qwen2.5-7B"}
OTHER = {"model": "Qwen2.5-1.5B", "checkpointing": True, "seq": 1024}
TOO_LARGE = {"model": "Qwen2.5-32B", "method": "full", "warmup": 2, "steps": 1}
MIB = 2**20


def peaks(measurement: Measurement) -> dict[str, int | None]:
    memory = measurement.memory
    assert memory is not None
    return {
        "allocated": memory.peak_allocated_bytes,
        "reserved": memory.peak_reserved_bytes,
        "first step": memory.first_step_peak_allocated_bytes,
        "forward": memory.forward_peak_bytes,
        "backward": memory.backward_peak_bytes,
        "optimizer": memory.optimizer_peak_bytes,
        "load": memory.load_peak_bytes,
    }


@pytest.fixture(scope="module")
def reference(measure) -> Measurement:
    """The case for the first time."""
    return measure(**CASE)


def test_the_second_time_in_one_worker(reference, measure):
    assert peaks(measure(**CASE)) == peaks(reference)


def test_after_another_case(reference, measure):
    measure(**OTHER)
    assert peaks(measure(**CASE)) == peaks(reference)


def test_in_a_fresh_worker(reference, measure_fresh):
    assert peaks(measure_fresh(**CASE)) == peaks(reference)


def test_after_an_out_of_memory_case(reference, measure):
    assert measure(**TOO_LARGE).oom is not None
    assert peaks(measure(**CASE)) == peaks(reference)


def test_bytes_outside_the_allocator(reference, measure, measure_fresh):
    """Kernels that other cases loaded stay, so this one is near, not equal."""
    measure(**OTHER)
    outside = [
        one.memory.outside_allocator_bytes
        for one in (reference, measure(**CASE), measure_fresh(**CASE))
        if one.memory is not None and one.memory.outside_allocator_bytes is not None
    ]
    assert len(outside) == 3
    assert min(outside) > 100 * MIB
    assert max(outside) - min(outside) <= 32 * MIB
