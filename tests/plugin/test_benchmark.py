"""A case that fits is a result of pytest-benchmark, and pytest-benchmark has no say in the gate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inner import HEAD, Ran, RunOnce

FIT = """
@pytest.mark.fits_vram(**{**TINY, "steps": 3})
def test_fits(): pass
"""
DOES_NOT_FIT = """
@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_does_not_fit(): pass
"""
UNMARKED = """
def test_unmarked(): pass
"""
SUITE = (
    HEAD
    + FIT
    + DOES_NOT_FIT
    + """
import unittest

@pytest.mark.parametrize("vramfit", [{"seq": 32}], indirect=True)
@pytest.mark.fits_vram(**TINY)
@pytest.mark.benchmark(group="mine")
def test_of_a_group(): pass

@pytest.mark.fits_vram(**TINY)
def test_body_fails(): assert False

class TestOld(unittest.TestCase):
    @pytest.mark.fits_vram(**TINY)
    def test_body_fails_without_raising(self): self.fail()

@pytest.mark.fits_vram(**TINY)
@pytest.mark.xfail(strict=True)
def test_passes_unexpectedly(): pass

@pytest.mark.fits_vram(**TINY)
def test_own_benchmark(benchmark): assert benchmark(lambda: 7) == 7

@pytest.mark.fits_vram(**TINY)
def test_own_benchmark_by_request(request): request.getfixturevalue("benchmark")(int)

def test_only_measures(vramfit): vramfit.measure(**TINY)
"""
)
OWN_FIXTURE = """
import pytest

@pytest.fixture
def benchmark():
    raise Exception("was requested")
"""
CODSPEED = """
import pytest

@pytest.fixture
def benchmark():
    raise Exception("was requested")

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    known = {"benchmark", "codspeed_benchmark"}
    config.hook.pytest_deselected(items=[it for it in items if not known & {*it.fixturenames}])
    items[:] = [it for it in items if known & {*it.fixturenames}]
"""
"""What pytest-codspeed does under its ``--codspeed``."""
STRICT = ("-p", "benchmark", "-W", "error", "--vramfit=cpu")


def results(path: Path) -> dict[str, dict[str, Any]]:
    """The saved results by the names of their tests."""
    listed = json.loads(path.read_text("utf-8"))["benchmarks"]
    named = {one["name"]: one for one in listed}
    assert len(named) == len(listed)
    return named


@pytest.fixture
def saved(run_once: RunOnce) -> Ran:
    options = ("--benchmark-json=benchmarks.json", "--vramfit-json=vramfit.json")
    files = {"test_it": SUITE, "below/conftest": OWN_FIXTURE, "below/test_below": HEAD + FIT}
    return run_once(*STRICT, *options, "--benchmark-save=first", **files)


@pytest.fixture
def found(saved: Ran) -> dict[str, dict[str, Any]]:
    return results(saved.folder / "benchmarks.json")


@pytest.fixture
def rows(saved: Ran) -> dict[str, dict[str, Any]]:
    """Of our own results file, by the names of their tests."""
    listed = json.loads((saved.folder / "vramfit.json").read_text("utf-8"))["results"]
    return {row["nodeid"].removeprefix("test_it.py::"): row for row in listed}


@pytest.fixture
def row(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return rows["test_fits"]


def test_saved_are_tests_that_passed_and_have_no_other_benchmark(
    found: dict[str, dict[str, Any]],
) -> None:
    own = {"test_own_benchmark", "test_own_benchmark_by_request"}
    assert set(found) == {"test_fits", "test_of_a_group[seq=32]"} | own


@pytest.mark.parametrize(("test", "steps"), [("test_fits", 3), ("test_of_a_group[seq=32]", 1)])
def test_times_are_those_of_the_case(
    found: dict[str, dict[str, Any]], rows: dict[str, dict[str, Any]], test: str, steps: int
) -> None:
    """All of them, in their order, to the nanosecond."""
    stats, step_ns = found[test]["stats"], rows[test]["time"]["step_ns"]
    assert (len(step_ns), stats["rounds"], stats["iterations"]) == (steps, steps, 1)
    assert [one * 1e9 for one in stats["data"]] == pytest.approx(step_ns, rel=0, abs=0.5)


def test_extra_info(found: dict[str, dict[str, Any]], row: dict[str, Any]) -> None:
    assert found["test_fits"]["extra_info"] == {
        "outcome": "fits",
        "engine": "cpu",
        "device": row["card"]["name"],
        "digest": row["digest"],
        "peak_allocated_bytes": row["memory"]["peak_allocated_bytes"],
        "tokens_per_second": row["time"]["tokens_per_second"],
    }


def test_group_is_engine_and_device(
    saved: Ran, found: dict[str, dict[str, Any]], row: dict[str, Any]
) -> None:
    """Unless the test has one of its own."""
    group = f"vramfit cpu {row['card']['name']}"
    assert found["test_fits"]["group"] == group
    assert found["test_of_a_group[seq=32]"]["group"] == "mine"
    assert f" benchmark '{group}': 1 tests " in saved.output


@pytest.mark.parametrize("test", ["test_own_benchmark", "test_own_benchmark_by_request"])
def test_own_benchmark_has_its_own_times(found: dict[str, dict[str, Any]], test: str) -> None:
    """Nanoseconds, where the step takes milliseconds."""
    assert (found[test]["group"], found[test]["extra_info"]) == (None, {})
    assert found[test]["stats"]["median"] < 1e-4


@pytest.mark.parametrize(
    ("test", "word"),
    [
        ("test_fits", "PASSED"),
        ("test_does_not_fit", "FAILED"),
        ("test_body_fails", "FAILED"),
        ("TestOld::test_body_fails_without_raising", "FAILED"),
        ("test_passes_unexpectedly", "FAILED"),
        ("test_own_benchmark", "PASSED"),
        ("test_own_benchmark_by_request", "PASSED"),
    ],
)
def test_no_test_has_an_error_of_pytest_benchmark(saved: Ran, test: str, word: str) -> None:
    """Its warning of an unused fixture would be one."""
    assert saved.word(test) == word
    assert "ERROR" not in saved.output


def test_fixture_of_the_same_name_is_not_requested(saved: Ran) -> None:
    assert "below/test_below.py::test_fits PASSED" in saved.output
    assert "was requested" not in saved.output


@pytest.fixture
def compared(run_once: RunOnce, saved: Ran) -> Ran:
    """With the run that was saved, by benchmarks only, profiled: that runs each once more."""
    options = ("--benchmark-only", "--benchmark-compare", "--benchmark-cprofile=tottime")
    storage = f"--benchmark-storage={saved.folder / '.benchmarks'}"
    json_file = "--benchmark-json=benchmarks.json"
    suite = HEAD + FIT + DOES_NOT_FIT + UNMARKED
    return run_once(*STRICT, *options, storage, json_file, test_it=suite)


@pytest.mark.parametrize(
    ("test", "word"),
    [("test_fits", "PASSED"), ("test_does_not_fit", "FAILED"), ("test_unmarked", "SKIPPED")],
)
def test_benchmark_only_runs_cases(compared: Ran, test: str, word: str) -> None:
    assert compared.word(test) == word


def test_compared_with_a_saved_run(compared: Ran) -> None:
    names = [line.split()[:2] for line in compared.output.splitlines()]
    assert ["test_fits", "(0001_first)"] in names
    assert ["test_fits", "(NOW)"] in names


def test_profiler_does_not_add_a_time(compared: Ran) -> None:
    found = results(compared.folder / "benchmarks.json")
    assert len(found["test_fits"]["stats"]["data"]) == 3


@pytest.mark.parametrize("option", ["--benchmark-skip", "--benchmark-disable", "-n1"])
def test_where_there_are_no_benchmarks_the_gate_holds(run_once: RunOnce, option: str) -> None:
    ran = run_once(*STRICT, option, test_it=HEAD + FIT + DOES_NOT_FIT)
    assert (ran.word("test_fits"), ran.word("test_does_not_fit")) == ("PASSED", "FAILED")
    assert ran.cases == {"test_fits": "fits", "test_does_not_fit": "over_vram"}
    assert "ERROR" not in ran.output
    assert "- benchmark" not in ran.output


def test_codspeed_keeps_cases(run_once: RunOnce) -> None:
    """It would deselect them, and has a ``benchmark`` that would measure the replay."""
    suite = HEAD + FIT + DOES_NOT_FIT + UNMARKED
    ran = run_once(*STRICT, "--benchmark-disable", test_it=suite, conftest=CODSPEED)
    assert (ran.word("test_fits"), ran.word("test_does_not_fit")) == ("PASSED", "FAILED")
    assert " 1 deselected" in ran.output
    assert "was requested" not in ran.output


def test_not_imported_where_it_is_switched_off(run_once: RunOnce) -> None:
    """Not at all: loading it would cost every run."""
    after = """
def test_after():
    import sys
    assert [one for one in sys.modules if one.startswith("pytest_benchmark")] == []
"""
    options = ("-p", "no:benchmark", "--vramfit=cpu", "-W", "error")
    ran = run_once(*options, test_it=HEAD + FIT + after)
    assert (ran.word("test_fits"), ran.word("test_after")) == ("PASSED", "PASSED")


def test_failures_are_shown_where_nothing_is_left_to_save(run_once: RunOnce) -> None:
    """Of that pytest-benchmark warns at the end, and an error there would be the last word."""
    ran = run_once(*STRICT, "--benchmark-json=benchmarks.json", test_it=HEAD + DOES_NOT_FIT)
    assert ran.text("test_does_not_fit").startswith("fits_vram: tiny, ")
    assert ran.cases == {"test_does_not_fit": "over_vram"}
    assert not (ran.folder / "benchmarks.json").exists()
