"""When what others took or gave back while a case ran keeps it from being judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import GIB, MEASUREMENT, MEMORY, MIB, OOM, RAN_OUT, check, claim, with_change
from samples import case as judged

from pytest_vramfit.measurement import Measurement, PhasePeak
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.spec import Claim, Schedule
from pytest_vramfit.verdict import contamination

WHEN = "in the timed steps"
BESIDE = 512 * MIB
"""What the sample has outside the allocator."""


def peaking(below_the_limit: int, change_bytes: int) -> Measurement:
    """A case whose need is that far below the 23 GiB that are usable."""
    memory = replace(MEMORY, backward_peak_bytes=23 * GIB - BESIDE - below_the_limit)
    return with_change(change_bytes, WHEN, replace(MEASUREMENT, memory=memory))


def test_no_change_is_no_contamination() -> None:
    assert contamination(claim(), MEASUREMENT) is None
    assert contamination(claim(), RAN_OUT) is None


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("side", [1, -1], ids=["below", "above"])
def test_only_a_change_that_reaches_the_limit_counts(sign: int, side: int) -> None:
    for change_bytes, counts in ((GIB, True), (GIB - 1, False)):
        seen = peaking(side * GIB, sign * change_bytes)
        change = contamination(claim(), seen)
        assert change == (seen.device.held_change if counts else None)


@pytest.mark.parametrize(("change_bytes", "counts"), [(1, True), (-GIB, False)])
def test_out_of_memory_is_others_doing_only_where_they_took_some(
    change_bytes: int, counts: bool
) -> None:
    seen = with_change(change_bytes, "before memory ran out", RAN_OUT)
    assert (contamination(claim(), seen) is not None) is counts


@pytest.mark.parametrize(("change_bytes", "counts"), [(GIB, True), (GIB - 1, False)])
def test_headroom_has_its_own_limit(change_bytes: int, counts: bool) -> None:
    """It may have 11 GiB and needs 10."""
    asked = claim(headroom=Headroom(share=0.5))
    seen = with_change(change_bytes, WHEN)
    assert (contamination(asked, seen) is not None) is counts
    assert contamination(claim(), seen) is None


def test_run_with_less_counts_by_itself() -> None:
    asked = claim(headroom=Headroom(share=0.5))
    ran_out = with_change(GIB, "before memory ran out", RAN_OUT)
    assert contamination(asked, MEASUREMENT, ran_out) == ran_out.device.held_change
    assert contamination(asked, MEASUREMENT, RAN_OUT) is None


def test_a_phase_after_training_counts_too() -> None:
    asked: Claim = replace(claim(), schedule=Schedule(phases=("eval",)))
    ran_out = PhasePeak(peak_bytes=None, oom=replace(OOM, phase="eval"))
    near = PhasePeak(peak_bytes=22 * GIB)
    for seen in (ran_out, near):
        measurement = replace(MEASUREMENT, phases={"eval": seen})
        assert contamination(asked, measurement) is None
        assert contamination(asked, with_change(GIB, WHEN, measurement)) is not None


def test_a_change_without_consequence_is_a_finding_of_a_check_that_passes() -> None:
    found = check(judged(with_change(GIB, WHEN)), "peak_within_vram")
    assert (found.status, [one.kind for one in found.findings]) == ("pass", ["others_changed"])
