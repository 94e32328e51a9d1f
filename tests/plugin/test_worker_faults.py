"""What befalls the worker process is an ERROR of one test, and never outlives pytest."""

from __future__ import annotations

import signal
import sys
import time

import psutil
import pytest
from inner import HEAD, SECONDS, Ran, RunOnce

NEVER_ENDS = '"steps": 10_000'
COMMON = (
    HEAD
    + """
import threading
import time

import psutil

LONG = {**TINY, "steps": 10_000}
PEAKS = []

def workers():
    return psutil.Process().children()

@pytest.fixture
def kill_soon():
    \"\"\"In the middle of the case, or of the start of its worker.\"\"\"
    killing = threading.Timer(1.5, workers()[0].kill)
    killing.start()
    yield
    killing.join()
"""
)
FAULTS = (
    COMMON
    + """
@pytest.mark.fits_vram(**TINY)
def test_first(vramfit):
    PEAKS.append(vramfit.peak_allocated_bytes)

@pytest.mark.fits_vram(**LONG, timeout=2)
def test_timeout(): pass

@pytest.mark.fits_vram(**TINY)
def test_after_timeout(vramfit):
    assert vramfit.peak_allocated_bytes == PEAKS[0]
    worker, = workers()
    worker.kill()
    worker.wait()

@pytest.mark.fits_vram(**TINY)
def test_killed_between(): pass

@pytest.mark.fits_vram(**TINY)
def test_after_killed_between(vramfit):
    assert vramfit.peak_allocated_bytes == PEAKS[0]

@pytest.mark.usefixtures("kill_soon")
@pytest.mark.fits_vram(**LONG)
def test_killed_during(): pass

@pytest.mark.timeout(2)
@pytest.mark.fits_vram(**LONG)
def test_interrupted_by_another_plugin(): pass

@pytest.mark.fits_vram(**{**TINY, "seq": 32})
def test_after_interrupted(vramfit):
    assert vramfit.outcome == "fits"
    assert vramfit.measure(seq=16).peak_allocated_bytes == PEAKS[0]

def test_one_worker_at_a_time():
    assert len(workers()) == 1
"""
)
REUSED = (
    COMMON
    + """
@pytest.fixture(autouse=True)
def pids(vramfit, record_property):
    record_property("pid", workers()[0].pid)

@pytest.mark.fits_vram(**TINY)
def test_one(): print("pid", workers()[0].pid)

@pytest.mark.fits_vram(model={"model_type": "llama", "hidden_act": "wobble"})
def test_build_that_raises(): pass

@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_does_not_fit(): pass

@pytest.mark.fits_vram(**TINY)
def test_two(): print("pid", workers()[0].pid)

def test_prints_a_lot():
    print("x" * 1_000_000)
"""
)
