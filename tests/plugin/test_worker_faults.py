"""What befalls the worker process is an ERROR of one test; and it never outlives pytest."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from faulty_library import PSUTIL
from inner import HEAD, SECONDS, Ran, RunOnce

COMMON = (
    HEAD
    + """
import json
import signal
import threading
import time
from pathlib import Path

import psutil

LONG = {**TINY, "steps": 10_000}

def worker():
    process, = psutil.Process().children()
    return process
"""
)
FAULTS = (
    COMMON
    + """
PEAKS = []

@pytest.fixture
def kill_soon():
    killing = threading.Timer(1, worker().kill)
    killing.start()
    yield
    killing.join()

@pytest.fixture
def interrupt_soon():
    def interrupt(*_):
        raise RuntimeError("interrupted")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)

@pytest.mark.fits_vram(**TINY)
def test_first(vramfit):
    PEAKS.append(vramfit.peak_allocated_bytes)

@pytest.mark.fits_vram(**LONG, timeout=0.5)
def test_timeout(): pass

@pytest.mark.fits_vram(**TINY)
def test_after_timeout(vramfit):
    assert vramfit.peak_allocated_bytes == PEAKS[0]
    process = worker()
    process.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)

@pytest.mark.fits_vram(**TINY)
def test_killed_between(): pass

@pytest.mark.fits_vram(**TINY)
def test_after_killed_between(vramfit):
    assert vramfit.peak_allocated_bytes == PEAKS[0]

@pytest.mark.usefixtures("kill_soon")
@pytest.mark.fits_vram(**LONG)
def test_killed_during(): pass

@pytest.mark.fits_vram(**TINY)
def test_after_killed_during(vramfit):
    assert vramfit.peak_allocated_bytes == PEAKS[0]

@pytest.mark.usefixtures("interrupt_soon")
@pytest.mark.fits_vram(**LONG)
def test_interrupted(): pass

@pytest.mark.fits_vram(**{**TINY, "seq": 32})
def test_after_interrupted(vramfit):
    assert vramfit.peak_allocated_bytes != PEAKS[0]
    assert vramfit.measure(seq=16).peak_allocated_bytes == PEAKS[0]

def test_one_worker_is_left():
    assert worker().is_running()
"""
)
PIDS = (
    COMMON
    + """
SMALL = dict.fromkeys(["hidden_size", "intermediate_size", "vocab_size"], 64)
Path("folder").mkdir()
Path("folder/config.json").write_text(json.dumps({"model_type": "gpt_neox", **SMALL}))

def note_the_worker():
    with Path("pids.txt").open("a") as file:
        print(worker().pid, file=file)

@pytest.fixture(autouse=True)
def before_and_after():
    note_the_worker()
    yield
    note_the_worker()

@pytest.mark.fits_vram(**TINY)
def test_one(): pass

@pytest.mark.fits_vram(model={"model_type": "llama", "hidden_act": "wobble"})
def test_build_that_raises(): pass

@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_does_not_fit(): pass

@pytest.mark.fits_vram(**TINY, alloc_conf="expandable_segments:True")
def test_settings_of_the_gpu_s_allocator(): pass

@pytest.mark.fits_vram(model="folder", weights="pretrained")
def test_weights_of_a_folder(): pass

def test_prints_a_lot():
    print("x" * 1_000_000)
    assert False

@pytest.mark.fits_vram(**TINY)
def test_two(): pass
"""
)
ENDLESS = (
    COMMON
    + """
@pytest.mark.fits_vram(**TINY)
def test_first():
    if Path("hang.py").exists():
        Path("hang.py").rename("fault.py")
    Path("first").touch()

@pytest.mark.fits_vram(**LONG)
def test_long(): pass
"""
)
HINT = "; the kernel does that when the machine runs out of memory"
# a call that lets no other thread of the process run
HANG = """
import ctypes
(HERE / "hangs").touch()
ctypes.PyDLL(None).sleep(600)
"""


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", test_it=FAULTS)


@pytest.mark.parametrize(
    ("test", "outcome", "says"),
    [
        ("test_timeout", "timeout", "the case took more than 0.5 s"),
        (
            "test_killed_during",
            "crashed",
            f"the worker was killed by SIGKILL{HINT}",
        ),
    ],
)
def test_fault_is_an_error(ran: Ran, test: str, outcome: str, says: str) -> None:
    sentence = (
        f"fits_vram: tiny, QLoRA rank 4, seq 16, batch 1 could not be measured ({outcome}): {says}"
    )
    assert (ran.word(test), ran.text(test).splitlines()[0]) == ("ERROR", sentence)


@pytest.mark.parametrize(
    "test",
    [
        "test_after_timeout",
        "test_after_killed_between",
        "test_after_killed_during",
        "test_after_interrupted",
    ],
)
def test_next_case_is_right(ran: Ran, test: str) -> None:
    """The same peak as before the fault, to the byte; and no answer to an earlier question."""
    assert ran.word(test) == "PASSED", ran.text(test)


def test_worker_that_ended_between_two_cases_is_replaced(ran: Ran) -> None:
    """It was no case's fault."""
    assert ran.word("test_killed_between") == "PASSED", ran.text("test_killed_between")


def test_interruption_is_an_error(ran: Ran) -> None:
    """An exception from elsewhere while the case runs, such as pytest-timeout's."""
    assert ran.word("test_interrupted") == "ERROR"


def test_one_process_at_a_time(ran: Ran) -> None:
    assert ran.word("test_one_worker_is_left") == "PASSED"


def test_one_process_for_all_cases(run_once: RunOnce) -> None:
    """Also after a case that did not fit and one whose build raised, and where nothing but a GPU's
    allocator or a file has another setting.
    """
    ran = run_once("--vramfit=cpu", test_it=PIDS)
    assert "no file named model.safetensors" in ran.text("test_weights_of_a_folder")
    assert len(set((ran.folder / "pids.txt").read_text().split())) == 1


def test_isolate_takes_a_process_for_each_case(run_once: RunOnce) -> None:
    ran = run_once("--vramfit=cpu", "--vramfit-isolate", "-k", "one", test_it=PIDS)
    assert len(set((ran.folder / "pids.txt").read_text().split())) == 2


def test_test_that_prints_a_lot_is_in_nobodys_way(run_once: RunOnce) -> None:
    ran = run_once("--vramfit=cpu", test_it=PIDS)
    assert [ran.word(f"test_{name}") for name in ("prints_a_lot", "two")] == ["FAILED", "PASSED"]


@pytest.mark.parametrize(
    ("during", "how"),
    [
        ("start", signal.SIGKILL),
        ("case", signal.SIGKILL),
        ("case", signal.SIGTERM),
        ("case", signal.SIGINT),
        pytest.param(
            "hang",
            signal.SIGKILL,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux only"),
        ),
    ],
)
def test_process_ends_with_pytest(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    during: str,
    how: signal.Signals,
) -> None:
    pytester.makepyfile(test_it=ENDLESS, psutil=PSUTIL)
    if during == "hang":
        pytester.makepyfile(hang=HANG)
        monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    output = pytester.path / "output"
    command = [sys.executable, "-m", "pytest", "-p", "vramfit", "--vramfit=cpu"]
    # a job in the background of a shell ignores the signal
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with output.open("w") as file:
            popen = pytester.popen([*command, "--vramfit-json=r.json"], stdout=file, stderr=file)
    finally:
        signal.signal(signal.SIGINT, before)
    process = psutil.Process(popen.pid)
    if during == "start":
        wait_until(lambda: bool(process.children()))
    else:
        wait_until((pytester.path / {"case": "first", "hang": "hangs"}[during]).exists)
        time.sleep(1)
    workers = process.children(recursive=True)
    popen.send_signal(how)
    popen.wait(timeout=20)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert (len(workers), alive) == (1, [])
    if how == signal.SIGINT:
        assert popen.returncode == pytest.ExitCode.INTERRUPTED
        (measured,) = json.loads((pytester.path / "r.json").read_text())["results"]
        assert (measured["nodeid"], measured["outcome"]) == ("test_it.py::test_first", "fits")
        assert "= vramfit =" in output.read_text()
        assert "INTERNALERROR" not in output.read_text()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
