"""``--vramfit=estimate``: memory predicted, nothing run, on any machine."""

from __future__ import annotations

import json

import pytest
from inner import HEAD, Ran, RunOnce

SUITE = (
    HEAD
    + """
CARD = "RTX 5070 Ti"
LARGE = {"model": "Qwen2.5-0.5B", "method": "full", "batch": 8, "seq": 1024, "card": CARD}

@pytest.mark.fits_vram(**TINY, card=CARD)
def test_fits(vramfit):
    ledger = dict(vramfit.ledger)
    assert ledger.pop("managed") == 0
    assert sum(ledger.values()) == vramfit.peak_allocated_bytes
    assert vramfit.step_ns is None
    longer = vramfit.measure(seq=64)
    assert longer.peak_allocated_bytes > vramfit.peak_allocated_bytes

@pytest.mark.fits_vram(**LARGE)
def test_does_not_fit(): raise AssertionError("its body ran")

@pytest.mark.fits_vram(**TINY)
def test_without_card(): pass

@pytest.mark.fits_vram(**TINY, card="900MiB", headroom="100MiB")
def test_headroom(): pass

@pytest.mark.fits_vram(**TINY, card=CARD, targets=["foo"])
def test_refused(): pass

@pytest.mark.fits_vram(**TINY, card=CARD, compile=True)
def test_opaque(): pass

@pytest.mark.fits_vram(**TINY, card=CARD, require=["gpu_time"])
def test_required(): pass

@pytest.mark.xfail(strict=True)
@pytest.mark.fits_vram(**LARGE)
def test_xfail(): pass
"""
)


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=estimate", "--vramfit-json=r.json", test_it=SUITE)


@pytest.mark.parametrize(
    ("test", "word", "outcome"),
    [
        ("test_fits", "PASSED", "fits"),
        ("test_does_not_fit", "FAILED", "oom"),
        ("test_headroom", "FAILED", "no_headroom"),
        ("test_refused", "ERROR", "refused"),
        ("test_opaque", "SKIPPED", "unsupported"),
        ("test_required", "FAILED", None),
        ("test_xfail", "XFAIL", "oom"),
    ],
)
def test_word_and_outcome(ran: Ran, test: str, word: str, outcome: str | None) -> None:
    assert ran.word(test) == word
    if outcome is not None:
        rows = json.loads((ran.folder / "r.json").read_text())["results"]
        (row, *_) = [one for one in rows if one["nodeid"].endswith(f"::{test}")]
        assert row["outcome"] == outcome
        assert row["engine"] == "estimate"


def test_card_must_be_said(ran: Ran) -> None:
    assert ran.word("test_without_card") == "ERROR"
    assert "an estimate needs a card" in ran.text("test_without_card")


def test_row_has_the_prediction(ran: Ran) -> None:
    rows = json.loads((ran.folder / "r.json").read_text())["results"]
    row = next(one for one in rows if one["nodeid"].endswith("::test_does_not_fit"))
    assert row["prediction"]["fits"] is False
    assert row["card"]["name"] == "GeForce RTX 5070 Ti"
    assert row["time"]["step_ns"] is None
    assert row["evidence"] is None
    memory, ledger = row["memory"], row["memory"]["ledger"]
    assert sum(ledger.values()) - ledger["managed"] == memory["peak_allocated_bytes"]
    low, high = row["prediction"]["reserved_bytes"]
    assert low <= memory["peak_reserved_bytes"] <= high


def test_failure_says_where_memory_goes(ran: Ran) -> None:
    text = ran.text("test_does_not_fit")
    assert "predicted for GeForce RTX 5070 Ti (15.9 GiB)" in text
    assert "of the peak" in text
    assert "an estimate: nothing ran" in text


def test_summary_says_that_nothing_ran(ran: Ran) -> None:
    assert any("an estimate: nothing ran" in line for line in ran.summary)
    assert ran.line("vramfit: ") == (
        "vramfit: estimate engine, for the card of each marker; nothing is run"
    )
