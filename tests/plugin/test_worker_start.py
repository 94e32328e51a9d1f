"""A worker that cannot be started is the error of the cases that need it, of nothing else."""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce

NO_PYTHON = """
import sys
sys.executable = "/nowhere/python"
"""
SUITE = (
    HEAD
    + """
@pytest.mark.fits_vram(**TINY)
def test_marked(): pass

def test_other(): pass
"""
)


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", test_it=SUITE, conftest=NO_PYTHON)


def test_marked_test_says_what_could_not_be_started(ran: Ran) -> None:
    assert ran.word("test_marked") == "ERROR"
    first = ran.text("test_marked").splitlines()[0]
    assert first.startswith(
        "fits_vram: tiny, QLoRA rank 4, seq 16, batch 1 could not be measured (crashed): the "
        "worker could not be started: "
    )
    assert "/nowhere/python" in first


def test_other_test_runs(ran: Ran) -> None:
    assert ran.word("test_other") == "PASSED"
    assert "INTERNALERROR" not in ran.output
