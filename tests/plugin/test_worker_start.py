"""A worker that cannot be started is the error of the cases that need it, of nothing else."""

from __future__ import annotations

import os

import pytest
from inner import HEAD, Ran, RunOnce

NO_PYTHON = """
import sys
sys.executable = "/nowhere/python"
"""
REMOVED_PYTHON = """
import sys
from pathlib import Path

script = Path("python").absolute()
script.write_text(f"#!/bin/sh\\nexec {sys.executable} \\"$@\\"")
script.chmod(0o755)
sys.executable = str(script)
"""
SUITE = (
    HEAD
    + """
@pytest.mark.fits_vram(**TINY)
def test_marked(): pass

def test_other(): pass
"""
)
REMOVED_IN_BETWEEN = (
    HEAD
    + """
from pathlib import Path

import psutil

@pytest.mark.fits_vram(**TINY)
def test_first():
    Path("python").unlink()
    process, = psutil.Process().children()
    process.kill()
    process.wait()

@pytest.mark.fits_vram(**TINY)
def test_second(): pass

def test_other(): pass
"""
)
BROKEN_LIBRARY = (
    HEAD
    + """
import time

import psutil

@pytest.fixture
def worker_is_gone():
    process, = psutil.Process().children()
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)

@pytest.mark.usefixtures("worker_is_gone")
@pytest.mark.fits_vram(**TINY)
def test_marked(): pass
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


def test_python_that_was_removed_between_two_cases(run_once: RunOnce) -> None:
    ran = run_once("--vramfit=cpu", test_it=REMOVED_IN_BETWEEN, conftest=REMOVED_PYTHON)
    words = [ran.word(f"test_{name}") for name in ("first", "second", "other")]
    assert words == ["PASSED", "ERROR", "PASSED"]
    text = ran.text("test_second")
    assert "the worker could not be started: [Errno 2]" in text
    assert "Traceback" not in text


def test_library_that_cannot_be_imported_is_said(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run_once: RunOnce
) -> None:
    """Also where the worker had ended before it was asked for anything."""
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    broken = "raise ImportError('this library is broken')"
    ran = run_once("--vramfit=cpu", test_it=BROKEN_LIBRARY, torch=broken)
    assert ran.word("test_marked") == "ERROR"
    assert ran.text("test_marked").endswith("(crashed): the worker exited with status 1")
    assert "ImportError: this library is broken" in ran.output
