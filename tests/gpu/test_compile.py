"""Compiled models."""

from __future__ import annotations

SUITE = """
import pytest

@pytest.mark.fits_vram(model="Qwen2.5-0.5B", method="lora", seq=512)
def test_plain(vramfit):
    print("plain", vramfit.peak_allocated_bytes, vramfit.step_ns)

@pytest.mark.fits_vram(model="Qwen2.5-0.5B", method="lora", seq=512, compile=True)
def test_compiled(vramfit):
    print("compiled", vramfit.peak_allocated_bytes, vramfit.step_ns)

@pytest.mark.fits_vram(model="Qwen2.5-0.5B", method="lora", seq=512)
def test_plain_after_it(vramfit):
    print("plain", vramfit.peak_allocated_bytes, vramfit.step_ns)
"""


def test_a_compiled_model_trains(pytester):
    pytester.makepyfile(SUITE)
    run = pytester.runpytest_subprocess("--gpu", "-s")
    run.assert_outcomes(passed=3)
    plain, compiled, again = (
        line.split()[1:] for line in run.outlines if line.split()[:1] in (["plain"], ["compiled"])
    )
    assert plain[0] == again[0]
    assert int(compiled[0]) < int(plain[0])  # fused kernels keep fewer intermediates
