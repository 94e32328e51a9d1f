"""How often a claim is measured, and with how much memory."""

from __future__ import annotations

from typing import Any

import pytest
from samples import GIB, MEASUREMENT, MIB, RAN_OUT, SPEC, claim

from pytest_vramfit.gate import Gate
from pytest_vramfit.measurement import Measurement
from pytest_vramfit.measuring.protocol import Measured, NotMeasured, Request
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.spec import Schedule
from pytest_vramfit.verdict import Case

HALF = claim(headroom=Headroom(share=0.5))
"""Of 23 usable GiB 11.5 may be had, half a GiB of it outside the allocator: 11 for the allocator,
which took 12 though the step needs 10.
"""
CRASHED = NotMeasured(outcome="crashed", says="the worker exited with status 1")


class Worker:
    """Gives prepared replies, keeps what it was asked."""

    def __init__(self, *replies: Measurement | NotMeasured) -> None:
        self._replies = list(replies)
        self.log: list[Any] = []

    def measure(self, request: Request, on_progress: object) -> Measured | NotMeasured:
        self.log.append(request)
        reply = self._replies.pop(0)
        if isinstance(reply, NotMeasured):
            return reply
        return Measured(measurement=reply, clean=True)

    def start(self) -> None:
        self.log.append("start")

    def stop(self) -> None:
        self.log.append("stop")


def measure(worker: Worker, asked: Any, *, isolate: bool = False) -> Case | NotMeasured:
    gate = Gate(engine="gpu", worker=worker, isolate=isolate)  # type: ignore[arg-type]
    return gate.measure("a.py::b", asked, lambda _: None)


def test_a_claim_without_headroom_is_measured_once_on_the_whole_device() -> None:
    worker = Worker(MEASUREMENT)
    judged = measure(worker, claim())
    assert isinstance(judged, Case)
    assert judged.outcome == "fits"
    assert worker.log == [Request(spec=SPEC, schedule=Schedule(), capacity_bytes=None)]


@pytest.mark.parametrize(("second", "outcome"), [(MEASUREMENT, "fits"), (RAN_OUT, "no_headroom")])
def test_headroom_that_only_the_cache_takes_is_tried_with_that_much_less(
    second: Measurement, outcome: str
) -> None:
    worker = Worker(MEASUREMENT, second)
    judged = measure(worker, HALF)
    assert isinstance(judged, Case)
    assert judged.outcome == outcome
    assert judged.measurement is MEASUREMENT
    assert [request.capacity_bytes for request in worker.log] == [None, 11 * GIB]


@pytest.mark.parametrize("replies", [(CRASHED,), (MEASUREMENT, CRASHED)], ids=["first", "second"])
def test_a_run_that_could_not_be_measured_is_the_answer(replies: Any) -> None:
    assert measure(Worker(*replies), HALF) is CRASHED


def test_isolated_cases_get_a_fresh_worker_after_every_run() -> None:
    worker = Worker(MEASUREMENT, MEASUREMENT)
    measure(worker, HALF, isolate=True)
    kinds = [one if isinstance(one, str) else "run" for one in worker.log]
    assert kinds == ["run", "stop", "start"] * 2


def test_the_samples_headroom_is_as_described() -> None:
    usable = MEASUREMENT.device.usable_bytes
    assert usable - HALF.limits.headroom.of(usable) - 512 * MIB == 11 * GIB
