"""Verdicts that only a GPU can give, through pytest."""

from __future__ import annotations

import json

import pytest

SUITE = """
import pytest

@pytest.mark.fits_vram(model="Qwen2.5-32B", method="full", steps=1, warmup=2)
def test_too_large(): ...

@pytest.mark.fits_vram(model="Qwen2.5-1.5B", seq=512)
def test_after_it(vramfit):
    assert vramfit.peak_reserved_bytes >= vramfit.peak_allocated_bytes

@pytest.mark.fits_vram(model="Qwen2.5-1.5B", seq=512, headroom="130GiB")
def test_headroom_that_only_a_run_with_less_can_show(vramfit):
    assert vramfit.limits.headroom.size_bytes == 130 * 2**30

@pytest.mark.fits_vram(model="Qwen2.5-1.5B", seq=512, headroom="136GiB")
def test_no_headroom(): ...

@pytest.mark.fits_vram(model="Qwen2.5-1.5B", seq=512, max_step="1us")
def test_slow(): ...

@pytest.mark.fits_vram(model="Qwen2.5-0.5B", method="full", seq=512, precision="fp16")
def test_fp16_with_a_scaler(): ...

def test_14b_needs_more_than_7b(vramfit):
    small = vramfit.measure(model="Qwen2.5-7B", steps=1, warmup=2)
    large = vramfit.measure(model="Qwen2.5-14B", steps=1, warmup=2)
    assert small.outcome == large.outcome == "fits"
    assert small.peak_allocated_bytes < large.peak_allocated_bytes
"""


@pytest.fixture
def suite(pytester):
    pytester.makepyfile(SUITE)
    run = pytester.runpytest_subprocess("--gpu", "--vramfit-json=out.json")
    rows = json.loads((pytester.path / "out.json").read_text())["results"]
    return run, {row["nodeid"].partition("::")[2]: row for row in rows if row["judged"]}


def test_each_case_has_its_verdict(suite):
    run, rows = suite
    run.assert_outcomes(passed=4, failed=3)
    outcomes = {name: row["outcome"] for name, row in rows.items()}
    assert outcomes == {
        "test_too_large": "oom",
        "test_after_it": "fits",
        "test_headroom_that_only_a_run_with_less_can_show": "fits",
        "test_no_headroom": "no_headroom",
        "test_slow": "slower",
        "test_fp16_with_a_scaler": "fits",
    }
    oom = rows["test_too_large"]["oom"]
    assert oom["requested_bytes"] > oom["free_bytes"] >= 0
    assert oom["allocated_bytes"] > 100 * 2**30
    run.stdout.re_match_lines([r"  FAIL  no OOM\s+\d+ MiB asked for, [\d.]+ MiB free .*"])
