"""Systems whose driver may serve from host memory what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import GIB, MEASUREMENT, MIB, RESIDENCY, case, claim, left_by_phase, with_memory

from pytest_vramfit.measurement import Measurement
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.reporting import words
from pytest_vramfit.verdict import Case, Check, judge

WDDM = {"driver model": "WDDM", "os": "Windows 11"}
WSL = {"os": "Linux 5.15.167.4-microsoft-standard-WSL2"}


def on(environment: dict[str, str], measurement: Measurement = MEASUREMENT) -> Measurement:
    """There, where nobody could look whether memory is on the card."""
    environment = {**measurement.environment, **environment}
    return replace(measurement, residency=None, environment=environment)


def check(judged: Case, name: str) -> Check:
    return next(one for one in judged.checks if one.name == name)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            WDDM,
            (
                "may be off the card: under WDDM the driver serves from host memory what does not "
                "fit; set NVIDIA's 'CUDA - Sysmem Fallback Policy' to 'Prefer No Sysmem Fallback'"
            ),
        ),
        (
            WSL,
            (
                "may be off the card: under WSL2 the driver serves from host memory what does not "
                "fit, and ignores NVIDIA's 'Prefer No Sysmem Fallback'"
            ),
        ),
    ],
)
def test_memory_that_fits_is_unchecked_where_it_may_be_off_the_card(environment, says) -> None:
    judged = case(on(environment), claim(headroom=Headroom.parse("1%")))
    for name in ("peak_within_vram", "headroom"):
        found = check(judged, name)
        assert found.status == "unchecked"
        assert found.value is not None
        assert words.sentence(found, judged).endswith(says)
    assert check(judged, "trained").status == "pass"
    assert judged.outcome == "fits"


@pytest.mark.parametrize(
    "environment", [{"driver model": "TCC", "os": "Windows 11"}, {"os": "Linux 6.8.0-45-generic"}]
)
def test_memory_is_judged_where_too_much_is_an_error(environment) -> None:
    assert check(case(on(environment)), "peak_within_vram").status == "pass"


@pytest.mark.parametrize("environment", [WDDM, WSL])
@pytest.mark.parametrize(("off_card", "outcome"), [(0, "fits"), (46 * MIB, "spilled")])
def test_memory_is_judged_where_it_was_seen_on_the_card_or_off_it(
    environment, off_card: int, outcome: str
) -> None:
    residency = replace(RESIDENCY, off_card_bytes=off_card)
    judged = case(replace(on(environment), residency=residency))
    assert check(judged, "peak_within_vram").status == "pass"
    assert judged.outcome == outcome


@pytest.mark.parametrize(
    ("off_card", "status"), [(0, "pass"), (None, "unchecked"), (46 * MIB, "fail")]
)
def test_each_phase_is_judged_by_its_own_look(off_card: int | None, status: str) -> None:
    seen = replace(left_by_phase("eval", off_card), environment={**MEASUREMENT.environment, **WDDM})
    judged = case(seen, claim(phases=("eval",)))
    assert check(judged, "peak_within_vram").status == "pass"
    assert check(judged, "eval").status == status


def test_more_than_the_card_fails_anywhere() -> None:
    judged = case(on(WDDM, with_memory(backward_peak_bytes=100 * GIB)))
    assert judged.outcome == "over_vram"


def test_cpu_in_wsl_is_judged() -> None:
    judged = judge("test_a.py::test_b", "cpu", claim(), on(WSL))
    assert check(judged, "peak_within_vram").status == "pass"


def test_it_fails_where_it_is_required() -> None:
    judged = case(on(WDDM), claim(require=frozenset({"peak_within_vram"})))
    assert check(judged, "peak_within_vram").status == "fail"
