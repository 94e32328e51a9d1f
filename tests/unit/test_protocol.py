"""What pytest and its worker say to each other comes out as it went in."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import (
    DEVICE,
    EVIDENCE,
    FULL,
    GIB,
    MEASUREMENT,
    RAN_OUT,
    SPEC,
    with_change,
    with_memory,
    with_phases,
)

from pytest_vramfit.measurement import Device, Measurement
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.worker import protocol
from pytest_vramfit.worker.protocol import (
    Measured,
    Message,
    NotMeasured,
    Progress,
    Ready,
    Request,
)

CPU = with_memory(
    peak_reserved_bytes=None,
    reserved_after_step_bytes=None,
    outside_allocator_bytes=None,
    allocator_retries=None,
)
MESSAGES: list[Message] = [
    Ready(),
    Progress(stage="warm-up", done=0, of=3),
    Progress(stage="waiting for the GPU", done=0, of=1, holder="process 7 (pytest)"),
    Measured(measurement=MEASUREMENT, clean=True),
    Measured(measurement=CPU, clean=True),
    Measured(measurement=RAN_OUT, clean=False),
    Measured(measurement=with_phases(eval=3 * GIB, merge=None), clean=True),
    Measured(
        measurement=replace(
            MEASUREMENT,
            evidence=replace(EVIDENCE, saved=("lm_head",), unquantised={"layers.*.mlp": 5}),
        ),
        clean=True,
    ),
    Measured(measurement=with_change(GIB, "in the timed steps"), clean=True),
    Measured(
        measurement=replace(
            MEASUREMENT, device=replace(DEVICE, emulated_on="Large card", overflow="spill")
        ),
        clean=True,
    ),
    Measured(measurement=replace(MEASUREMENT, evidence=replace(EVIDENCE, loss=None)), clean=True),
    NotMeasured(outcome="unsupported", says="no usable GPU", clean=True),
    NotMeasured(outcome="crashed", says="two\nlines \u2028 of text, é", output="a\r\nb"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message(message: Message) -> None:
    assert protocol.read(protocol.write(message)) == message


def test_every_kind_of_message_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(Message.__args__)


@pytest.mark.parametrize("spec", [SPEC, FULL, replace(SPEC, targets=("k", "q"))])
@pytest.mark.parametrize("capacity", [None, 8 * GIB])
@pytest.mark.parametrize("card", [None, replace(DEVICE, driver=None, overflow="spill")])
def test_request(spec: TrainSpec, capacity: int | None, card: Device | None) -> None:
    schedule = Schedule(warmup=2, steps=9, timeout_s=0.5, phases=("eval", "save"), eval_batch=2)
    request = Request(spec=spec, schedule=schedule, capacity_bytes=capacity, card=card)
    assert Request.read(request.line()) == request


def test_spec_is_the_same_thing_to_train_on_the_other_side() -> None:
    line = Request(spec=SPEC, schedule=Schedule()).line()
    assert Request.read(line).spec.digest == SPEC.digest


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_is_one_line_of_ascii(message: Message) -> None:
    """Whatever its text holds: the reader takes a line at a time."""
    line = protocol.write(message)
    assert line.endswith("\n")
    assert line.isascii()
    assert len(line.splitlines()) == 1


# what ends a line somewhere, what JSON escapes, what UTF-8 cannot hold
TEXT = st.text(st.sampled_from('a "\\{}\n\r\t\0\x1c\x85\u2028\ud800é模\U0001f525'), max_size=12)


@given(says=TEXT, output=TEXT)
def test_any_text_passes(says: str, output: str) -> None:
    message = NotMeasured(outcome="crashed", says=says, output=output)
    line = protocol.write(message)
    assert len(line.splitlines()) == 1
    assert protocol.read(line) == message


def test_a_worker_that_could_not_measure_is_clean_only_where_it_says_so() -> None:
    assert NotMeasured(outcome="crashed", says="").clean is False


def test_measurement_s_json_has_every_field() -> None:
    values = json.loads(json.dumps(MEASUREMENT.to_json()))
    assert set(values) == {field.name for field in fields(Measurement)}
    assert Measurement.from_json(values) == MEASUREMENT
