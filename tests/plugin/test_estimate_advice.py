"""What would fit stands under a failure, and holds for whoever follows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from inner import Ran, RunOnce

SUITE = """
import pytest

# of 917 MiB, 118 are the allocator's
LARGE = {"model": "tiny", "seq": 512, "batch": 8, "card": "917MiB"}

@pytest.mark.fits_vram(**LARGE)
def test_too_large(): pass

@pytest.mark.fits_vram(**LARGE, checkpointing=True)
def test_follows_advice(): pass

@pytest.mark.fits_vram(**{**LARGE, "card": "780MiB"})
def test_nothing_helps(): pass

@pytest.mark.xfail(strict=True)
@pytest.mark.fits_vram(**LARGE)
def test_expected(): pass

@pytest.mark.fits_vram(model="tiny", seq=16, card="1GiB")
def test_measures(vramfit):
    assert vramfit.measure(seq=512, batch=8, card="917MiB").outcome == "oom"
"""


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=estimate", "--vramfit-json=results.json", test_it=SUITE)


def rows(ran: Ran, test: str) -> list[dict[str, Any]]:
    document = json.loads((ran.folder / "results.json").read_text(encoding="utf-8"))
    return [one for one in document["results"] if one["nodeid"] == f"test_it.py::{test}"]


def test_failure_lists_what_would_fit(ran: Ran) -> None:
    assert ran.word("test_too_large") == "FAILED"
    (row,) = rows(ran, "test_too_large")
    lines = ran.text("test_too_large").splitlines()
    begin = next(n for n, line in enumerate(lines) if "would fit (estimated)" in line)
    listed = lines[begin : begin + len(row["advice"])]
    assert listed[0].split("(estimated)")[1].startswith("    checkpointing=True  ")
    assert [line[27:].split("  ")[0] for line in listed] == [one["says"] for one in row["advice"]]


def test_each_that_is_listed_is_one_change_that_needs_less(ran: Ran) -> None:
    (row,) = rows(ran, "test_too_large")
    changed = [one["keywords"] for one in row["advice"]]
    assert changed[:2] == [{"checkpointing": True}, {"batch": 4, "accumulation": 2}]
    peak = row["memory"]["peak_allocated_bytes"]
    assert all(one["peak_allocated_bytes"] < peak for one in row["advice"])


def test_advice_holds_for_who_follows_it(ran: Ran) -> None:
    assert ran.word("test_follows_advice") == "PASSED"
    (row,), (advised,) = rows(ran, "test_too_large"), rows(ran, "test_follows_advice")
    expected = row["advice"][0]["peak_allocated_bytes"]
    assert advised["memory"]["peak_allocated_bytes"] == expected
    assert advised["advice"] is None


def test_card_that_nothing_fits(ran: Ran) -> None:
    assert ran.word("test_nothing_helps") == "FAILED"
    assert "  advice                   no single change and no two" in ran.text(
        "test_nothing_helps"
    )


def test_expected_failure_gets_none(ran: Ran) -> None:
    """Nobody looks for a way out of it."""
    assert ran.word("test_expected") == "XFAIL"
    assert [one["advice"] for one in rows(ran, "test_expected")] == [None]


def test_what_a_test_measures_itself_gets_none(ran: Ran) -> None:
    assert ran.word("test_measures") == "PASSED"
    assert [one["advice"] for one in rows(ran, "test_measures")] == [None, None]
