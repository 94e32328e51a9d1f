"""The fixture: the case of a marked test, and ``measure`` for more of them."""

from __future__ import annotations

import json

import pytest
from inner import HEAD, Ran, RunOnce

SUITE = (
    HEAD
    + """
@pytest.mark.fits_vram(**TINY)
def test_not_named(): pass

@pytest.mark.fits_vram(**{**TINY, "steps": 2, "batch": 2, "accumulation": 3}, card="1GiB")
def test_attributes(vramfit):
    assert vramfit.spec.model == "tiny"
    assert vramfit.limits.card_bytes == 2**30
    assert vramfit.outcome == "fits"
    assert 0 < vramfit.peak_allocated_bytes < 2**30
    assert len(vramfit.samples) == 2
    assert vramfit.step_ns == min(vramfit.samples)
    assert vramfit.tokens_per_second == pytest.approx(16 * 2 * 3 / (vramfit.step_ns / 1e9))
    assert vramfit.seconds_per_10k_tokens == pytest.approx(1e4 / vramfit.tokens_per_second)
    assert {check.name: check.status for check in vramfit.checks}["no_oom"] == "pass"
    assert {"device", "os", "python", "torch", "transformers"} <= set(vramfit.environment)

@pytest.mark.fits_vram(**TINY)
def test_not_measured_is_none(vramfit):
    assert vramfit.gpu_ns is None
    assert vramfit.peak_reserved_bytes is None
    assert vramfit.joules_per_10k_tokens is None

@pytest.mark.fits_vram(**TINY)
def test_parts_of_the_peak(vramfit):
    assert sum(vramfit.ledger.values()) == vramfit.peak_allocated_bytes
    assert vramfit.ledger["adapters"] > 0

@pytest.mark.fits_vram(**TINY)
def test_measure_changes_the_marked_case(vramfit):
    other = vramfit.measure(seq=64)
    assert (other.spec.seq, other.spec.rank) == (64, 4)
    assert other.peak_allocated_bytes > vramfit.peak_allocated_bytes
    assert vramfit.spec.seq == 16

def test_measure_on_an_unmarked_test(vramfit):
    assert vramfit.measure(**TINY).outcome == "fits"

def test_measure_judges_nothing(vramfit):
    assert vramfit.measure(**TINY, card="1MiB").outcome == "over_vram"

def test_measure_wrong(vramfit):
    vramfit.measure(**TINY, wobble=1)

def test_measure_refused(vramfit):
    vramfit.measure(**TINY, targets=["nothing"])

@pytest.mark.xfail(strict=True)
def test_measure_refused_xfail(vramfit):
    vramfit.measure(**TINY, targets=["nothing"])

def test_unmarked_attribute(vramfit):
    vramfit.outcome

def test_unmarked_attribute_is_explained(vramfit):
    with pytest.raises(LookupError) as caught:
        vramfit.spec
    assert str(caught.value) == (
        "this test has no fits_vram marker, so vramfit has no case of its own; "
        "vramfit.measure(model=...) returns one"
    )

@pytest.fixture
def peak(vramfit):
    return vramfit.peak_allocated_bytes

@pytest.mark.fits_vram(**TINY)
def test_through_another_fixture(peak):
    assert peak > 0

@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_body_of_a_failed_one(vramfit):
    print("the body ran")

@pytest.mark.fits_vram(**TINY)
def test_body_that_fails(vramfit):
    assert vramfit.peak_allocated_bytes == 1

@pytest.mark.fits_vram(**TINY)
def test_asked_for_late(request):
    assert request.getfixturevalue("vramfit").outcome == "fits"
"""
)


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", "-s", "--vramfit-json=results.json", test_it=SUITE)


@pytest.mark.parametrize(
    "test",
    [
        "test_not_named",
        "test_attributes",
        "test_not_measured_is_none",
        "test_parts_of_the_peak",
        "test_measure_changes_the_marked_case",
        "test_measure_on_an_unmarked_test",
        "test_measure_judges_nothing",
        "test_unmarked_attribute_is_explained",
        "test_through_another_fixture",
        "test_asked_for_late",
    ],
)
def test_what_it_has(ran: Ran, test: str) -> None:
    """The claim is in the inner test of this name."""
    assert ran.word(test) == "PASSED", ran.text(test)


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        ("test_measure_wrong", "fits_vram has no keyword 'wobble'; it takes model, "),
        ("test_measure_refused", "fits_vram: targets: 'nothing' is not in this model, "),
        ("test_measure_refused_xfail", "fits_vram: targets: 'nothing' is not in this model, "),
    ],
)
def test_measure_that_cannot(ran: Ran, test: str, sentence: str) -> None:
    """Could not measure: an ERROR, though it is raised in the body, and also under xfail."""
    assert (ran.word(test), ran.text(test)[: len(sentence)]) == ("ERROR", sentence)


def test_unmarked_attribute_fails_the_test(ran: Ran) -> None:
    assert ran.word("test_unmarked_attribute") == "FAILED"


def test_body_runs_only_after_the_verdict_held(ran: Ran) -> None:
    assert ran.word("test_body_of_a_failed_one") == "FAILED"
    assert "the body ran" not in ran.output.partition("= FAILURES =")[0]


def test_body_may_fail_by_itself(ran: Ran) -> None:
    assert "assert vramfit.peak_allocated_bytes == 1" in ran.text("test_body_that_fails")


def test_measured_ones_are_in_the_results_but_not_judged(ran: Ran) -> None:
    rows = json.loads((ran.folder / "results.json").read_text())["results"]
    wanted = ("changes_the_marked_case", "judges_nothing")
    assert [
        (row["nodeid"].partition("::")[2], row["spec"]["seq"], row["outcome"], row["judged"])
        for row in rows
        if row["nodeid"].endswith(wanted)
    ] == [
        ("test_measure_changes_the_marked_case", 16, "fits", True),
        ("test_measure_changes_the_marked_case", 64, "fits", False),
        ("test_measure_judges_nothing", 16, "over_vram", False),
    ]
