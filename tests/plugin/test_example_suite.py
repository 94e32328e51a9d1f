"""The suite to copy does on a CPU what the README says of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from inner import run

SUITE = Path(__file__).parents[2] / "example_suite"


def test_small_cases_run_and_those_of_a_gpu_are_skipped(pytester: pytest.Pytester) -> None:
    shutil.copytree(SUITE, pytester.path, dirs_exist_ok=True)
    ran = run(pytester, "--vramfit=cpu")
    assert ran.status == 0, ran.output
    passed, skipped = map(int, re.findall(r"(\d+) passed, (\d+) skipped", ran.output)[0])
    # a fast CPU may take one of the ladder, too
    assert passed >= 7
    assert (passed + skipped, skipped >= 27) == (52, True)
    assert ran.line(f"{skipped} unsupported").startswith(
        f"{skipped} unsupported, such as test_qwen_ladder.py::test_ladder["
    )
    assert ran.line("on a GPU machine: ").endswith("pytest --gpu test_qwen_ladder.py")
