"""Whether memory left the card: the check, what every witness of it saw, and its sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import (
    DEVICE,
    GIB,
    KIB,
    MEASUREMENT,
    MIB,
    RAN_OUT,
    RESIDENCY,
    case,
    claim,
    compared,
    timed,
    with_memory,
)

from pytest_vramfit.measurement import Conditions, Engine, Measurement, Prediction
from pytest_vramfit.reporting import failure, words
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict import Check, Finding, Witness, judge, witnesses
from pytest_vramfit.verdict.witnesses import resident

PREDICTED = replace(
    MEASUREMENT,
    prediction=Prediction(fits=True, margin=0.005, reserved_bytes=(12 * GIB, 12 * GIB)),
    residency=None,
    evidence=None,
)
NOT_LOOKED = replace(MEASUREMENT, residency=None)


def with_residency(measurement: Measurement = MEASUREMENT, **changes: Any) -> Measurement:
    return replace(measurement, residency=replace(RESIDENCY, **changes))


def with_conditions(**seen: Any) -> Measurement:
    return replace(MEASUREMENT, conditions=Conditions(**seen))


def said(measurement: Measurement, asked: Claim | None = None) -> dict[str, tuple[str, str]]:
    """What each witness saw, and its sentence."""
    seen = witnesses(asked or claim(), measurement)
    return {one.name: (one.saw, words.witness(one)) for one in seen}


@pytest.mark.parametrize(
    ("off_card", "status"), [(0, "pass"), (1, "fail"), (46 * MIB, "fail"), (12 * GIB, "fail")]
)
def test_all_of_the_allocator_s_memory_must_be_on_the_card(off_card: int, status: Any) -> None:
    assert resident("gpu", claim(), with_residency(off_card_bytes=off_card)) == Check(
        name="resident", status=status, value=off_card, limit=0, unit="bytes"
    )


def test_segments_that_are_too_small_to_tell_are_not_off_the_card() -> None:
    assert resident("gpu", claim(), with_residency(uncertainty_bytes=GIB)).status == "pass"


SPILLING = claim(card_bytes=24 * GIB, card="Card", overflow="spill")


@pytest.mark.parametrize(
    ("fits", "reserved", "expected"),
    [
        (True, 12 * GIB, Check(name="resident", status="pass", value=0, limit=0, unit="bytes")),
        (
            False,  # 23 GiB can be had, and half a GiB lies beside the allocator
            23 * GIB,
            Check(
                name="resident",
                status="fail",
                value=512 * MIB,
                limit=0,
                unit="bytes",
                findings=(Finding(kind="cache_spills"),),
            ),
        ),
        (
            None,
            22 * GIB,
            Check(
                name="resident",
                status="unchecked",
                findings=(Finding(kind="too_close", names=("0.5 %",)),),
            ),
        ),
    ],
)
def test_a_card_that_serves_from_host_memory_is_predicted_by_what_is_reserved(
    fits: bool | None, reserved: int, expected: Check
) -> None:
    prediction = Prediction(fits=fits, margin=0.005, reserved_bytes=(reserved, reserved))
    seen = replace(with_memory(peak_reserved_bytes=reserved), prediction=prediction)
    judged = judge("", "estimate", SPILLING, seen)
    assert judged.checks[-1] == resident("estimate", SPILLING, seen) == expected
    assert judged.checks[0] == Check(name="no_oom", status="pass")
    assert judged.outcome == ("spilled" if fits is False else "fits")


@pytest.mark.parametrize(
    ("engine", "measurement", "kind"),
    [
        ("estimate", PREDICTED, "nothing_ran"),
        ("estimate", replace(PREDICTED, residency=RESIDENCY), "nothing_ran"),
        ("cpu", MEASUREMENT, "no_card"),
        ("cpu", RAN_OUT, "no_card"),
        ("gpu", RAN_OUT, "did_not_run"),
        ("gpu", NOT_LOOKED, "cannot_look"),
    ],
)
def test_why_it_could_not_be_looked_at(engine: Engine, measurement: Measurement, kind: str) -> None:
    assert resident(engine, claim(), measurement) == Check(
        name="resident", status="unchecked", findings=(Finding(kind=kind),)
    )


ON = {
    "accounting": ("on", "all that the allocator and what is beside it had fits the card"),
    "residency": (
        "on",
        (
            "all of the allocator's memory is read at the card's own speed, 700 GB/s, not at the "
            "bus', 25"
        ),
    ),
    "pcie": ("nothing", "could not look"),
    "utilisation": ("nothing", "could not look"),
    "retries": ("on", "the allocator never had to give back its cache"),
    "host_memory": ("nothing", "could not look"),
    "step_time": ("nothing", "could not look"),
}
"""Of the sample, in their order."""


def test_every_witness_says_what_it_saw_in_their_order() -> None:
    assert list(said(MEASUREMENT).items()) == list(ON.items())


@pytest.mark.parametrize(
    "measurement", [RAN_OUT, with_memory(peak_reserved_bytes=None)], ids=["oom", "no allocator"]
)
def test_nobody_knows_where_there_is_no_allocator_s_memory(measurement: Measurement) -> None:
    assert list(witnesses(claim(), measurement)) == []


ROOM = 23 * GIB - 512 * MIB
"""What the allocator can have on the sample's card, beside what lies outside it."""


@pytest.mark.parametrize(
    ("reserved", "saw", "figure"),
    [
        (ROOM - 5, "on", 5),
        (ROOM, "on", 0),
        (ROOM + 1, "off", 1),
        (ROOM + 3 * GIB, "off", 3 * GIB),
    ],
)
def test_accounting(reserved: int, saw: str, figure: int) -> None:
    seen = next(witnesses(claim(), with_memory(peak_reserved_bytes=reserved)))
    assert (seen.name, seen.saw) == ("accounting", saw)
    assert int(seen.finding.names[0 if saw == "off" else 1]) == figure


def test_accounting_where_nothing_is_known_to_be_beside_the_allocator() -> None:
    fills = {"peak_reserved_bytes": 23 * GIB, "outside_allocator_bytes": None}
    assert said(with_memory(**fills))["accounting"] == ON["accounting"]


def test_accounting_is_by_the_card_of_the_marker() -> None:
    assert said(MEASUREMENT, claim(card_bytes=8 * GIB))["accounting"] == (
        "off",
        "the allocator and what is beside it had 4.5 GiB more than the card",
    )


def test_accounting_is_by_the_card_that_is_emulated() -> None:
    device = replace(DEVICE, total_bytes=12 * GIB, emulated_on="Large card", overflow="spill")
    asked = claim(card_bytes=12 * GIB, overflow="spill")
    assert said(replace(MEASUREMENT, device=device), asked)["accounting"] == (
        "off",
        "the allocator and what is beside it had 1.5 GiB more than the card",
    )


@pytest.mark.parametrize(
    ("residency", "told"),
    [
        (
            {"off_card_bytes": 46 * MIB},
            (
                "off",
                (
                    "46.0 MiB are off the card (within 0 B): what is there is read at 25 GB/s, "
                    "what is on the card at 700"
                ),
            ),
        ),
        (
            {
                "off_card_bytes": 3 * GIB,
                "uncertainty_bytes": 4 * MIB,
                "card_bytes_per_s": 3_350_400_000_000,
                "host_bytes_per_s": 53_600_000_000,
            },
            (
                "off",
                (
                    "3.0 GiB are off the card (within 4.0 MiB): what is there is read at 54 GB/s, "
                    "what is on the card at 3,350"
                ),
            ),
        ),
        (
            {"card_bytes_per_s": 3_350_400_000_000},
            (
                "on",
                (
                    "all of the allocator's memory is read at the card's own speed, 3,350 GB/s, "
                    "not at the bus', 25"
                ),
            ),
        ),
    ],
)
def test_residency(residency: dict[str, int], told: tuple[str, str]) -> None:
    assert said(with_residency(**residency))["residency"] == told


def test_residency_that_nobody_looked_at() -> None:
    assert said(NOT_LOOKED) == {**ON, "residency": ("nothing", "could not look")}


TWENTIETH = 12 * GIB // 20
"""Of what the sample's allocator reserved; there are five steps."""


@pytest.mark.parametrize(
    ("pcie_bytes", "told"),
    [
        (0, ("on", "0 B went over PCIe in a step")),
        (5 * 9 * KIB, ("on", "9,216 B went over PCIe in a step")),
        (5 * TWENTIETH, ("on", "614 MiB went over PCIe in a step")),
        (5 * (TWENTIETH + 1), ("off", "614 MiB went over PCIe in a step")),
        (5 * 12 * GIB, ("off", "12.0 GiB went over PCIe in a step")),
    ],
)
def test_pcie(pcie_bytes: int, told: tuple[str, str]) -> None:
    assert said(with_conditions(pcie_bytes=pcie_bytes))["pcie"] == told


@pytest.mark.parametrize(
    "measurement",
    [
        with_conditions(),
        replace(MEASUREMENT, conditions=None),
        replace(with_conditions(pcie_bytes=GIB), step_ns=()),
    ],
    ids=["not counted", "no conditions", "no steps"],
)
def test_pcie_that_was_not_counted(measurement: Measurement) -> None:
    assert said(measurement)["pcie"] == ("nothing", "could not look")


@pytest.mark.parametrize(
    ("busy", "reading", "saw"),
    [
        (90, 5, "off"),
        (100, 0, "off"),
        (89, 5, "on"),
        (90, 6, "on"),
        (98, 48, "on"),
        (0, 0, "on"),
    ],
)
def test_utilisation(busy: int, reading: int, saw: str) -> None:
    seen = with_conditions(gpu_busy_percent=busy, memory_busy_percent=reading)
    waited = ": it waited" if saw == "off" else ""
    assert said(seen)["utilisation"] == (
        saw,
        f"the GPU was busy {busy} % of the time, its memory {reading} %{waited}",
    )


@pytest.mark.parametrize(
    "measurement", [with_conditions(memory_busy_percent=3), replace(MEASUREMENT, conditions=None)]
)
def test_utilisation_that_was_not_counted(measurement: Measurement) -> None:
    assert said(measurement)["utilisation"] == ("nothing", "could not look")


@pytest.mark.parametrize(
    ("retries", "told"),
    [
        (0, ON["retries"]),
        (1, ("off", "the allocator had to give back its cache; retries: 1")),
        (23, ("off", "the allocator had to give back its cache; retries: 23")),
        (None, ("nothing", "could not look")),
    ],
)
def test_retries(retries: int | None, told: tuple[str, str]) -> None:
    assert said(with_memory(allocator_retries=retries))["retries"] == told


@pytest.mark.parametrize(
    ("grown", "managed", "told"),
    [
        (None, None, ("nothing", "could not look")),
        (0, None, ("on", "the process grew by 0 B of host memory")),
        (256 * MIB, None, ("on", "the process grew by 256 MiB of host memory")),
        (256 * MIB + 1, None, ("off", "the process grew by 256 MiB of host memory")),
        (256 * MIB, GIB, ("on", "the process grew by 256 MiB of host memory")),
        (
            3 * GIB,
            3 * GIB - 256 * MIB,
            (
                "nothing",
                "the process grew by 3.0 GiB of host memory, where paged optimizer states may be",
            ),
        ),
        (3 * GIB, 2 * GIB, ("off", "the process grew by 3.0 GiB of host memory")),
    ],
)
def test_host_memory(grown: int | None, managed: int | None, told: tuple[str, str]) -> None:
    """Managed optimizer states may be in it, or on the card: on an H200 they were on it while
    520 MiB of an emulated card were in host memory.
    """
    seen = with_memory(host_growth_bytes=grown, managed_bytes=managed)
    assert said(seen)["host_memory"] == told


UNDER_WINDOWS = {"environment": {"driver model": "WDDM"}}
MB = 10**6


@pytest.mark.parametrize(
    ("grown", "managed", "saw"),
    [
        (None, None, "nothing"),
        (0, None, "on"),
        # of a 24 GB card in WSL2, as its owner read the shared memory, 320 MB of it before:
        (610 * MB - 320 * MB, None, "off"),  # served at half the speed
        (980 * MB - 320 * MB, None, "off"),
        (450 * MB - 320 * MB, None, "on"),  # at full speed, with a smaller budget
        (485 * MB - 320 * MB, None, "on"),
        (3 * GIB, 3 * GIB, "nothing"),
        (3 * GIB, GIB, "off"),
    ],
)
def test_what_windows_says(grown: int | None, managed: int | None, saw: str) -> None:
    """The readings are of https://github.com/syv-ai/qwen38-27b-rtx3090/pull/156."""
    seen = with_memory(non_local_growth_bytes=grown, managed_bytes=managed)
    told = said(replace(seen, **UNDER_WINDOWS))["non_local"]
    assert told[0] == saw
    assert (told[1] == "could not look") == (grown is None)


def test_what_windows_says_in_words() -> None:
    seen = with_memory(non_local_growth_bytes=660 * MIB, local_bytes=15 * GIB)
    assert said(seen)["non_local"] == (
        "off",
        "Windows has 660 MiB more of the process's GPU memory in host memory, 15.0 GiB on the card",
    )


def test_elsewhere_nobody_waits_for_windows() -> None:
    assert "non_local" not in said(MEASUREMENT)


@pytest.mark.parametrize(
    ("step", "saw", "times"), [(1.0, "on", "1.00"), (0.5, "on", "0.50"), (51.0, "off", "51.00")]
)
def test_the_clock_against_the_baseline(step: float, saw: str, times: str) -> None:
    judged = compared(timed(step=step, gpu=step))
    *_, seen = witnesses(judged.claim, judged.measurement, judged.checks)
    assert (seen.name, seen.saw) == ("step_time", saw)
    assert words.witness(seen) == f"a step took {times} times what it takes in the baseline"


def test_every_witness_has_a_sentence_for_all_it_may_see() -> None:
    may_be_paged = ("host_memory", "non_local")
    assert {
        one: {"off", "on", *(("nothing",) if one in may_be_paged else ())}
        for one in (*ON, "non_local")
    } == {
        name: {saw for other, saw in words._WITNESSES if other == name}
        for name, _ in words._WITNESSES
    }
    blind = Witness(name="any", saw="nothing", finding=Finding(kind="blind"))
    assert words.witness(blind) == "could not look"


SPILLED = """\
fits_vram: Small, QLoRA rank 16, seq 512, batch 2 on Card (24.0 GiB, 256 MiB held by others)
  FAIL  resident           2.0 GiB off the card
  pass  no OOM
  pass  peak within VRAM   10.5 GiB of 23.0 GiB               46 % of the card, 512 MiB of it outside the allocator
  pass  trained            8 of 8 steps applied
  pass  steady             no growth
  --    unchecked          step time, GPU time, peak baseline: no baseline; --vramfit-update-missing records one
  memory off the card      no   accounting    all that the allocator and what is beside it had fits the card
                           yes  residency     2.0 GiB are off the card (within 20.0 MiB): what is there is read at 25 GB/s, what is on the card at 700
                           yes  pcie          4.0 GiB went over PCIe in a step
                           yes  utilisation   the GPU was busy 99 % of the time, its memory 2 %: it waited
                           no   retries       the allocator never had to give back its cache
                           yes  host memory   the process grew by 2.1 GiB of host memory
                           --   step time     could not look
  peaks                    load 7.0 GiB, forward 9.0 GiB, backward 10.0 GiB, optimizer 8.0 GiB"""  # noqa: E501


def test_text_of_a_case_that_was_seen_off_the_card() -> None:
    seen = replace(
        with_memory(host_growth_bytes=2_150 * MIB),
        residency=replace(RESIDENCY, off_card_bytes=2 * GIB, uncertainty_bytes=20 * MIB),
        conditions=Conditions(
            pcie_bytes=20 * GIB, gpu_busy_percent=99, memory_busy_percent=2, sm_clock_mhz=1_980
        ),
    )
    assert failure.text(case(seen)) == SPILLED


def block(measurement: Measurement, asked: Claim | None = None) -> list[str]:
    """The marks and names of the lines about memory off the card."""
    told = list(failure.lines(case(measurement, asked)))
    first = [number for number, one in enumerate(told) if one.startswith("  memory off the card")]
    return [" ".join(one[27:45].split()) for number in first for one in told[number : number + 7]]


def test_text_tells_every_witness_where_the_accounts_have_more_than_the_card() -> None:
    assert block(with_memory(peak_reserved_bytes=24 * GIB)) == [
        "yes accounting",
        "no residency",
        "-- pcie",
        "-- utilisation",
        "no retries",
        "-- host memory",
        "-- step time",
    ]
    assert block(replace(NOT_LOOKED, device=replace(DEVICE, total_bytes=8 * GIB)))[:2] == [
        "yes accounting",
        "-- residency",
    ]


@pytest.mark.parametrize(
    "measurement",
    [
        MEASUREMENT,
        NOT_LOOKED,
        RAN_OUT,
        with_memory(peak_reserved_bytes=None),
        with_memory(allocator_retries=5, host_growth_bytes=9 * GIB),
        with_conditions(pcie_bytes=99 * GIB, gpu_busy_percent=99, memory_busy_percent=0),
    ],
)
def test_text_has_no_word_of_it_where_neither_accounts_nor_residency_say_so(
    measurement: Measurement,
) -> None:
    assert block(measurement) == []


def test_check_comes_last_of_those_that_a_case_always_has() -> None:
    for engine, measurement in (("gpu", MEASUREMENT), ("gpu", RAN_OUT), ("cpu", MEASUREMENT)):
        judged = judge("test_a.py::test_b", engine, claim(), measurement)
        assert judged.checks[-1] == resident(engine, claim(), measurement)


def test_where_nothing_ran_nobody_saw_anything() -> None:
    assert said(replace(PREDICTED, memory=with_memory(peak_reserved_bytes=99 * GIB).memory)) == {}


def test_a_required_look_that_could_not_be_taken_saw_nothing_off_the_card() -> None:
    asked = claim(require=frozenset({"resident"}))
    over = replace(with_memory(backward_peak_bytes=99 * GIB), residency=None)
    assert judge("test", "gpu", asked, over).outcome == "over_vram"
