"""Which cases get advice, from which worker, and for which card it is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from samples import (
    GIB,
    MEASUREMENT,
    MEMORY,
    MIB,
    RAN_OUT,
    RESIDENCY,
    SPEC,
    case,
    claim,
    left_by_phase,
    with_memory,
    with_phases,
)

from pytest_vramfit.catalog import gpus
from pytest_vramfit.estimating.advice import LIMIT_S, Advice, Predicted
from pytest_vramfit.estimating.target import target_of
from pytest_vramfit.gate import Gate
from pytest_vramfit.measurement import Prediction
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict import Case, judge
from pytest_vramfit.worker.protocol import Measured, NotMeasured, Progress, Request

PREDICTED = replace(
    MEASUREMENT,
    memory=replace(MEMORY, backward_peak_bytes=24 * GIB, forward_peak_bytes=GIB),
    prediction=Prediction(fits=False, margin=0.005, reserved_bytes=(24 * GIB, 25 * GIB)),
)
"""Of a case that does not fit."""
FITS = replace(
    PREDICTED,
    memory=replace(MEMORY, backward_peak_bytes=9 * GIB, forward_peak_bytes=GIB),
    prediction=Prediction(fits=True, margin=0.005, reserved_bytes=(9 * GIB, 10 * GIB)),
)
OVER = with_memory(backward_peak_bytes=24 * GIB)


class Predicting:
    """Says that whatever has checkpointing fits; keeps what it was asked."""

    def __init__(self, reply: NotMeasured | None = None) -> None:
        self._reply = reply
        self.asked: list[Request] = []
        self.log: list[str] = []

    def measure(self, request: Request, on_progress: object) -> Measured | NotMeasured:
        self.asked.append(request)
        found = FITS if request.spec.checkpointing else PREDICTED
        return self._reply or Measured(measurement=found, clean=True)

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")


def gate_of(predicting: Predicting | None, worker: object = None) -> Gate:
    return Gate(engine="gpu", worker=cast("Any", worker), predicting=cast("Any", predicting))


def advised(judged: Case, predicting: Predicting) -> Case:
    return gate_of(predicting).advised(judged, lambda _: None)


CHECKPOINTING = {"checkpointing": True}


@pytest.mark.parametrize(
    "judged",
    [
        pytest.param(case(RAN_OUT), id="out of memory"),
        pytest.param(case(OVER), id="over VRAM"),
        pytest.param(case(MEASUREMENT, claim(headroom=Headroom(share=0.6))), id="no headroom"),
        pytest.param(judge("a", "estimate", claim(card_bytes=GIB), PREDICTED), id="predicted"),
        pytest.param(
            case(replace(MEASUREMENT, residency=replace(RESIDENCY, off_card_bytes=GIB))),
            id="spilled",
        ),
    ],
)
def test_step_that_does_not_fit_gets_advice(judged: Case) -> None:
    advice = advised(judged, Predicting()).advice
    assert advice is not None
    assert advice.ended == "complete"
    assert [dict(one.keywords) for one in advice.suggestions] == [CHECKPOINTING]
    assert advice.suggestions[0].predicted.peak_allocated_bytes == 9 * GIB


@pytest.mark.parametrize(
    "judged",
    [
        pytest.param(case(), id="fits"),
        pytest.param(case(MEASUREMENT, claim(max_step_ns=1)), id="too slow"),
        pytest.param(
            case(replace(MEASUREMENT, residency=None), claim(require=frozenset({"resident"}))),
            id="required, and nobody could look",
        ),
        pytest.param(
            case(with_phases(eval=None), claim(phases=("eval",))), id="evaluation out of memory"
        ),
        pytest.param(
            case(left_by_phase("eval", GIB), claim(phases=("eval",))), id="evaluation off the card"
        ),
        pytest.param(
            case(with_phases(eval=24 * GIB), claim(phases=("eval",))), id="evaluation over VRAM"
        ),
    ],
)
def test_no_prediction_for_what_is_no_failure_of_the_step_s_memory(judged: Case) -> None:
    predicting = Predicting()
    assert advised(judged, predicting) == judged
    assert predicting.asked == []


def test_no_advice_where_nobody_predicts() -> None:
    judged = case(RAN_OUT)
    assert gate_of(None).advised(judged, lambda _: None) == judged


def test_prediction_is_for_the_gpu_that_was_measured_on() -> None:
    """Without what others hold on it; with what lies outside the allocator, where that was seen."""
    predicting = Predicting()
    advised(case(OVER), predicting)
    request = predicting.asked[0]
    assert request.spec == SPEC
    assert request.schedule.timeout_s == LIMIT_S
    assert request.capacity_bytes == 23 * GIB - 512 * MIB
    target = request.target
    assert target is not None
    assert (target.name, target.total_bytes, target.usable_bytes) == ("Card", 24 * GIB, 23 * GIB)
    assert target.outside_bytes == 512 * MIB
    assert all(one.target == target for one in predicting.asked)


def test_gpu_of_the_catalogue_has_its_capability_and_is_measured_where_memory_ran_out() -> None:
    known = gpus.find("H200")
    assert known is not None
    device = replace(RAN_OUT.device, name="NVIDIA H200", total_bytes=known.memory_bytes)
    predicting = Predicting()
    advised(case(replace(RAN_OUT, device=device)), predicting)
    target = predicting.asked[0].target
    assert target is not None
    assert target.capability == (9, 0)
    assert target.outside_bytes == known.outside_bytes
    assert target.usable_bytes == device.usable_bytes


@pytest.mark.parametrize("card", ["RTX 5070 Ti", None])
def test_prediction_is_for_the_claim_s_card_as_the_estimate_was(card: str | None) -> None:
    """Else its trace would be made once more."""
    card_bytes = gpus.memory_bytes_of("RTX 5070 Ti")
    estimated = target_of(card, card_bytes)
    seen = replace(
        PREDICTED,
        device=replace(
            MEASUREMENT.device,
            name=estimated.name,
            total_bytes=estimated.total_bytes,
            reserved_bytes=estimated.reserved_bytes,
            held_bytes=0,
        ),
        memory=replace(PREDICTED.memory or MEMORY, outside_allocator_bytes=estimated.outside_bytes),
    )
    predicting = Predicting()
    advised(judge("a", "estimate", claim(card_bytes=card_bytes, card=card), seen), predicting)
    assert predicting.asked[0].target == estimated


def test_what_must_stay_free_is_not_there_for_the_allocator() -> None:
    predicting = Predicting()
    advised(case(OVER, claim(headroom=Headroom(size_bytes=3 * GIB))), predicting)
    assert predicting.asked[0].capacity_bytes == 20 * GIB - 512 * MIB


@pytest.mark.parametrize("fits", [None, False])
def test_too_close_to_tell_is_not_suggested(fits: bool | None) -> None:
    class Unsure(Predicting):
        def measure(self, request: Request, on_progress: object) -> Measured | NotMeasured:
            reply = super().measure(request, on_progress)
            assert isinstance(reply, Measured)
            assert reply.measurement.prediction is not None
            unsure = replace(reply.measurement.prediction, fits=fits)
            return replace(reply, measurement=replace(reply.measurement, prediction=unsure))

    assert advised(case(OVER), Unsure()).advice == Advice(ended="complete")


@pytest.mark.parametrize("outcome", ["crashed", "timeout", "unsupported", "refused"])
def test_case_that_cannot_be_predicted_says_why(outcome: Any) -> None:
    predicting = Predicting(NotMeasured(outcome=outcome, says="no liger here"))
    judged = advised(case(OVER), predicting)
    assert judged.advice == Advice(ended="broken", reason="no liger here")
    assert judged.outcome == "over_vram"
    assert len(predicting.asked) == 1


@pytest.mark.parametrize(
    ("outcome", "ended", "asked"),
    [("crashed", "broken", 2), ("timeout", "broken", 2), ("refused", "complete", 10)],
)
def test_change_that_cannot_be_predicted(outcome: Any, ended: str, asked: int) -> None:
    """One that the model refuses is none; a worker that breaks down is not tried again."""

    class Breaking(Predicting):
        def measure(self, request: Request, on_progress: object) -> Measured | NotMeasured:
            reply = super().measure(request, on_progress)
            first = len(self.asked) == 1
            return reply if first else NotMeasured(outcome=outcome, says="no")

    predicting = Breaking()
    advice = advised(case(OVER, claim(replace(SPEC, batch=1))), predicting).advice
    assert advice is not None
    assert (advice.ended, advice.suggestions) == (ended, ())
    assert len(predicting.asked) >= asked


def test_each_prediction_shows_that_advice_is_sought() -> None:
    shown: list[Progress] = []
    predicting = Predicting()
    gate_of(predicting).advised(case(OVER), shown.append)
    assert shown == [Progress(stage="advice", done=0, of=1)] * len(predicting.asked)


def test_time_of_advice_is_told_with_the_other_stages() -> None:
    stages = advised(case(OVER), Predicting()).measurement.stages_ns
    assert stages.keys() == {*MEASUREMENT.stages_ns, "advice"}
    assert stages["advice"] > 0


def test_predicting_worker_is_started_when_it_is_needed_and_ends_with_the_gate() -> None:
    predicting, worker = Predicting(), Predicting()
    gate = gate_of(predicting, worker)
    gate.start()
    assert (worker.log, predicting.log) == (["start"], [])
    gate.stop()
    assert (worker.log, predicting.log) == (["start", "stop"], ["stop"])


class Measuring(Predicting):
    """Gives one measurement."""

    def measure(self, request: Request, on_progress: object) -> Measured | NotMeasured:
        self.asked.append(request)
        return Measured(measurement=OVER, clean=True)


@pytest.mark.parametrize("asked", [claim(), claim(headroom=Headroom(share=0.1))])
def test_measuring_by_itself_seeks_no_advice(asked: Claim) -> None:
    """It is asked for where somebody will read it."""
    predicting = Predicting()
    gate = gate_of(predicting, Measuring())
    for measured in (gate.measure, gate.measure_alone):
        judged = measured("a.py::b", asked, lambda _: None)
        assert isinstance(judged, Case)
        assert judged.advice is None
    assert predicting.asked == []


def test_suggestion_counts_what_lies_outside_the_allocator() -> None:
    advice = advised(case(OVER), Predicting()).advice
    assert advice is not None
    assert advice.suggestions[0].predicted == Predicted(
        fits=True, peak_allocated_bytes=9 * GIB, outside_allocator_bytes=512 * MIB
    )


def test_figures_of_the_case_stay_its_own() -> None:
    judged = advised(case(OVER), Predicting())
    assert replace(judged.measurement, stages_ns=OVER.stages_ns) == OVER
