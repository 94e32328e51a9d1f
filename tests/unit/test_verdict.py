"""From claim and measurement to checks: what passes, what fails, what stays unchecked, and what
the case is called.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import (
    DEVICE,
    EVIDENCE,
    FULL,
    GIB,
    MEASUREMENT,
    MIB,
    MS,
    OOM,
    RAN_OUT,
    RESIDENCY,
    SPEC,
    case,
    check,
    claim,
    compared,
    left_by_phase,
    recorded,
    timed,
    with_evidence,
    with_memory,
    with_phases,
)

from pytest_vramfit.baseline import Entry
from pytest_vramfit.measurement import Conditions, GpuTime, Measurement, Prediction, median
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.spec import CHECKS, Claim, TrainSpec
from pytest_vramfit.verdict import (
    Card,
    Case,
    Check,
    Finding,
    Reference,
    capacity_to_try,
    in_doubt,
    judge,
    to_confirm,
)

AGAINST_A_BASELINE = {"step_time", "gpu_time", "peak_baseline"}
ROOM = 23 * GIB - 512 * MIB
"""What a step can have on the sample's card: usable, less what lies outside the allocator."""


def statuses(judged: Case) -> dict[str, str]:
    return {one.name: one.status for one in judged.checks}


def test_sound_case_fits() -> None:
    judged = case()
    assert judged.outcome == "fits"
    assert statuses(judged) == {
        "no_oom": "pass",
        "peak_within_vram": "pass",
        "trained": "pass",
        "steady": "pass",
        "resident": "pass",
        **dict.fromkeys(AGAINST_A_BASELINE, "unchecked"),
    }


def test_checks_of_limits_are_made_only_where_the_marker_has_the_limit() -> None:
    asked = claim(headroom=Headroom(share=0.1), max_step_ns=MS)
    assert statuses(case(MEASUREMENT, asked)).keys() - statuses(case()).keys() == {
        "headroom",
        "max_step",
    }


def test_against_a_baseline_every_check_is_made() -> None:
    assert set(statuses(compared()).values()) == {"pass"}


@pytest.mark.parametrize("asked", [claim(), claim(headroom=Headroom(share=0.1), max_step_ns=MS)])
def test_after_an_oom_every_other_check_is_unchecked(asked: Claim) -> None:
    """The same checks as of a case that ran."""
    judged = case(RAN_OUT, asked)
    assert statuses(judged).keys() == statuses(case(MEASUREMENT, asked)).keys()
    assert {name for name, status in statuses(judged).items() if status != "unchecked"} == {
        "no_oom"
    }
    assert judged.outcome == "oom"


def test_oom_is_requested_of_free_bytes() -> None:
    assert check(case(RAN_OUT), "no_oom") == Check(
        name="no_oom",
        status="fail",
        value=2 * GIB,
        limit=512 * MIB,
        unit="bytes",
        findings=(Finding(kind="out_of_memory"),),
    )


def test_oom_whose_request_was_not_seen_has_no_figures() -> None:
    oom = replace(OOM, requested_bytes=None, free_bytes=None)
    found = check(case(replace(RAN_OUT, oom=oom)), "no_oom")
    assert (found.status, found.value, found.limit) == ("fail", None, None)


@pytest.mark.parametrize(("over", "status"), [(-1, "pass"), (0, "pass"), (1, "fail")])
def test_peak_counts_what_lies_outside_the_allocator(over: int, status: str) -> None:
    """The device has 24 GiB; its driver keeps 768 MiB, others hold 256 MiB."""
    found = check(case(with_memory(forward_peak_bytes=ROOM + over)), "peak_within_vram")
    assert found.status == status
    assert (found.value, found.limit, found.unit) == (23 * GIB + over, 23 * GIB, "bytes")


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_peak_is_that_of_the_worst_phase(phase: str) -> None:
    judged = case(with_memory(**{f"{phase}_peak_bytes": 24 * GIB}))
    assert judged.outcome == "over_vram"


def test_loading_and_the_first_step_are_not_the_peak() -> None:
    more = with_memory(load_peak_bytes=99 * GIB, first_step_peak_allocated_bytes=99 * GIB)
    assert case(more).outcome == "fits"


def test_peak_where_nothing_lies_outside_an_allocator() -> None:
    found = check(case(with_memory(outside_allocator_bytes=None)), "peak_within_vram")
    assert found.value == 10 * GIB


def peaking_at(peak_bytes: int, **changes: Any) -> Measurement:
    return with_memory(
        forward_peak_bytes=0, backward_peak_bytes=peak_bytes, optimizer_peak_bytes=0, **changes
    )


@pytest.mark.parametrize(("over", "outcome"), [(0, "fits"), (1, "over_vram")])
def test_card_of_the_marker_is_the_limit(over: int, outcome: str) -> None:
    """All of it: whoever gives a size gives what a step can have."""
    judged = case(peaking_at(8 * GIB - 512 * MIB + over), claim(card_bytes=8 * GIB))
    assert judged.outcome == outcome
    assert judged.card == Card(
        name="Card", total_bytes=8 * GIB, usable_bytes=8 * GIB, emulated=False
    )


def test_without_a_card_the_device_is_the_limit() -> None:
    assert case().card == Card(
        name="Card",
        total_bytes=24 * GIB,
        usable_bytes=23 * GIB,
        emulated=False,
        held_bytes=256 * MIB,
    )


QUARTER = claim(card_bytes=16 * GIB, headroom=Headroom(share=0.25))
"""4 GiB of 16 must stay free: with half a GiB outside the allocator, it may have 11.5 GiB."""
MOST = 11 * GIB + 512 * MIB


@pytest.mark.parametrize(("over", "status"), [(0, "pass"), (1, "fail")])
def test_headroom_decided_by_one_run(over: int, status: str) -> None:
    """Where the allocator took no more than the step needs there is nothing to try again."""
    seen = peaking_at(MOST + over, peak_reserved_bytes=MOST + over)
    found = check(case(seen, QUARTER), "headroom")
    assert capacity_to_try(QUARTER, seen) is None
    assert (found.status, found.value, found.limit) == (status, MOST + over, MOST)


@pytest.mark.parametrize(
    ("allocated", "reserved", "capacity"),
    [
        (MOST - 1, MOST, None),  # stays within: passes
        (MOST, MOST + 1, MOST),  # the cache does not, the step may
        (MOST + 1, MOST + 1, None),  # the step does not: fails
        (8 * GIB, None, None),  # no allocator
    ],
)
def test_second_run_is_asked_for_where_only_the_cache_is_too_large(
    allocated: int, reserved: int | None, capacity: int | None
) -> None:
    seen = peaking_at(allocated, peak_reserved_bytes=reserved)
    assert capacity_to_try(QUARTER, seen) == capacity


def test_no_second_run_without_headroom_or_after_an_oom() -> None:
    cache = peaking_at(MOST, peak_reserved_bytes=99 * GIB)
    assert capacity_to_try(claim(), cache) is None
    assert capacity_to_try(QUARTER, RAN_OUT) is None


@pytest.mark.parametrize(
    ("second", "status", "kind", "outcome"),
    [
        (MEASUREMENT, "pass", "ran_with_less", "fits"),
        (RAN_OUT, "fail", "oom_with_less", "no_headroom"),
    ],
    ids=["runs", "oom"],
)
def test_headroom_decided_by_a_second_run(
    second: Measurement, status: str, kind: str, outcome: str
) -> None:
    """An out-of-memory error of the second run is no OOM of the case."""
    seen = peaking_at(10 * GIB, peak_reserved_bytes=12 * GIB)
    judged = judge("a.py::b", "gpu", QUARTER, seen, second)
    assert judged.outcome == outcome
    assert check(judged, "no_oom").status == "pass"
    assert check(judged, "headroom") == Check(
        name="headroom",
        status=status,
        value=12 * GIB,
        limit=MOST,
        unit="bytes",
        findings=(Finding(kind=kind),),
    )


@pytest.mark.parametrize(("over", "status"), [(0, "pass"), (1, "fail")])
def test_headroom_where_nothing_makes_the_allocator_give_back_its_cache(
    over: int, status: str
) -> None:
    # 12 GiB reserved and half a GiB beside them leave 10.5 of 23 GiB
    asked = claim(
        card_bytes=24 * GIB,
        overflow="spill",
        headroom=Headroom(size_bytes=10 * GIB + 512 * MIB + over),
    )
    assert capacity_to_try(asked, MEASUREMENT) is None
    room = 12 * GIB - over
    assert check(case(MEASUREMENT, asked), "headroom") == Check(
        name="headroom", status=status, value=12 * GIB, limit=room, unit="bytes"
    )


def test_predicted_headroom_is_left_open_by_what_is_reserved_where_no_card_refuses() -> None:
    """In one order of addresses, that of the figures, it may be far below the room."""
    asked = claim(card_bytes=24 * GIB, overflow="spill", headroom=Headroom(size_bytes=8 * GIB))
    prediction = Prediction(fits=None, margin=0.005, reserved_bytes=(12 * GIB, 15 * GIB))
    seen = replace(MEASUREMENT, prediction=prediction)
    found = check(judge("", "estimate", asked, seen, seen), "headroom")
    assert (found.status, [one.kind for one in found.findings]) == ("unchecked", ["too_close"])


def test_headroom_larger_than_the_card_leaves_no_room_rather_than_less_than_none() -> None:
    asked = claim(card_bytes=GIB, headroom=Headroom(size_bytes=8 * GIB))
    found = check(case(peaking_at(1), asked), "headroom")
    assert (found.status, found.limit) == ("fail", 0)


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"loss": None}, Finding(kind="loss_not_finite")),
        (
            {"applied_steps": 3, "skipped_steps": 5},
            Finding(kind="steps_skipped", names=("5",)),
        ),
        (
            {"batches": ((2, 256),)},
            Finding(kind="other_batches", names=("1 x (2, 512)", "1 x (2, 256)")),
        ),
        (
            {"batches": ((2, 512), (1, 512), (1, 512))},
            Finding(kind="other_batches", names=("1 x (2, 512)", "1 x (2, 512)", "2 x (1, 512)")),
        ),
        ({"batches": ()}, Finding(kind="other_batches", names=("1 x (2, 512)",))),
        ({"adapters": 12}, Finding(kind="adapters_missing", names=("12", "14"))),
        ({"unexpected_adapters": ("a",)}, Finding(kind="unexpected_adapters", names=("a",))),
        ({"layer_runs": 2}, Finding(kind="other_layer_runs", names=("2", "1"))),
        ({"not_training": ("a",)}, Finding(kind="not_training", names=("a",))),
        ({"trainable_tensors": 0}, Finding(kind="nothing_trainable")),
        (
            {"wrongly_trainable": ("embed", "head")},
            Finding(kind="wrongly_trainable", names=("embed", "head")),
        ),
        ({"without_gradient": ("a",)}, Finding(kind="without_gradient", names=("a",))),
        ({"zero_gradient": ("a",)}, Finding(kind="zero_gradient", names=("a",))),
        ({"nonfinite_gradient": ("a",)}, Finding(kind="nonfinite_gradient", names=("a",))),
        ({"unmoved": ("a",)}, Finding(kind="unmoved", names=("a",))),
        ({"base_changed": ("a",)}, Finding(kind="base_changed", names=("a",))),
        (
            {"trainable_dtypes": {"float32": 9, "bfloat16": 1}},
            Finding(kind="trainable_dtype", names=("float32", "bfloat16")),
        ),
        (
            {"base_dtypes": {"float32": 99, "float16": 1}},
            Finding(kind="base_dtype", names=("bfloat16", "float16")),
        ),
        ({"base_dtypes": {"float32": 89, "bfloat16": 11}}, Finding(kind="not_upcast")),
        ({"devices": {"cuda": 9, "cpu": 1}}, Finding(kind="elsewhere", names=("cpu",))),
        (
            {"quantised_elements": 44_999},
            Finding(kind="not_quantised", names=("45,001", "90,000", "nf4")),
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Finding) else None,
)
def test_objection(change: dict[str, Any], finding: Finding) -> None:
    """Each alone makes the case invalid, and no other is raised with it."""
    judged = case(with_evidence(**change))
    assert judged.outcome == "invalid"
    assert check(judged, "trained").findings == (finding,)


@pytest.mark.parametrize(
    "change",
    [
        {"applied_steps": 6, "skipped_steps": 9},  # three of five timed steps were applied
        {"base_dtypes": {"float32": 90, "bfloat16": 10}},  # biases of linears are cast back
        {"base_dtypes": {}},
        {"quantised_elements": 45_000},  # half of them, and where the others are is not known
        {"quantised_elements": 89_100, "unquantised": {"mlp.router": 9}},  # 1 %: as in any model
        {"total_parameters": 1, "trainable_parameters": 0},
    ],
    ids=str,
)
def test_no_objection(change: dict[str, Any]) -> None:
    assert check(case(with_evidence(**change)), "trained").findings == ()


EXPERTS = {"model.layers.*.mlp.experts": 5 * GIB, "model.layers.*.mlp.router": 2 * MIB}
UNQUANTISED = Finding(kind="unquantised", names=(str(5 * GIB + 2 * MIB), *EXPERTS))


@pytest.mark.parametrize("quantised", [45_000, 89_099])
def test_a_smaller_part_of_the_base_that_is_not_quantised_is_said(quantised: int) -> None:
    judged = case(with_evidence(quantised_elements=quantised, unquantised=EXPERTS))
    found = check(judged, "trained")
    assert (found.status, found.findings) == ("pass", (UNQUANTISED,))
    assert judged.outcome == "fits"


def test_a_larger_part_that_is_not_quantised_is_said_beside_the_objection() -> None:
    judged = case(with_evidence(quantised_elements=44_999, unquantised=EXPERTS))
    kinds = [one.kind for one in check(judged, "trained").findings]
    assert (judged.outcome, kinds) == ("invalid", ["not_quantised", "unquantised"])
    assert check(judged, "trained").findings[1] == UNQUANTISED


def test_what_is_not_quantised_is_not_said_beside_another_objection() -> None:
    judged = case(with_evidence(quantised_elements=80_000, unquantised=EXPERTS, loss=None))
    assert [one.kind for one in check(judged, "trained").findings] == ["loss_not_finite"]


SAVED = replace(SPEC, modules_to_save=("embed", "head"))


@pytest.mark.parametrize(
    ("spec", "change", "finding"),
    [
        (SAVED, {"saved": ("embed", "head"), "saved_dtypes": {"float32": 9}}, None),
        (
            SAVED,
            {"saved": ("head",), "saved_dtypes": {"float32": 9}},
            Finding(kind="not_saved", names=("embed",)),
        ),
        (SAVED, {"saved": ()}, Finding(kind="not_saved", names=("embed", "head"))),
        (
            SAVED,
            {"saved": ("embed", "head"), "saved_dtypes": {"bfloat16": 9}},
            Finding(kind="trainable_dtype", names=("float32", "bfloat16")),
        ),
        (
            replace(SAVED, kbit_upcast=False),
            {
                "saved": ("embed", "head"),
                "saved_dtypes": {"bfloat16": 9},
                "base_dtypes": {"bfloat16": 9},
            },
            None,
        ),
        (
            replace(SAVED, kbit_upcast=False),
            {
                "saved": ("embed", "head"),
                "saved_dtypes": {"float32": 9},
                "base_dtypes": {"bfloat16": 9},
            },
            Finding(kind="trainable_dtype", names=("bfloat16", "float32")),
        ),
    ],
    ids=["all", "one missing", "both missing", "not upcast", "base's dtype", "upcast unasked"],
)
def test_modules_to_save_are_trained_in_the_dtype_of_the_base(
    spec: TrainSpec, change: dict[str, Any], finding: Finding | None
) -> None:
    judged = case(with_evidence(**change), claim(spec))
    assert check(judged, "trained").findings == ((finding,) if finding else ())
    assert judged.outcome == ("invalid" if finding else "fits")


def test_trained_is_applied_of_all_steps() -> None:
    """Three of warm-up and five timed ones."""
    found = check(case(with_evidence(applied_steps=6)), "trained")
    assert (found.status, found.value, found.limit, found.unit) == ("pass", 6, 8, "count")


def test_micro_batches_of_one_step_may_come_in_any_number_asked() -> None:
    spec = replace(SPEC, accumulation=3)
    judged = case(with_evidence(batches=((2, 512),) * 3, layer_runs=3), claim(spec))
    assert check(judged, "trained").status == "pass"


SOUND_IN_FULL = {
    "adapters": 0,
    "adapters_expected": 0,
    "base_dtypes": {},
    "quantised_elements": 0,
}


def test_full_training_needs_neither_adapters_nor_quantisation() -> None:
    judged = case(with_evidence(**SOUND_IN_FULL), claim(FULL))
    assert check(judged, "trained").findings == ()


def test_full_training_is_in_the_dtype_of_the_base() -> None:
    evidence = with_evidence(**SOUND_IN_FULL, trainable_dtypes={"float16": 1})
    assert check(case(evidence, claim(FULL)), "trained").findings == (
        Finding(kind="trainable_dtype", names=("float32", "float16")),
    )


def test_base_that_is_not_upcast_is_in_its_own_dtype() -> None:
    plain = claim(replace(SPEC, kbit_upcast=False))
    assert check(case(with_evidence(base_dtypes={"bfloat16": 1}), plain), "trained").findings == ()
    assert check(case(with_evidence(base_dtypes={"float32": 1}), plain), "trained").findings == (
        Finding(kind="base_dtype", names=("bfloat16", "float32")),
    )


@pytest.mark.parametrize(("engine", "device"), [("gpu", "cuda"), ("cpu", "cpu")])
def test_tensors_are_where_the_engine_trains(engine: Any, device: str) -> None:
    judged = judge("a.py::b", engine, claim(), with_evidence(devices={device: 1}))
    assert check(judged, "trained").findings == ()


def test_all_objections_are_told() -> None:
    found = check(case(with_evidence(loss=None, unmoved=("a",), devices={"meta": 1})), "trained")
    assert [one.kind for one in found.findings] == ["loss_not_finite", "unmoved", "elsewhere"]


@pytest.mark.parametrize(
    ("allocated", "reserved", "grown", "value"),
    [
        ((5, 5, 5), (9, 9, 9), (), 0),
        ((5, 7, 5), (9, 11, 9), (), 0),  # what comes and goes is no growth
        ((5, 5, 4), (9, 9, 9), (), 0),
        ((5, 5, 6), (9, 9, 9), ("allocated",), 1),
        ((5, 5, 5), (9, 9, 11), ("reserved",), 2),
        ((5, 6, 8), (9, 9, 11), ("allocated", "reserved"), 3),
        ((5, 6, 8), None, ("allocated",), 3),
        ((5, 5), None, (), 0),
    ],
)
def test_steady(
    allocated: tuple[int, ...],
    reserved: tuple[int, ...] | None,
    grown: tuple[str, ...],
    value: int,
) -> None:
    judged = case(
        with_memory(allocated_after_step_bytes=allocated, reserved_after_step_bytes=reserved)
    )
    found = check(judged, "steady")
    assert found.findings == ((Finding(kind="grew", names=grown),) if grown else ())
    assert (found.status, judged.outcome) == (("fail", "heavier") if grown else ("pass", "fits"))
    assert (found.value, found.limit) == (value, 0)


VARIED = claim(replace(SPEC, lengths="varied"))


@pytest.mark.parametrize(
    ("allocated", "reserved", "retries", "findings", "value"),
    [
        ((5, 4, 5), (9, 9, 9), 0, (Finding(kind="fragmented", names=("0", "0")),), 0),
        ((5, 4, 5), (9, 12, 14), 3, (Finding(kind="fragmented", names=("5", "3")),), 0),
        (
            (5, 4, 6),
            (9, 9, 12),
            0,
            (
                Finding(kind="grew", names=("allocated",)),
                Finding(kind="fragmented", names=("3", "0")),
            ),
            1,
        ),
        ((5, 5, 5), None, None, (), 0),
        ((5, 5, 6), None, None, (Finding(kind="grew", names=("allocated",)),), 1),
    ],
)
def test_steady_with_varied_lengths(
    allocated: tuple[int, ...],
    reserved: tuple[int, ...] | None,
    retries: int | None,
    findings: tuple[Finding, ...],
    value: int,
) -> None:
    """What is reserved may grow, for that is fragmentation; what is allocated may not."""
    seen = with_memory(
        allocated_after_step_bytes=allocated,
        reserved_after_step_bytes=reserved,
        allocator_retries=retries,
    )
    found = check(case(seen, VARIED), "steady")
    assert (found.findings, found.value) == (findings, value)
    assert found.status == ("fail" if value else "pass")


def test_tokens_of_varied_lengths_are_not_counted() -> None:
    judged = case(MEASUREMENT, VARIED)
    assert judged.tokens_per_second is None
    assert judged.seconds_per_10k_tokens is None
    assert judged.joules_per_10k_tokens is None


ALL_PHASES = claim(phases=("eval", "save", "merge"))


def test_every_phase_that_is_asked_for_has_its_check() -> None:
    """Its peak and what lies outside the allocator, of the card; the step's own is another."""
    judged = case(with_phases(eval=9 * GIB, save=8 * GIB, merge=22 * GIB), ALL_PHASES)
    assert judged.outcome == "fits"
    for name, peak in {"eval": 9 * GIB, "save": 8 * GIB, "merge": 22 * GIB}.items():
        assert check(judged, name) == Check(
            name=name, status="pass", value=peak + 512 * MIB, limit=23 * GIB, unit="bytes"
        )
    assert judged.phase_peaks == {"eval": 9 * GIB, "save": 8 * GIB, "merge": 22 * GIB}
    assert check(judged, "peak_within_vram").value == 10 * GIB + 512 * MIB


@pytest.mark.parametrize("phase", ["eval", "save", "merge"])
@pytest.mark.parametrize(("over", "outcome"), [(0, "fits"), (1, "over_vram")])
def test_phase_beyond_the_card(phase: Any, over: int, outcome: str) -> None:
    judged = case(with_phases(**{phase: ROOM + over}), claim(phases=(phase,)))
    assert judged.outcome == outcome
    failed = [one.name for one in judged.checks if one.status == "fail"]
    assert failed == ([phase] if over else [])


@pytest.mark.parametrize(("undecided", "status"), [((), "pass"), (("eval",), "unchecked")])
def test_a_predicted_phase_that_may_find_no_room_is_left_open(undecided: Any, status: str) -> None:
    prediction = Prediction(fits=True, margin=0.005, reserved_bytes=(1, 1), undecided=undecided)
    seen = replace(with_phases(eval=20 * GIB, merge=20 * GIB), prediction=prediction)
    judged = case(seen, claim(phases=("eval", "merge")))
    assert (check(judged, "eval").status, check(judged, "merge").status) == (status, "pass")


@pytest.mark.parametrize(
    ("over", "status"),
    [(-200 * MIB, "pass"), (-50 * MIB, "unchecked"), (50 * MIB, "unchecked"), (200 * MIB, "fail")],
)
def test_a_predicted_phase_is_left_open_near_the_limit(over: int, status: str) -> None:
    prediction = Prediction(fits=True, margin=0.005, reserved_bytes=(1, 1))
    seen = replace(with_phases(eval=ROOM + over), prediction=prediction)
    assert check(case(seen, claim(phases=("eval",))), "eval").status == status


@pytest.mark.parametrize("phase", ["eval", "save", "merge"])
@pytest.mark.parametrize("peak", [9 * GIB, ROOM + 1])
def test_phase_that_left_the_card_while_the_steps_stayed(phase: Any, peak: int) -> None:
    """With room for its peak, too: the allocator's cache was in its way."""
    judged = case(left_by_phase(phase, 300 * MIB, peak), claim(phases=(phase,)))
    assert judged.outcome == "spilled"
    assert check(judged, "resident").status == "pass"
    assert check(judged, phase).status == "fail"
    assert check(judged, phase).findings == (
        Finding(kind="phase_off_card", names=(str(300 * MIB),)),
    )


@pytest.mark.parametrize("off_card", [0, None])
def test_phase_that_was_not_seen_off_the_card(off_card: int | None) -> None:
    judged = case(left_by_phase("eval", off_card), claim(phases=("eval",)))
    assert check(judged, "eval").status == "pass"


def test_a_predicted_phase_is_too_close_to_a_limit_that_refuses_nothing() -> None:
    prediction = Prediction(fits=True, margin=0.005, reserved_bytes=(1, 1), undecided=("eval",))
    seen = replace(with_phases(eval=20 * GIB), prediction=prediction)
    found = check(
        case(seen, claim(phases=("eval",), card_bytes=24 * GIB, overflow="spill")), "eval"
    )
    assert found.findings == (Finding(kind="too_close", names=("0.5 %",)),)


def test_phase_counts_all_where_nothing_lies_outside_an_allocator() -> None:
    seen = with_phases(with_memory(outside_allocator_bytes=None), eval=5)
    assert check(case(seen, claim(phases=("eval",))), "eval").value == 5


def test_phase_that_runs_out_of_memory_is_an_oom_and_the_last() -> None:
    judged = case(with_phases(eval=9 * GIB, save=None), ALL_PHASES)
    assert judged.outcome == "oom"
    assert check(judged, "no_oom").status == "pass"
    assert check(judged, "eval").status == "pass"
    assert check(judged, "save") == Check(
        name="save",
        status="fail",
        value=2 * GIB,
        limit=512 * MIB,
        unit="bytes",
        findings=(Finding(kind="out_of_memory"),),
    )
    assert check(judged, "merge") == Check(
        name="merge", status="unchecked", findings=(Finding(kind="phase_before_ran_out"),)
    )
    assert judged.phase_peaks == {"eval": 9 * GIB}


def test_step_over_the_card_names_the_case_before_a_phase_that_ran_out() -> None:
    seen = with_phases(with_memory(backward_peak_bytes=24 * GIB), eval=None)
    assert case(seen, claim(phases=("eval",))).outcome == "over_vram"


def test_phase_out_of_memory_names_the_case_before_what_else_failed() -> None:
    seen = with_phases(with_evidence(loss=None), eval=None)
    assert case(seen, claim(phases=("eval",))).outcome == "oom"


def test_after_an_oom_no_phase_was_run() -> None:
    judged = case(RAN_OUT, ALL_PHASES)
    assert {check(judged, name).findings for name in ("eval", "save", "merge")} == {
        (Finding(kind="did_not_run"),)
    }
    assert {check(judged, name).status for name in ("eval", "save", "merge")} == {"unchecked"}


def test_phase_is_of_the_card_that_the_marker_names() -> None:
    judged = case(with_phases(eval=9 * GIB), claim(phases=("eval",), card_bytes=9 * GIB))
    assert check(judged, "eval").limit == 9 * GIB
    assert check(judged, "eval").status == "fail"


def test_one_timed_step_shows_no_growth() -> None:
    one = with_memory(allocated_after_step_bytes=(5,), reserved_after_step_bytes=(9,))
    found = check(case(one), "steady")
    assert (found.status, found.findings) == ("unchecked", (Finding(kind="one_step"),))


@pytest.mark.parametrize(
    ("limit_ms", "status", "outcome"), [(250, "pass", "fits"), (249, "fail", "slower")]
)
def test_max_step_bounds_the_median(limit_ms: int, status: str, outcome: str) -> None:
    """Of 230, 240, 250, 260 and 900 ms."""
    judged = case(MEASUREMENT, claim(max_step_ns=limit_ms * MS))
    assert check(judged, "max_step") == Check(
        name="max_step", status=status, value=250 * MS, limit=limit_ms * MS, unit="ns"
    )
    assert judged.outcome == outcome


@given(samples=st.lists(st.integers(1, 10**12), min_size=1, max_size=20).map(tuple))
def test_median_is_a_sample_with_no_more_above_than_below(samples: tuple[int, ...]) -> None:
    """One sample more may lie above: of two middle ones it is the lower."""
    middle = median(samples)
    below = sum(one < middle for one in samples)
    above = sum(one > middle for one in samples)
    assert middle in samples
    assert 2 * below < len(samples)
    assert 2 * above <= len(samples)


def against_a_baseline(judged: Case) -> list[Check]:
    return [one for one in judged.checks if one.name in AGAINST_A_BASELINE]


def kinds(judged: Case, name: str) -> list[str]:
    return [one.kind for one in check(judged, name).findings]


def reasons(judged: Case) -> dict[str, tuple[str, Finding]]:
    """Status and only finding of each check against a baseline."""
    found = {}
    for one in against_a_baseline(judged):
        assert (one.value, one.limit, one.ratio, one.interval) == (None,) * 4
        (finding,) = one.findings
        found[one.name] = (one.status, finding)
    return found


@pytest.mark.parametrize("reference", [None, Reference()], ids=["none", "of nothing"])
def test_without_a_baseline_its_checks_are_unchecked(reference: Reference | None) -> None:
    judged = judge("a.py::b", "gpu", claim(), MEASUREMENT, reference=reference)
    no_baseline = ("unchecked", Finding(kind="no_baseline"))
    assert reasons(judged) == dict.fromkeys(AGAINST_A_BASELINE, no_baseline)
    assert not judged.in_turn


def test_same_figures_as_the_baseline_s_fit() -> None:
    judged = compared()
    assert {one.status for one in against_a_baseline(judged)} == {"pass"}
    assert judged.outcome == "fits"
    assert [(one.limit, one.ratio) for one in against_a_baseline(judged)] == [
        (312_500_000, 1),
        (236_250_000, 1),
        (10_844_792_422, 1),
    ]
    assert not judged.in_turn


@pytest.mark.parametrize(
    ("seen", "failed", "outcome"),
    [
        (timed(step=2), "step_time", "slower"),
        (timed(gpu=1.2), "gpu_time", "slower"),
        (peaking_at(10 * GIB + GIB // 5), "peak_baseline", "heavier"),
    ],
    ids=["step", "gpu", "peak"],
)
def test_each_figure_is_compared(seen: Measurement, failed: str, outcome: str) -> None:
    judged = compared(seen)
    assert [one.name for one in judged.checks if one.status == "fail"] == [failed]
    assert judged.outcome == outcome


def test_checks_against_a_baseline_have_figures_and_a_ratio() -> None:
    found = check(compared(timed(step=2)), "step_time")
    assert (found.value, found.limit, found.unit) == (500 * MS, 312_500_000, "ns")
    assert found.ratio == pytest.approx(2)
    assert found.interval is not None


def test_while_a_baseline_is_recorded_nothing_is_compared() -> None:
    """Not with the older one either."""
    finding = Finding(kind="recorded")
    judged = compared(timed(step=9, gpu=9), without=finding)
    assert reasons(judged) == dict.fromkeys(AGAINST_A_BASELINE, ("unchecked", finding))


def test_baseline_of_another_config_is_not_compared_but_told() -> None:
    before = recorded(spec=replace(SPEC, seq=1024, optimizer="sgd", targets=("q_proj",)))
    changed = Finding(
        kind="config_changed",
        names=(
            *("optimizer", "sgd", "adamw"),
            *("seq", "1024", "512"),
            *("targets", "['q_proj']", "all-linear"),
        ),
    )
    judged = compared(timed(step=9, gpu=9), entry=before)
    assert reasons(judged) == dict.fromkeys(AGAINST_A_BASELINE, ("unchecked", changed))
    assert not judged.in_turn


def test_config_of_a_file_is_compared_value_by_value() -> None:
    """A list of targets is no change because JSON has no tuples."""
    spec = replace(SPEC, targets=("q_proj", "v_proj"))
    before = recorded(spec=replace(spec, config={**spec.config, "hidden_size": 32}))
    before = replace(before, spec=json.loads(json.dumps(before.spec)))
    found = reasons(compared(MEASUREMENT, claim(spec), entry=before))
    assert found["step_time"][1].names == ("config.hidden_size", "32", "64")


def test_other_digest_is_told_where_no_field_differs() -> None:
    """1 and 1.0 are the same value in another text."""
    before = recorded(spec=replace(SPEC, alpha=32))
    found = reasons(compared(entry=before))
    assert found["step_time"][1].names == ("digest", before.digest, SPEC.digest)


def test_another_name_of_the_model_is_no_other_config() -> None:
    judged = compared(MEASUREMENT, claim(replace(SPEC, model="Other")))
    assert {one.status for one in against_a_baseline(judged)} == {"pass"}


def test_baseline_under_another_name_is_told_with_every_check() -> None:
    before = recorded(nodeid="test_a.py::test_old")
    judged = compared(timed(step=2), entry=before, renamed=True)
    for one in against_a_baseline(judged):
        assert one.findings[-1] == Finding(kind="renamed", names=("test_a.py::test_old",))
        assert one.ratio is not None
    assert judged.outcome == "slower"
    assert kinds(compared(entry=before), "step_time") == []


def test_in_turn_processes_are_compared_in_pairs() -> None:
    """Both sides slowed down by half from the first turn to the second; in each, one of them is
    40 % slower.
    """
    entry = Entry.of("a.py::b", "gpu", SPEC, [timed(), timed(step=1.5, gpu=1.5)])
    apart, in_turn = (
        judge(
            "a.py::b",
            "gpu",
            claim(step_ratio=1.1),
            timed(step=1.4, gpu=1.4),
            more=(timed(step=2.1, gpu=2.1),),
            reference=Reference(entry=entry, in_turn=in_turn),
        )
        for in_turn in (False, True)
    )
    assert (apart.in_turn, in_turn.in_turn) == (False, True)
    assert check(in_turn, "step_time").ratio == pytest.approx(1.4)
    assert check(in_turn, "step_time").status == "fail"
    assert check(apart, "step_time").status == "unchecked"


def test_more_measurements_of_the_case_count_as_processes() -> None:
    """Of those that got through, with what they ran under."""
    loaded = timed(step=1.5, conditions=Conditions(others_cpu_share=0.5))
    judged = judge(
        "a.py::b",
        "gpu",
        claim(),
        timed(step=2),
        more=(loaded, RAN_OUT),
        reference=Reference(entry=recorded()),
    )
    assert judged.measurements == (timed(step=2), loaded)
    assert check(judged, "step_time").ratio == pytest.approx((2 * 1.5) ** 0.5)
    assert kinds(judged, "step_time")[0] == "host_loaded"


def test_smaller_peak_of_more_measurements_counts() -> None:
    heavy = peaking_at(11 * GIB)
    reference = Reference(entry=recorded())
    assert judge("a.py::b", "gpu", claim(), heavy, reference=reference).outcome == "heavier"
    judged = judge("a.py::b", "gpu", claim(), heavy, more=(MEASUREMENT,), reference=reference)
    assert judged.outcome == "fits"
    assert check(judged, "peak_baseline").value == 10 * GIB


@pytest.mark.parametrize(
    ("limit", "name"),
    [("step_ratio", "step_time"), ("gpu_ratio", "gpu_time"), ("peak_ratio", "peak_baseline")],
)
@pytest.mark.parametrize(
    "judge_it",
    [
        lambda asked: case(MEASUREMENT, asked),
        lambda asked: case(RAN_OUT, asked),
        lambda asked: compared(timed(step=9, gpu=9), asked),
        lambda asked: compared(MEASUREMENT, asked, without=Finding(kind="recorded")),
    ],
    ids=["no baseline", "oom", "baseline", "recorded"],
)
def test_check_whose_ratio_is_none_is_not_made(limit: str, name: str, judge_it: Any) -> None:
    made = {one.name for one in against_a_baseline(judge_it(claim(**{limit: None})))}
    assert made == AGAINST_A_BASELINE - {name}


def test_ratio_of_the_marker_is_the_limit() -> None:
    assert compared(timed(step=2), claim(step_ratio=3.0)).outcome == "fits"
    assert compared(timed(gpu=0.9), claim(gpu_ratio=0.8)).outcome == "slower"


@pytest.mark.parametrize(
    "reference",
    [
        Reference(),
        Reference(without=Finding(kind="recorded")),
        Reference(entry=recorded(spec=FULL)),
        Reference(entry=recorded()),
    ],
    ids=["no baseline", "recorded", "other config", "baseline"],
)
def test_gpu_time_needs_the_gpu_engine(reference: Reference) -> None:
    """Whatever it would be compared with."""
    cpu = with_evidence(devices={"cpu": 1})
    judged = judge("a.py::b", "cpu", claim(), replace(cpu, gpu=None), reference=reference)
    found = check(judged, "gpu_time")
    assert (found.status, found.findings) == ("unchecked", (Finding(kind="no_gpu"),))
    assert kinds(judged, "step_time") != ["no_gpu"]
    assert judged.outcome == "fits"


def test_step_that_is_faster_with_its_gpu_time_is_not_faster_on_the_host_s_side() -> None:
    assert kinds(compared(timed(step=0.5, gpu=0.5)), "step_time") == ["improved"]
    assert kinds(compared(timed(step=0.5)), "step_time") == ["improved", "host_side"]
    assert kinds(compared(timed(step=2, gpu=0.5)), "step_time") == ["host_side"]


GATED = frozenset({"step_time", "resident", "peak_baseline"})


@pytest.mark.parametrize("judge_it", [case, compared], ids=["no baseline", "baseline"])
def test_required_check_that_could_not_be_made_fails(judge_it: Any) -> None:
    """With the reason after it; the same check without the requirement is unchecked."""
    not_looked = replace(MEASUREMENT, residency=None)
    plain, required = judge_it(not_looked), judge_it(not_looked, claim(require=GATED))
    assert statuses(plain)["resident"] == "unchecked"
    for before, after in zip(plain.checks, required.checks, strict=True):
        if before.name in GATED and before.status == "unchecked":
            findings = (Finding(kind="required"), *before.findings)
            assert after == replace(before, status="fail", findings=findings)
        else:
            assert after == before


def test_every_check_can_be_required() -> None:
    judged = case(RAN_OUT, claim(require=frozenset(CHECKS)))
    assert {one.status for one in judged.checks} == {"fail"}
    assert judged.outcome == "oom"


NOT_ASKED = {
    "step_time": claim(step_ratio=None, require=frozenset({"step_time"})),
    "gpu_time": claim(gpu_ratio=None, require=frozenset({"gpu_time"})),
    "peak_baseline": claim(peak_ratio=None, require=frozenset({"peak_baseline"})),
    "max_step": claim(require=frozenset({"max_step"})),
    "headroom": claim(require=frozenset({"headroom"})),
    "eval": claim(require=frozenset({"eval"})),
    "merge": claim(phases=("eval",), require=frozenset({"merge"})),
}
"""Each requires a check that nothing in the marker asks for."""


@pytest.mark.parametrize("name", NOT_ASKED)
@pytest.mark.parametrize(
    "judge_it",
    [
        lambda asked: case(MEASUREMENT, asked),
        lambda asked: compared(MEASUREMENT, asked),
        lambda asked: compared(MEASUREMENT, asked, without=Finding(kind="recorded")),
        lambda asked: case(RAN_OUT, asked),
    ],
    ids=["no baseline", "baseline", "recorded", "oom"],
)
def test_required_check_that_nothing_asks_for_fails(judge_it: Any, name: str) -> None:
    """Whoever requires a check relies on it; the others stay as they are."""
    asked = NOT_ASKED[name]
    limits = replace(asked.limits, require=frozenset())
    plain, required = judge_it(replace(asked, limits=limits)), judge_it(asked)
    assert name not in statuses(plain)
    findings = (Finding(kind="required"), Finding(kind="not_asked"))
    assert required.checks == (*plain.checks, Check(name=name, status="fail", findings=findings))
    assert required.outcome == (OUTCOMES[name] if plain.outcome == "fits" else plain.outcome)
    assert (in_doubt(required), to_confirm(required)) == (False, False)


def test_all_required_checks_that_nothing_asks_for_fail_in_a_fixed_order() -> None:
    asked = claim(
        step_ratio=None, gpu_ratio=None, peak_ratio=None, require=frozenset({*NOT_ASKED, "trained"})
    )
    failed = [one.name for one in case(MEASUREMENT, asked).checks if one.status == "fail"]
    assert failed == sorted(NOT_ASKED)


@pytest.mark.parametrize("name", NOT_ASKED)
def test_required_check_that_is_asked_for_is_made(name: str) -> None:
    asked = claim(
        headroom=Headroom(share=0.1),
        max_step_ns=9_000 * MS,
        phases=("eval", "merge"),
        require=frozenset(NOT_ASKED),
    )
    assert check(compared(with_phases(eval=1, merge=1), asked), name).status == "pass"


def test_undecided_check_that_is_required_keeps_its_figures() -> None:
    asked = claim(require=frozenset({"gpu_time"}))
    plain, required = (
        check(compared(timed(gpu=1.05), one), "gpu_time") for one in (claim(), asked)
    )
    assert (plain.status, plain.findings[0].kind) == ("unchecked", "too_noisy")
    findings = (Finding(kind="required"), *plain.findings)
    assert required == replace(plain, status="fail", findings=findings)


def test_required_check_that_passed_passes() -> None:
    assert compared(MEASUREMENT, claim(require=AGAINST_A_BASELINE)).outcome == "fits"


def test_required_check_whose_baseline_is_being_recorded_does_not_fail() -> None:
    """Else no baseline could ever be recorded; what else is required still fails."""
    recording = Finding(kind="recorded")
    asked = claim(require=frozenset(AGAINST_A_BASELINE))
    assert compared(MEASUREMENT, asked, without=recording).outcome == "fits"
    asked = claim(require=frozenset({*AGAINST_A_BASELINE, "resident"}))
    not_looked = replace(MEASUREMENT, residency=None)
    assert compared(MEASUREMENT, asked, without=recording).outcome == "fits"
    assert compared(not_looked, asked, without=recording).outcome == "spilled"


DOUBT = timed(step=1.13, gpu=1.13)
STEP_ONLY = claim(gpu_ratio=None)


@pytest.mark.parametrize(
    ("judged", "doubt", "confirm"),
    [
        pytest.param(case(), False, False, id="no baseline"),
        pytest.param(compared(), False, False, id="passes"),
        pytest.param(compared(DOUBT, STEP_ONLY), True, False, id="step in doubt"),
        pytest.param(compared(timed(gpu=1.025)), True, False, id="gpu in doubt"),
        pytest.param(compared(timed(gpu=1.075)), True, False, id="gpu in doubt above the limit"),
        pytest.param(compared(timed(gpu=1.045)), False, False, id="in doubt for good"),
        pytest.param(compared(DOUBT), True, True, id="one of two in doubt"),
        pytest.param(compared(timed(step=2)), False, True, id="step fails"),
        pytest.param(compared(timed(gpu=1.2)), False, True, id="gpu fails"),
        pytest.param(compared(peaking_at(11 * GIB)), False, True, id="peak fails"),
        pytest.param(
            compared(timed(gpu=1.025), claim(require=frozenset({"gpu_time"}))),
            True,
            True,
            id="in doubt and required",
        ),
        pytest.param(
            case(MEASUREMENT, claim(require=frozenset({"step_time"}))),
            False,
            False,
            id="required without a baseline",
        ),
        pytest.param(
            compared(replace(DOUBT, conditions=Conditions(others_cpu_share=0.9)), STEP_ONLY),
            False,
            False,
            id="a busy host, which more would not change",
        ),
        pytest.param(
            compared(MEASUREMENT, claim(max_step_ns=1, headroom=Headroom(share=0.9))),
            False,
            False,
            id="other checks fail",
        ),
        pytest.param(compared(RAN_OUT), False, False, id="oom"),
    ],
)
def test_what_is_measured_again(judged: Case, doubt: bool, confirm: bool) -> None:
    assert (in_doubt(judged), to_confirm(judged)) == (doubt, confirm)


@pytest.mark.parametrize(
    ("throttled_ns", "reasons"),
    [
        (None, ()),
        ({}, ()),
        ({"power cap": 10**9}, ()),  # the step's own doing
        ({"hardware thermal": 10**7}, ()),  # of 2.1 s
        ({"hardware thermal": 10**9}, ("hardware thermal",)),
        (
            {"sync boost": 10**9, "power brake": 10**9, "software thermal": 10**9},
            ("software thermal", "power brake", "sync boost"),
        ),
    ],
    ids=str,
)
def test_clocks_held_down_from_outside_are_kept_with_the_case(
    throttled_ns: dict[str, int] | None, reasons: tuple[str, ...]
) -> None:
    seen = replace(MEASUREMENT, conditions=Conditions(throttled_ns=throttled_ns))
    assert case(seen).throttled == reasons


def test_clocks_held_down_in_a_later_process_count_too() -> None:
    """As a part of the time of all, here 2.6 s of each."""
    for held_ms, reasons in ((30, ()), (60, ("power brake",))):
        hot = timed(conditions=Conditions(throttled_ns={"power brake": held_ms * MS}))
        for first, second in ((MEASUREMENT, hot), (hot, MEASUREMENT)):
            judged = judge("a.py::b", "gpu", claim(), first, more=(second,))
            assert judged.throttled == reasons
        assert judge("a.py::b", "gpu", claim(), hot, more=(hot,)).throttled == ("power brake",)


@pytest.mark.parametrize("seen", [RAN_OUT, replace(MEASUREMENT, conditions=None)])
def test_case_without_conditions_was_not_held_down(seen: Measurement) -> None:
    assert case(seen).throttled == ()


def test_energy_is_that_of_all_timed_steps() -> None:
    """2 kJ over 5 steps of 1,024 tokens."""
    assert case().joules_per_10k_tokens == pytest.approx(2_000 / 5_120 * 10_000)


@pytest.mark.parametrize(
    "seen",
    [
        RAN_OUT,
        replace(MEASUREMENT, conditions=None),
        replace(MEASUREMENT, conditions=Conditions()),
        replace(MEASUREMENT, step_ns=()),
    ],
    ids=["oom", "no conditions", "no energy", "no steps"],
)
def test_energy_that_was_not_measured_is_none(seen: Measurement) -> None:
    assert case(seen).joules_per_10k_tokens is None


@pytest.mark.parametrize(
    ("gpu", "gpu_ns"),
    [
        (None, None),
        (GpuTime(busy_ns=(9, 5, 7), kernels=1), 7),
        (GpuTime(busy_ns=(8, 6), kernels=1), 6),
    ],
)
def test_gpu_time_is_the_median_of_the_profiled_steps(
    gpu: GpuTime | None, gpu_ns: int | None
) -> None:
    assert replace(MEASUREMENT, gpu=gpu).median_gpu_ns == gpu_ns


OUTCOMES = {
    "no_oom": "oom",
    "peak_within_vram": "over_vram",
    "eval": "over_vram",
    "save": "over_vram",
    "merge": "over_vram",
    "resident": "spilled",
    "headroom": "no_headroom",
    "trained": "invalid",
    "max_step": "slower",
    "step_time": "slower",
    "gpu_time": "slower",
    "steady": "heavier",
    "peak_baseline": "heavier",
}
"""Which outcome a failed check makes, in the order of the table."""
FIRST = ("no_oom", "resident", *(name for name in CHECKS if name not in {"no_oom", "resident"}))
"""The order in which the first failed one names the case: memory that was seen off the card goes
before what was only reckoned.
"""


def with_checks(**by_name: Any) -> Case:
    """Each with what was measured."""
    checks = tuple(Check(name=name, status=status, value=1) for name, status in by_name.items())
    return replace(case(), checks=checks)


def test_there_is_an_outcome_for_every_check() -> None:
    assert tuple(OUTCOMES) == CHECKS


@pytest.mark.parametrize("name", OUTCOMES)
def test_outcome_of_one_failed_check(name: str) -> None:
    others = dict.fromkeys(CHECKS, "pass")
    assert with_checks(**{**others, name: "fail"}).outcome == OUTCOMES[name]


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_unchecked_check_names_no_outcome(name: str) -> None:
    assert with_checks(**{name: "unchecked"}).outcome == "fits"


@given(failed=st.lists(st.sampled_from(CHECKS), min_size=1, unique=True))
def test_the_first_failed_check_names_the_outcome(failed: list[str]) -> None:
    """Whatever the order of the checks."""
    first = next(OUTCOMES[name] for name in FIRST if name in failed)
    assert with_checks(**dict.fromkeys(failed, "fail")).outcome == first


def test_case_that_fails_in_every_way_is_over_the_card_first() -> None:
    bad = replace(
        peaking_at(99 * GIB, allocated_after_step_bytes=(1, 2)),
        evidence=replace(EVIDENCE, loss=None),
    )
    judged = case(bad, claim(headroom=Headroom(share=0.1), max_step_ns=1))
    failed = [one.name for one in judged.checks if one.status == "fail"]
    assert failed == ["peak_within_vram", "headroom", "trained", "steady", "max_step"]
    assert judged.outcome == "over_vram"


def test_case_that_was_seen_off_the_card_is_spilled_before_it_is_over_it() -> None:
    """Though a phase ran out of memory, too; only a step that did not get through is not."""
    off_card = replace(RESIDENCY, off_card_bytes=MIB)
    over = replace(peaking_at(99 * GIB), residency=off_card)
    judged = case(with_phases(over, eval=None), claim(phases=("eval",)))
    failed = [one.name for one in judged.checks if one.status == "fail"]
    assert failed == ["peak_within_vram", "eval", "resident"]
    assert judged.outcome == "spilled"
    required = claim(require=frozenset({"resident"}))
    assert case(RAN_OUT, required).outcome == "oom"


def test_case_keeps_what_it_was_made_from() -> None:
    judged = judge("a.py::b", "cpu", QUARTER, MEASUREMENT)
    assert (judged.nodeid, judged.engine) == ("a.py::b", "cpu")
    assert (judged.claim, judged.measurement) == (QUARTER, MEASUREMENT)


def test_usable_memory_is_what_neither_the_driver_nor_others_hold() -> None:
    assert DEVICE.usable_bytes == 24 * GIB - 768 * MIB - 256 * MIB
