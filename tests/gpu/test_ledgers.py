"""The parts of a peak as they live on the GPU beside those that are predicted for it."""

from __future__ import annotations

import time

import pytest

from pytest_vramfit.events import LEDGER
from pytest_vramfit.measurement import Memory

MIB = 2**20
SAME_SHARE = 0.005
"""Of the peak, that a part may differ."""
CASES: dict[str, dict[str, object]] = {
    "qlora": {"model": "Qwen2.5-1.5B"},
    "qlora, checkpointing": {"model": "Qwen2.5-7B", "checkpointing": True},
    "lora": {"model": "Llama-3.2-1B", "method": "lora", "seq": 1024, "checkpointing": True},
    "full": {"model": "Qwen2.5-0.5B", "method": "full", "batch": 2},
    "full, 8-bit states": {"model": "Qwen2.5-0.5B", "method": "full", "optimizer": "adamw_8bit"},
    "fp16 with a scaler": {"model": "Qwen2.5-0.5B", "method": "full", "precision": "fp16"},
    "int8": {"model": "Qwen2.5-1.5B", "quant": "int8"},
    "accumulation": {"model": "Qwen2.5-0.5B", "method": "full", "accumulation": 4},
    "eager": {"model": "Gemma-2-2B", "attention": "eager"},
    "modules to save": {"model": "Qwen2.5-1.5B", "modules_to_save": ["lm_head"]},
    "dora": {"model": "Qwen2.5-1.5B", "dora": True},
}


@pytest.fixture(params=CASES)
def both(request, measure, predict) -> tuple[Memory, Memory]:
    """The case's memory as measured and as predicted."""
    keywords = CASES[request.param]
    begin = time.perf_counter()
    measured, predicted = measure(**keywords), predict(**keywords)
    print(f"\n{request.param}: {time.perf_counter() - begin:.1f} s")
    print("proof", measured.stages_ns["proof"] / 1e9, "s, a step", measured.median_step_ns / 1e9)
    assert measured.memory is not None
    assert predicted.memory is not None
    return measured.memory, predicted.memory


def test_parts(both):
    measured, predicted = both
    assert measured.ledger is not None
    assert predicted.ledger is not None
    for part in LEDGER:
        print(f"{part:14}{measured.ledger[part] / MIB:12,.2f}{predicted.ledger[part] / MIB:12,.2f}")
    of_the_allocator = {part: measured.ledger[part] for part in LEDGER}
    assert sum(of_the_allocator.values()) == measured.peak_allocated_bytes
    near = pytest.approx(of_the_allocator, abs=SAME_SHARE * measured.peak_allocated_bytes)
    assert {part: predicted.ledger[part] for part in LEDGER} == near
