"""Compiled models."""

from __future__ import annotations

import json

SUITE = """
import pytest

@pytest.mark.fits_vram(model="Qwen2.5-0.5B", method="lora", seq=512)
def test_plain(): ...

@pytest.mark.fits_vram(model="Qwen2.5-0.5B", method="lora", seq=512, compile=True)
def test_compiled(): ...

@pytest.mark.fits_vram(model="Qwen2.5-0.5B", method="lora", seq=512)
def test_plain_after_it(): ...
"""


def test_a_compiled_model_trains(pytester):
    pytester.makepyfile(SUITE)
    run = pytester.runpytest_subprocess("--gpu", "--vramfit-json=results.json")
    run.assert_outcomes(passed=3)
    rows = json.loads((pytester.path / "results.json").read_text())["results"]
    plain, compiled, again = (row["memory"]["peak_allocated_bytes"] for row in rows)
    assert plain == again
    assert compiled < plain  # fused kernels keep fewer intermediates
