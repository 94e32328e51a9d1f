"""Faults that only a GPU has are ERRORs of one case, and no memory of it stays used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from faulty_library import PSUTIL

from pytest_vramfit.measuring import nvml

SECONDS = 120
HEAD = """
import pytest
from pathlib import Path

TINY = {"model": "tiny", "rank": 4, "seq": 16, "steps": 1, "warmup": 2}
PEAKS = set()
"""
ILLEGAL_ACCESS = """
import torch
storage = torch._C._construct_storage_from_data_pointer(4096, torch.device("cuda", 0), 4096)
torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage).fill_(1)
torch.cuda.synchronize()
"""
ACCESSES = f"""{HEAD}
@pytest.fixture
def fault():
    Path("fault.py").write_text({ILLEGAL_ACCESS!r})

@pytest.mark.fits_vram(**TINY)
def test_first(vramfit):
    PEAKS.add(vramfit.peak_allocated_bytes)

@pytest.mark.usefixtures("fault")
@pytest.mark.fits_vram(**TINY)
def test_illegal_access(): pass

@pytest.mark.fits_vram(**TINY)
def test_after(vramfit):
    PEAKS.add(vramfit.peak_allocated_bytes)
    assert len(PEAKS) == 1
"""
PYNVML = '''
"""In front of the real one: it loses the GPU while there is a file ``gone`` beside it."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.remove(str(HERE))
del sys.modules["pynvml"]
import pynvml
sys.path.insert(0, str(HERE))

def losing(real):
    def call(*arguments, **options):
        if (HERE / "gone").exists():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return real(*arguments, **options)

    return call

for name in ("nvmlInit", "nvmlDeviceGetMemoryInfo"):
    setattr(pynvml, name, losing(getattr(pynvml, name)))
'''
GONE = f"""{HEAD}
@pytest.fixture
def gone():
    Path("gone").touch()
    yield
    Path("gone").unlink()

@pytest.mark.usefixtures("gone")
@pytest.mark.fits_vram(**TINY)
def test_gone_before(): pass

@pytest.mark.fits_vram(**TINY)
def test_first(vramfit):
    PEAKS.add(vramfit.peak_allocated_bytes)

@pytest.mark.usefixtures("gone")
@pytest.mark.fits_vram(**TINY)
def test_gone(): pass

@pytest.mark.fits_vram(**TINY)
def test_after(vramfit):
    PEAKS.add(vramfit.peak_allocated_bytes)
    assert len(PEAKS) == 1
"""
ENDLESS = f"""{HEAD}
@pytest.mark.fits_vram(**TINY)
def test_first():
    Path("first").touch()

@pytest.mark.fits_vram(**{{**TINY, "steps": 100_000}})
def test_long(): pass
"""


@pytest.fixture(autouse=True)
def shims_are_found(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)


def used_bytes() -> int:
    return sum(card.used_bytes for card in nvml.cards())


def test_illegal_memory_access(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=ACCESSES, psutil=PSUTIL)
    run = pytester.runpytest_subprocess("--gpu")
    run.assert_outcomes(passed=2, errors=1)
    output = run.stdout.str()
    assert "could not be measured (crashed): " in output
    assert "an illegal memory access was encountered" in output


def test_nvml_that_loses_the_gpu(pytester: pytest.Pytester) -> None:
    """Before the device is opened, and between two cases."""
    pytester.makepyfile(test_it=GONE, pynvml=PYNVML)
    run = pytester.runpytest_subprocess("--gpu")
    run.assert_outcomes(passed=2, errors=2)
    output = run.stdout.str()
    assert "could not be measured (unsupported): no usable GPU: NVML: GPU is lost" in output
    # from where its own first sentence ends
    assert "GPU is lost" in output.partition("ERROR at setup of test_gone _")[2]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_memory_stays_used(pytester: pytest.Pytester, how: signal.Signals) -> None:
    pytester.makepyfile(test_it=ENDLESS)
    before = used_bytes()
    command = [sys.executable, "-m", "pytest", "--gpu"]
    popen = pytester.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until((pytester.path / "first").exists, SECONDS)
    time.sleep(1)
    popen.send_signal(how)
    popen.wait(timeout=20)
    wait_until(lambda: used_bytes() <= before + 32 * 2**20, 20)


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
