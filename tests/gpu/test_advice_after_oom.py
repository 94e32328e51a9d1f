"""What is advised where a case ran out of memory on the GPU."""

from __future__ import annotations

import json

import pytest

from pytest_vramfit.measuring import nvml

SUITE = """
import pytest

@pytest.mark.fits_vram(model="Qwen2.5-7B", method="full", batch=8, seq=2048, steps=1, warmup=2)
def test_too_large(): ...
"""


@pytest.fixture
def advised(pytester):
    pytester.makepyfile(SUITE)
    run = pytester.runpytest_subprocess("--gpu", "--vramfit-json=out.json")
    (row,) = json.loads((pytester.path / "out.json").read_text())["results"]
    return run, row


def test_out_of_memory_on_the_gpu(advised, measure_fresh):
    run, row = advised
    run.assert_outcomes(failed=1)
    assert row["outcome"] == "oom"
    run.stdout.fnmatch_lines(["*would fit (estimated)*"])
    first = row["advice"][0]
    spec = {"model": "Qwen2.5-7B", "method": "full", "batch": 8, "seq": 2048}
    memory = measure_fresh(**{**spec, **first["keywords"]}, steps=1, warmup=2).memory
    print(first, memory)
    assert memory is not None
    assert memory.peak_allocated_bytes == pytest.approx(first["peak_allocated_bytes"], rel=0.005)


def test_a_prediction_leaves_the_gpu_alone(predict):
    (card, *_) = nvml.cards()
    predict(model="Qwen2.5-0.5B")
    assert nvml.cards()[0].used_bytes <= card.used_bytes + 32 * 2**20
