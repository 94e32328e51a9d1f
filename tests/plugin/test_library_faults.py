"""What a library does to the worker from inside is an ERROR of one case that says what it was."""

from __future__ import annotations

import os
import re

import pytest
from faulty_library import PSUTIL
from inner import HEAD, Ran, RunOnce

FAULTS = {
    "prints_and_exits": """
for stream in (sys.stdout, sys.stderr):
    for _ in range(50):
        print("x" * 10**6, file=stream)
raise SystemExit("the library has had enough")
""",
    "exits_at_once": "import os; os._exit(7)",
    "interrupts": "raise KeyboardInterrupt",
    "violates_memory": "import ctypes; ctypes.string_at(0)",
    "needs_more_than_the_machine_has": "import torch; torch.empty(2**60, dtype=torch.uint8)",
    "is_stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
}
SUITE = f"""{HEAD}
import psutil
from pathlib import Path

FAULTS = {FAULTS}
PEAKS = set()
SIZES = []

@pytest.fixture(autouse=True)
def before(request):
    name = request.node.name.removeprefix("test_")
    if name in FAULTS:
        Path("fault.py").write_text(FAULTS[name])

@pytest.mark.fits_vram(**TINY)
def test_first(vramfit):
    PEAKS.add(vramfit.peak_allocated_bytes)
    SIZES.append(psutil.Process().memory_info().rss)
"""
SUITE += "".join(
    f"""
@pytest.mark.fits_vram(**TINY, timeout=3)
def test_{name}(): pass

@pytest.mark.fits_vram(**TINY)
def test_after_{name}(vramfit):
    PEAKS.add(vramfit.peak_allocated_bytes)
    assert len(PEAKS) == 1
    SIZES.append(psutil.Process().memory_info().rss)
"""
    for name in FAULTS
)
SUITE += """
def test_size_of_this_process():
    assert max(SIZES) - min(SIZES) < 20 * 2**20
"""
FULL_DISK = """
import resource
from pathlib import Path

import pytest

write_text = Path.write_text

def write_where_no_room_is(path, *arguments, **options):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        return write_text(path, *arguments, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    Path.write_text = write_where_no_room_is
"""


@pytest.fixture
def ran(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, run_once: RunOnce) -> Ran:
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    options = ("--vramfit=cpu", "--vramfit-json=results.json")
    return run_once(*options, test_it=SUITE, psutil=PSUTIL, conftest=FULL_DISK)


@pytest.mark.parametrize(
    ("fault", "says", "printed"),
    [
        ("prints_and_exits", "crashed): the worker exited with status 1", "has had enough"),
        ("exits_at_once", "crashed): the worker exited with status 7", ""),
        ("interrupts", "crashed): the worker was killed by SIGINT", "KeyboardInterrupt"),
        ("violates_memory", "crashed): the worker was killed by SIGSEGV", "in string_at"),
        ("needs_more_than_the_machine_has", "Cannot allocate memory)", "in cpu_times"),
        ("is_stopped", "timeout): the case took more than 3 s", ""),
    ],
)
def test_fault_is_an_error_that_says_what_it_was(
    ran: Ran, fault: str, says: str, printed: str
) -> None:
    assert ran.word(f"test_{fault}") == "ERROR"
    _, _, text = ran.output.partition(f" ERROR at setup of test_{fault} ")
    _, sentence, *output = re.split("\n(?:_____|=====)", text)[0].splitlines()
    assert sentence.endswith(says)
    assert printed in "\n".join(output)
    assert len("".join(output)) < 5000


@pytest.mark.parametrize("fault", FAULTS)
def test_next_case_is_right(ran: Ran, fault: str) -> None:
    """The same peak, to the byte."""
    assert ran.word(f"test_after_{fault}") == "PASSED", ran.text(f"test_after_{fault}")


def test_what_is_printed_is_not_kept(ran: Ran) -> None:
    """100 MB were printed in the worker."""
    assert ran.word("test_size_of_this_process") == "PASSED"


def test_results_that_find_no_room_are_one_sentence(ran: Ran) -> None:
    """The disk is full: nothing is left of the file, and the rest of the run is told."""
    line = ran.line("--vramfit-json=")
    assert line.endswith("results.json could not be written: [Errno 27] File too large")
    assert list(ran.folder.glob("results.json*")) == []
    assert ran.cases["test_first"] == "fits"
    assert "INTERNALERROR" not in ran.output
