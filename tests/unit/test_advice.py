"""What would make a case fit: in which order it is sought, and how far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import GIB, MIB, SPEC

from pytest_vramfit.estimating.advice import (
    LIMIT_S,
    Advice,
    BrokenError,
    Predicted,
    UnpredictableError,
    advise,
)
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.spec import TrainSpec

ROOM = 10 * GIB
PLAIN = replace(SPEC, batch=4, checkpointing=False)
"""Of which nothing is known but its keywords, so that each spec is asked for as it is."""
SEVEN_B = read_claim([{"model": "Qwen2.5-7B"}], rootdir=Path()).spec


class Predictor:
    """Answers by a rule, keeps what it was asked."""

    def __init__(self, peak_bytes: Callable[[TrainSpec], int], room_bytes: int = ROOM) -> None:
        self._peak_bytes = peak_bytes
        self._room_bytes = room_bytes
        self.asked: list[TrainSpec] = []

    def __call__(self, spec: TrainSpec) -> Predicted:
        self.asked.append(spec)
        peak = self._peak_bytes(spec)
        return Predicted(
            fits=peak <= self._room_bytes, peak_allocated_bytes=peak, outside_allocator_bytes=MIB
        )


def fitting(fits: Callable[[TrainSpec], bool]) -> Predictor:
    """To which those specs fit, and no others."""
    return Predictor(lambda spec: GIB if fits(spec) else 11 * GIB)


def changes(spec: TrainSpec, other: TrainSpec) -> set[str]:
    """The fields in which the two differ."""
    before, now = spec.to_json(), other.to_json()
    return {name for name in before if before[name] != now[name]}


def suggested(advice: Advice) -> list[dict[str, Any]]:
    return [dict(one.keywords) for one in advice.suggestions]


def advice_on(spec: TrainSpec, predictor: Predictor) -> list[dict[str, Any]]:
    """What is suggested once all was tried."""
    advice = advise(spec, ROOM, predictor)
    assert advice.ended == "complete"
    return suggested(advice)


def test_of_each_kind_the_gentlest_that_fits_in_the_order_of_kinds() -> None:
    fits = fitting(lambda spec: spec.checkpointing is True or spec.batch == 1 or spec.seq <= 256)
    assert advice_on(PLAIN, fits) == [
        {"checkpointing": True},
        {"batch": 1, "accumulation": 4},
        {"seq": 256},
    ]


def test_suggestion_has_what_was_predicted_of_it() -> None:
    advice = advise(PLAIN, ROOM, fitting(lambda spec: bool(spec.checkpointing)))
    (only,) = advice.suggestions
    assert only.predicted == Predicted(
        fits=True, peak_allocated_bytes=GIB, outside_allocator_bytes=MIB
    )


def test_smaller_model_stands_last() -> None:
    small = {"Qwen2.5-1.5B", "Qwen2.5-0.5B"}
    fits = fitting(lambda spec: spec.model in small or spec.targets == "qv")
    assert advice_on(SEVEN_B, fits) == [{"targets": "qv"}, {"model": "Qwen2.5-1.5B"}]


def test_two_changes_where_no_single_one_suffices() -> None:
    fits = fitting(lambda spec: bool(spec.checkpointing) and spec.kbit_upcast is False)
    assert advice_on(PLAIN, fits) == [{"checkpointing": True, "kbit_upcast": False}]


def test_gentlest_two_of_many() -> None:
    """Any two would do."""
    kinds = ({"checkpointing"}, {"optimizer"}, {"kbit_upcast"}, {"rank"}, {"seq"})

    def fits(spec: TrainSpec) -> bool:
        return sum(bool(kind & changes(PLAIN, spec)) for kind in kinds) == 2

    assert advice_on(PLAIN, fitting(fits)) == [{"checkpointing": True, "optimizer": "adamw_8bit"}]


def test_least_of_the_later_change_beside_as_much_of_the_earlier_as_it_takes() -> None:
    def fits(spec: TrainSpec) -> bool:
        return (spec.batch, spec.seq) in {(1, 384), (2, 128), (1, 256), (1, 192), (1, 128)}

    assert advice_on(PLAIN, fitting(fits)) == [{"batch": 1, "accumulation": 4, "seq": 384}]


def test_two_changes_are_sought_although_a_smaller_model_fits_and_stand_before_it() -> None:
    fits = fitting(
        lambda spec: spec.model != "Qwen2.5-7B" or (spec.seq <= 384 and bool(spec.checkpointing))
    )
    assert advice_on(SEVEN_B, fits) == [
        {"checkpointing": True, "seq": 384},
        {"model": "Qwen2.5-3B"},
    ]


def test_smaller_model_is_one_of_two_where_none_fits_by_itself() -> None:
    fits = fitting(lambda spec: bool(spec.checkpointing) and spec.model == "Qwen2.5-0.5B")
    assert advice_on(SEVEN_B, fits) == [{"checkpointing": True, "model": "Qwen2.5-0.5B"}]


def test_second_change_is_one_of_the_changed_spec() -> None:
    """A base of four bits can do without the upcast; the one of LoRA has none."""
    lora = read_claim([{"model": "tiny", "method": "lora"}], rootdir=Path()).spec
    asked = fitting(lambda _: False)
    advice_on(lora, asked)
    assert {spec.kbit_upcast for spec in asked.asked} == {None, True}


def test_nothing_helps() -> None:
    assert advice_on(PLAIN, fitting(lambda _: False)) == []


def test_nothing_is_asked_where_the_allocator_may_have_nothing() -> None:
    asked = fitting(lambda _: True)
    assert advise(PLAIN, 0, asked) == Advice(ended="complete")
    assert asked.asked == []


def test_case_that_would_fit_as_it_is_gets_no_advice() -> None:
    """What was measured says otherwise, so that other predictions would be worth nothing."""
    asked = fitting(lambda _: True)
    assert advise(PLAIN, ROOM, asked) == Advice(ended="fits_already")
    assert asked.asked == [PLAIN]


def test_no_change_is_asked_for_twice() -> None:
    asked = fitting(lambda _: False)
    advice_on(PLAIN, asked)
    digests = [spec.digest for spec in asked.asked[1:]]
    assert len(digests) == len(set(digests))


@pytest.mark.parametrize(("lengths", "most"), [("full", 2), ("varied", 8)])
def test_equal_micro_batches_are_predicted_by_two_of_them(lengths: Any, most: int) -> None:
    asked = fitting(lambda _: False)
    advice_on(replace(PLAIN, accumulation=2, lengths=lengths), asked)
    assert max(spec.accumulation for spec in asked.asked) == most


def test_change_that_cannot_be_predicted_is_left_out() -> None:
    fits = fitting(lambda spec: spec.seq == 384 or spec.targets == "qv")

    def predict(spec: TrainSpec) -> Predicted:
        if spec.targets == "qv":
            raise UnpredictableError("the model has no q_proj")
        return fits(spec)

    advice = advise(PLAIN, ROOM, predict)
    assert (advice.ended, suggested(advice)) == ("complete", [{"seq": 384}])


def test_what_was_found_before_the_predictions_broke_is_kept() -> None:
    fits = fitting(lambda spec: bool(spec.checkpointing))

    def predict(spec: TrainSpec) -> Predicted:
        if spec.rank == 4:
            raise BrokenError("the worker is gone")
        return fits(spec)

    advice = advise(PLAIN, ROOM, predict)
    assert (advice.ended, advice.reason) == ("broken", "the worker is gone")
    assert suggested(advice) == [{"checkpointing": True}]


@pytest.mark.parametrize("error", [BrokenError, UnpredictableError])
def test_case_that_cannot_be_predicted_itself(error: type[Exception]) -> None:
    def predict(_: TrainSpec) -> Predicted:
        raise error("no liger here")

    assert advise(PLAIN, ROOM, predict) == Advice(ended="broken", reason="no liger here")


def ticking(predictor: Predictor, seconds: Iterator[float]) -> tuple[Any, Callable[[], float]]:
    """The predictor taking so long for each answer, and the clock that shows it."""
    now = [0.0]

    def predict(spec: TrainSpec) -> Predicted:
        now[0] += next(seconds)
        return predictor(spec)

    return predict, lambda: now[0]


def test_no_prediction_is_begun_after_the_limit_and_what_was_found_is_kept() -> None:
    """The first answer may wait for the imports."""
    fits = fitting(lambda spec: bool(spec.checkpointing))
    each = LIMIT_S / 4
    predict, clock = ticking(fits, iter([300.0] + [each] * 99))
    advice = advise(PLAIN, ROOM, predict, clock)
    assert advice.ended == "out_of_time"
    assert suggested(advice) == [{"checkpointing": True}]
    assert len(fits.asked) == 1 + 5


def test_search_within_the_limit_is_complete() -> None:
    fits = fitting(lambda spec: bool(spec.checkpointing))
    predict, clock = ticking(fits, iter([300.0] + [1.0] * 99))
    assert advise(PLAIN, ROOM, predict, clock).ended == "complete"


def by_layers(spec: TrainSpec, of_few: float = 0) -> int:
    """A step with a moment that needs more with every layer. ``of_few``: GiB of another one, which
    is the peak where there are few layers.
    """
    layers = spec.config["num_hidden_layers"]
    a_layer = (0.2 if spec.checkpointing else 0.5) * spec.seq / 512 + 0.05
    return int(GIB * max(1 + a_layer * layers, of_few + 0.1 * layers))


def test_short_models_save_predictions_of_long_ones_that_do_not_fit() -> None:
    """But no suggestion: one model is told by its layers, of the other nothing is known."""
    told = Predictor(by_layers)
    untold = Predictor(lambda spec: by_layers(replace(spec, config=SEVEN_B.config)))
    unknown = replace(SEVEN_B, model="Other", config={"layers": 28})
    known = replace(SEVEN_B, model="Other")
    expected = [{"checkpointing": True}, {"seq": 256}]
    assert advice_on(known, told) == advice_on(unknown, untold) == expected
    whole = [spec for spec in told.asked if spec.config == SEVEN_B.config]
    assert [changes(known, spec) for spec in whole] == [set(), {"checkpointing"}, {"seq"}]
    assert len(untold.asked) > 2 * len(whole)


def test_peak_that_grows_faster_with_more_layers_is_not_taken_for_less() -> None:
    """8.0 GiB with checkpointing, where the line through 2 and 4 layers is at 6.8."""
    room = 15 * GIB // 2
    asked = Predictor(lambda spec: by_layers(spec, of_few=4), room_bytes=room)
    advice = advise(replace(SEVEN_B, model="Other"), room, asked)
    whole = replace(SEVEN_B, model="Other", checkpointing=True)
    assert whole in asked.asked
    assert {"checkpointing": True} not in suggested(advice)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"num_hidden_layers": 6}, id="hardly longer"),
        pytest.param({"num_hidden_layers": 28, "layer_types": ["full"] * 28}, id="each its own"),
        pytest.param({}, id="only the worker knows"),
    ],
)
def test_models_that_are_not_told_by_short_ones(config: dict[str, Any]) -> None:
    asked = fitting(lambda _: False)
    advice_on(replace(PLAIN, config=config), asked)
    assert all(spec.config == config for spec in asked.asked)


def test_short_model_that_cannot_be_predicted_says_nothing_of_the_long_one() -> None:
    fits = fitting(lambda spec: bool(spec.checkpointing))

    def predict(spec: TrainSpec) -> Predicted:
        if spec.config["num_hidden_layers"] < 28:
            raise UnpredictableError("too short")
        return fits(spec)

    advice = advise(replace(SEVEN_B, model="Other"), ROOM, predict)
    assert suggested(advice) == [{"checkpointing": True}]
