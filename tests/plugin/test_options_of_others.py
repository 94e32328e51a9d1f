"""Options of pytest and of widespread plugins mean for a case what they mean for any test."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import psutil
import pytest
from inner import HEAD, SECONDS, Ran, RunOnce, run

CASES = (
    HEAD
    + """
import os
import threading
from pathlib import Path

import psutil

fits = pytest.mark.fits_vram(**TINY)

def workers():
    return psutil.Process().children()
"""
)
SUITE = (
    CASES
    + """
@fits
def test_first(): pass

@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_over(): pass

@fits
def test_last(): pass

def test_plain(): pass
"""
)
UNMEASURED = (
    CASES
    + """
def test_plain(): pass

@fits
@pytest.mark.fits_vram(rank=3)
def test_twice(): pass

@pytest.mark.fits_vram(wrong=True)
def test_wrong(): pass

def test_no_worker(): assert workers() == []
"""
)
RERUN = (
    CASES
    + """
def first_time(name):
    if Path(name).exists():
        return False
    Path(name).touch()
    return True

@pytest.fixture
def crash_once():
    killing = None
    if first_time("crash"):
        killing = threading.Timer(0.3, workers()[0].kill)
        killing.start()
    yield
    if killing:
        killing.join()

@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_over(): pass

@pytest.mark.fits_vram(**TINY, max_step="1ns")
def test_slower(): pass

@fits
def test_body(): assert not first_time("body")

@pytest.mark.fits_vram(**TINY, targets=["foo"])
def test_refused(): pass

@pytest.mark.usefixtures("crash_once")
@pytest.mark.fits_vram(**{**TINY, "steps": 100})
def test_crash(): pass
"""
)
TOO_LONG = (
    CASES
    + """
PEAKS = []

@fits
def test_first(vramfit):
    PEAKS.append(vramfit.peak_allocated_bytes)
    Path("worker").write_text(str(workers()[0].pid))

@pytest.mark.timeout(1)
@pytest.mark.fits_vram(**{**TINY, "steps": 10_000})
def test_long(): pass

@pytest.mark.fits_vram(**{**TINY, "seq": 32})
def test_next(vramfit):
    assert vramfit.peak_allocated_bytes != PEAKS[0]
    assert vramfit.measure(seq=16).peak_allocated_bytes == PEAKS[0]
    assert len(workers()) == 1
"""
)


def outcomes(file: Path) -> dict[str, tuple[str, str | None]]:
    """What was measured of each test, and how the test went; None where it was not called."""
    rows = json.loads(file.read_text())["results"]
    return {row["nodeid"].partition("::")[2]: (row["outcome"], row["test"]) for row in rows}


@pytest.fixture
def rerun(run_once: RunOnce) -> Ran:
    pytest.importorskip("pytest_rerunfailures")
    options = ("-p", "pytest_rerunfailures", "--reruns=1", "--vramfit-json=r.json")
    return run_once("--vramfit=cpu", *options, "-k", "not crash", test_it=RERUN)


@pytest.mark.parametrize(
    ("test", "word", "outcome"),
    [
        ("test_over", "FAILED", ("over_vram", "failed")),
        ("test_slower", "FAILED", ("slower", "failed")),
        ("test_body", "PASSED", ("fits", "passed")),
        ("test_refused", "ERROR", ("refused", "failed")),
    ],
)
def test_rerun_measures_anew(rerun: Ran, test: str, word: str, outcome: tuple[str, str]) -> None:
    """So what does not fit does not fit again."""
    words = re.findall(rf"::{test} (\w+)", rerun.output)
    assert words[:2] == ["RERUN", word]
    assert outcomes(rerun.folder / "r.json")[test] == outcome


def test_rerun_of_what_could_not_be_measured_only(pytester: pytest.Pytester) -> None:
    """A crash of the machine's may pass the second time; a verdict is the first time's."""
    pytest.importorskip("pytest_rerunfailures")
    pytester.makepyfile(RERUN)
    ran = run(
        pytester,
        *("-p", "pytest_rerunfailures", "--vramfit=cpu", "-k", "crash or over"),
        *("--reruns=1", "--only-rerun=could not be measured"),
    )
    assert re.findall(r"::(\w+) (\w+) +\[", ran.output) == [
        ("test_over", "FAILED"),
        ("test_crash", "RERUN"),
        ("test_crash", "PASSED"),
    ]


def test_timeout_by_signal(pytester: pytest.Pytester) -> None:
    """The worker's late answer is not taken for the next one."""
    pytest.importorskip("pytest_timeout")
    pytester.makepyfile(TOO_LONG)
    ran = run(pytester, "-p", "pytest_timeout", "--timeout-method=signal", "--vramfit=cpu")
    words = [ran.word(f"test_{name}") for name in ("first", "long", "next")]
    assert words == ["PASSED", "ERROR", "PASSED"]
    assert "Timeout (>1.0s) from pytest-timeout" in ran.output


def test_timeout_by_thread(pytester: pytest.Pytester) -> None:
    """It ends pytest where it stands, and the worker ends with it."""
    pytest.importorskip("pytest_timeout")
    pytester.makepyfile(TOO_LONG)
    ran = run(pytester, "-p", "pytest_timeout", "--timeout-method=thread", "--vramfit=cpu")
    assert "test_next" not in ran.output.partition("Timeout")[0]
    pid = int((ran.folder / "worker").read_text())
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def test_first_failure_ends_the_run_and_is_what_last_failed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    first = run(pytester, "--vramfit=cpu", "-x")
    assert first.cases == {"test_first": "fits", "test_over": "over_vram"}
    again = run(pytester, "--vramfit=cpu", "--lf")
    assert again.cases == {"test_over": "over_vram"}
    assert again.status == pytest.ExitCode.TESTS_FAILED


def test_error_is_a_failure_to_the_cache(pytester: pytest.Pytester) -> None:
    """For ``--ff`` and ``--sw`` too."""
    pytester.makepyfile(UNMEASURED)
    options = (
        "--vramfit=cpu",
        "--deselect=test_error_is_a_failure_to_the_cache.py::test_no_worker",
    )
    stopped = [run(pytester, *options, "--sw").output for _ in range(2)]
    assert [re.findall(r"::(\w+) [A-Z]+ +\[", one) for one in stopped] == [
        ["test_plain", "test_twice"],
        ["test_twice"],
    ]
    ran = run(pytester, *options, "--ff")
    assert re.findall(r"::(\w+) [A-Z]+ +\[", ran.output) == [
        "test_twice",
        "test_plain",
        "test_wrong",
    ]


@pytest.mark.parametrize(
    "selection",
    [
        ("-m", "not fits_vram"),
        ("-k", "plain or no_worker"),
        tuple(f"--deselect=test_it.py::test_{name}" for name in ("twice", "wrong")),
    ],
    ids=["-m", "-k", "--deselect"],
)
def test_deselected_cases_cost_no_worker(
    pytester: pytest.Pytester, selection: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=UNMEASURED)
    ran = run(pytester, "--vramfit=cpu", *selection)
    assert [ran.word("test_plain"), ran.word("test_no_worker")] == ["PASSED", "PASSED"]
    assert " 2 passed, 2 deselected in " in ran.output


def test_set_up_only_measures_and_judges_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    options = ("--setup-only", "-k", "over or plain", "--vramfit-json=r.json")
    ran = run(pytester, "--vramfit=cpu", *options)
    assert (ran.status, ran.cases) == (pytest.ExitCode.OK, {"test_over": "over_vram"})
    assert "SETUP    F vramfit" in ran.output
    assert outcomes(pytester.path / "r.json") == {"test_over": ("over_vram", None)}


def test_set_up_only_records_no_baseline(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE)
    ran = run(pytester, "--vramfit=cpu", "--setup-only", "-k", "first", "--vramfit-update")
    assert ran.status == pytest.ExitCode.TESTS_FAILED
    assert ran.line("not recorded: ") == (
        "not recorded: test_it.py::test_first: its test did not pass"
    )
    assert not (pytester.path / ".vramfit").exists()


def test_no_terminal_and_no_cache(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    ran = pytester.runpytest_subprocess(
        *("-p", "vramfit", "-p", "no:terminal", "-p", "no:cacheprovider"),
        *("--vramfit=cpu", "--vramfit-json=r.json"),
        timeout=SECONDS,
    )
    assert (ran.ret, ran.outlines) == (pytest.ExitCode.TESTS_FAILED, [])
    assert outcomes(pytester.path / "r.json") == {
        "test_first": ("fits", "passed"),
        "test_over": ("over_vram", "failed"),
        "test_last": ("fits", "passed"),
    }


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        (("--dist=loadfile",), " 1 failed, 3 passed in "),
        (("--dist=each",), " 2 failed, 6 passed in "),
        (("--dist=loadscope", "--maxfail=1"), " 1 failed, 1 passed in "),
    ],
    ids=["loadfile", "each", "loadscope"],
)
def test_workers_of_xdist(pytester: pytest.Pytester, options: tuple[str, ...], counts: str) -> None:
    """Each case is in the results once, also where every worker runs it."""
    pytester.makepyfile(SUITE)
    ran = run(pytester, "--vramfit=cpu", "-n2", *options, "--vramfit-json=r.json")
    assert counts in ran.output
    rows = json.loads((ran.folder / "r.json").read_text())["results"]
    names = [row["nodeid"].partition("::")[2] for row in rows]
    cases = ["test_first", "test_over", "test_last"]
    assert sorted(names) == sorted(cases[:2] if "--maxfail=1" in options else cases)


DEPRECATED = """
import warnings

warnings.warn("The pynvml package is deprecated. Please install nvidia-ml-py.", FutureWarning)

class NVMLError(Exception): pass

def nvmlInit(): raise NVMLError("no driver")
"""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (DEPRECATED + "nvmlMemory_v2 = 2", "NVML: no driver"),
        (
            DEPRECATED,
            (
                "the module pynvml is not nvidia-ml-py's; uninstall the deprecated package "
                "pynvml, then install nvidia-ml-py again"
            ),
        ),
    ],
    ids=["warns", "hides nvidia-ml-py"],
)
def test_deprecated_pynvml_where_warnings_are_errors(
    pytester: pytest.Pytester, source: str, why: str
) -> None:
    """Its warning is not about the user's tests; where it has too little, that is said."""
    pytester.makepyfile(pynvml=source, test_it="def test_it(): pass")
    ran = run(pytester, "--gpu", "-W", "error")
    assert ran.line("vramfit: ") == f"vramfit: gpu engine, but no usable GPU: {why}"
    assert (ran.status, ran.word("test_it")) == (pytest.ExitCode.OK, "PASSED")
