"""The example suite's ladder on the GPU: the verdicts, and what they cost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LADDER = HERE.parents[1] / "example_suite" / "test_qwen_ladder.py"
MOST_OVER_BARE = 1.3
STAGES = ("open", "build", "warm-up", "timed", "residency", "proof", "ledger", "clean-up")


@pytest.fixture(scope="module")
def ladder(tmp_path_factory) -> dict:
    """What one `pytest --gpu` of the eight cases says, and its results."""
    results = tmp_path_factory.mktemp("ladder") / "results.json"
    command = [sys.executable, "-m", "pytest", "--gpu", str(LADDER), f"--vramfit-json={results}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    print(run.stdout, run.stderr)
    return {"run": run, "results": json.loads(results.read_text())["results"]}


def test_all_eight_fit(ladder):
    assert ladder["run"].returncode == 0
    assert "8 passed" in ladder["run"].stdout
    assert [row["outcome"] for row in ladder["results"]] == ["fits"] * 8


def test_a_line_for_each_case(ladder):
    lines = ladder["run"].stdout.splitlines()
    table = [line for line in lines if "test_qwen_ladder.py::" in line and "GiB" in line]
    assert len(table) == 8


def test_checkpointing_saves_memory_at_every_size(ladder):
    peaks = [row["memory"]["peak_allocated_bytes"] for row in ladder["results"]]
    plain, checkpointed = peaks[0::2], peaks[1::2]
    assert all(small < large for small, large in zip(checkpointed, plain, strict=True))
    assert plain == sorted(plain)


def test_costs_little_more_than_a_bare_script(ladder):
    """Everything but the imports, against the same builds and steps without the plugin."""
    bare = json.loads(
        subprocess.run(
            [sys.executable, str(HERE / "bare_ladder.py")],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
    )
    stages = [row["time"]["stages_ns"] for row in ladder["results"]]
    seconds = [sum(one.get(stage, 0) for stage in STAGES) / 1e9 for one in stages]
    for one, case, took in zip(stages, bare["cases"], seconds, strict=True):
        listed = ", ".join(f"{stage} {one.get(stage, 0) / 1e9:.2f}" for stage in STAGES)
        print(f"{case}: {took:.2f} s ({listed}), bare {bare['cases'][case]:.2f} s")
    print(f"all {sum(seconds):.1f} s, bare {bare['all']:.1f} s, {sum(seconds) / bare['all']:.3f}")
    assert sum(seconds) <= MOST_OVER_BARE * bare["all"]
