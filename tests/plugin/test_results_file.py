"""``--vramfit-json``: a row for each case, whichever process measured it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inner import HEAD, Ran, RunOnce, run

SUITE = (
    HEAD
    + """
from enum import Enum

class Kind(str, Enum):
    LLAMA = "llama"

@pytest.mark.fits_vram(**{**TINY, "steps": 2})
def test_fits(vramfit):
    vramfit.measure(seq=32)

@pytest.mark.fits_vram(**TINY, card="1MiB", headroom="10%", max_step="60s")
def test_does_not_fit(): pass

@pytest.mark.fits_vram(**TINY, targets=["foo"])
def test_refused(): pass

@pytest.mark.fits_vram(model="Qwen2.5-72B", method="full")
def test_unsupported(): pass

@pytest.mark.fits_vram(model={"model_type": Kind.LLAMA, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64},
    seq=16, steps=1, warmup=2)
def test_values_of_odd_types(): pass

@pytest.mark.fits_vram(wrong=True)
def test_wrong(): pass

def test_unmarked(vramfit):
    vramfit.measure(**TINY)

def test_plain(): pass

@pytest.mark.fits_vram(**TINY)
def test_that_is_run_again(): pass
"""
)
AGAIN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    if item.name == "test_that_is_run_again":
        runtestprotocol(item, nextitem=nextitem)
"""
UNMARKED = "def test_plain(): pass"


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    options = ("--vramfit=cpu", "-n2", "--vramfit-json=out/results.json")
    return run_once(*options, test_it=SUITE, conftest=AGAIN)


@pytest.fixture
def document(ran: Ran) -> dict[str, Any]:
    return read(ran.folder / "out" / "results.json")


def read(path: Path) -> dict[str, Any]:
    """JSON in the strict sense: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document: dict[str, Any] = json.loads(path.read_text("utf-8"), parse_constant=refuse)
    return document


@pytest.fixture
def rows(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The judged and the unmeasured rows."""
    return {
        row["nodeid"].removeprefix("test_it.py::test_"): row
        for row in document["results"]
        if row.get("judged", True)
    }


def test_all_rows_are_there(document: dict[str, Any]) -> None:
    """Of both of xdist's workers; none of a wrong marker, none twice of a test run twice."""
    assert sorted((row["nodeid"], row["outcome"]) for row in document["results"]) == [
        ("test_it.py::test_does_not_fit", "over_vram"),
        ("test_it.py::test_fits", "fits"),
        ("test_it.py::test_fits", "fits"),
        ("test_it.py::test_refused", "refused"),
        ("test_it.py::test_that_is_run_again", "fits"),
        ("test_it.py::test_unmarked", "fits"),
        ("test_it.py::test_unsupported", "unsupported"),
        ("test_it.py::test_values_of_odd_types", "fits"),
    ]


def test_head(document: dict[str, Any]) -> None:
    assert document["schema"] == "pytest-vramfit/results/1"
    assert {"device", "os", "python", "torch"} <= set(document["environment"])


def test_measured_row(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["fits"]
    memory, time = row["memory"], row["time"]
    assert (row["engine"], row["judged"], len(row["digest"])) == ("cpu", True, 16)
    assert (row["spec"]["model"], row["spec"]["seq"]) == ("tiny", 16)
    assert memory["peak_allocated_bytes"] == max(
        memory["phases"][phase] for phase in ("forward", "backward", "optimizer")
    )
    assert len(time["step_ns"]) == 2
    assert time["tokens_per_second"] == pytest.approx(16e9 / min(time["step_ns"]))


def test_limits_are_in_bytes_and_ns(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["does_not_fit"]
    assert row["limits"]["card_bytes"] == row["card"]["total_bytes"] == 2**20
    assert row["limits"]["max_step_ns"] == 60 * 10**9


def test_checks(rows: dict[str, dict[str, Any]]) -> None:
    checks = {check["name"]: check for check in rows["does_not_fit"]["checks"]}
    assert {name: check["status"] for name, check in checks.items()} == {
        "no_oom": "pass",
        "peak_within_vram": "fail",
        "resident": "unchecked",
        "headroom": "fail",
        "trained": "pass",
        "max_step": "pass",
        "step_time": "unchecked",
        "gpu_time": "unchecked",
        "steady": "unchecked",
        "peak_baseline": "unchecked",
    }
    peak = checks["peak_within_vram"]
    assert (peak["value"] > peak["limit"], peak["limit"], peak["unit"]) == (True, 2**20, "bytes")


def test_not_measured_is_null(rows: dict[str, dict[str, Any]]) -> None:
    """A CPU has no allocator, no GPU time, no energy, and no card that memory could leave."""
    memory, time = rows["fits"]["memory"], rows["fits"]["time"]
    figures = [
        memory["peak_reserved_bytes"],
        memory["resident_bytes"],
        memory["outside_allocator_bytes"],
        memory["allocator_retries"],
        time["gpu_ns"],
        time["joules_per_10k_tokens"],
        rows["fits"]["spill"],
    ]
    assert figures == [None] * len(figures)
    assert sum(memory["ledger"].values()) == memory["peak_allocated_bytes"]


@pytest.mark.parametrize("name", ["refused", "unsupported"])
def test_row_of_a_case_that_was_not_measured(rows: dict[str, dict[str, Any]], name: str) -> None:
    row = rows[name]
    assert [row[part] for part in ("card", "memory", "time", "spill")] == [None] * 4
    assert (row["checks"], bool(row["says"])) == ([], True)


@pytest.mark.parametrize("given", ["option", "ini"])
def test_where_it_is_written(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """An option is meant from here, an ini file from the rootdir."""
    pytester.makepyfile(**{"below/test_it": UNMARKED})
    pytester.makeini("[pytest]" + ("\nvramfit_json = results.json" if given == "ini" else ""))
    monkeypatch.chdir(pytester.path / "below")
    run(pytester, "--vramfit=cpu", *(["--vramfit-json=results.json"] if given == "option" else []))
    found = [str(path.relative_to(pytester.path)) for path in pytester.path.rglob("results.json")]
    assert found == [{"option": "below/results.json", "ini": "results.json"}[given]]


def test_earlier_file_is_replaced(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(UNMARKED)
    (pytester.path / "results.json").write_text("earlier")
    run(pytester, "--vramfit=cpu", "--vramfit-json=results.json")
    assert read(pytester.path / "results.json")["results"] == []


def test_cannot_be_written_at_the_end(pytester: pytest.Pytester) -> None:
    """Then the run is no success, though all its tests passed."""
    pytester.makepyfile("def test_it():\n    open('out', 'x').close()")
    ran = run(pytester, "--vramfit=cpu", "--vramfit-json=out/results.json")
    assert ran.status == pytest.ExitCode.TESTS_FAILED
    assert ran.line("--vramfit-json=").startswith(
        f"--vramfit-json={pytester.path}/out/results.json could not be written: "
    )


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan", "--fixtures"])
def test_run_that_measures_nothing_leaves_the_file(pytester: pytest.Pytester, option: str) -> None:
    """Of an earlier run."""
    pytester.makepyfile(test_it=HEAD + "\n@pytest.mark.fits_vram(**TINY)\ndef test_a(): pass\n")
    earlier = pytester.path / "out.json"
    earlier.write_text("earlier")
    run(pytester, "--vramfit=cpu", "--vramfit-json=out.json", option)
    assert earlier.read_text() == "earlier"
