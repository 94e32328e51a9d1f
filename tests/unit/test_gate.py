"""How often a claim is measured, where, and with how much memory; what it is compared with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import (
    GIB,
    MEASUREMENT,
    MIB,
    RAN_OUT,
    SPEC,
    case,
    check,
    claim,
    recorded,
    timed,
    with_change,
    with_memory,
)

from pytest_vramfit.baseline import Entry, Process, Store
from pytest_vramfit.gate import Gate
from pytest_vramfit.measurement import Conditions, Device, Measurement
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.recording import Recording, record
from pytest_vramfit.spec import CHECKS, Schedule
from pytest_vramfit.verdict import Case, Check, in_doubt, regressions
from pytest_vramfit.worker.protocol import Measured, NotMeasured, Request

HALF = claim(headroom=Headroom(share=0.5))
"""Of 23 usable GiB 11.5 may be had, half a GiB of it outside the allocator: 11 for the allocator,
which took 12 though the step needs 10.
"""
CRASHED = NotMeasured(outcome="crashed", says="the worker exited with status 1")


Reply = Measurement | NotMeasured


class Worker:
    """Gives prepared replies, keeps what it was asked; two of them may share one log."""

    def __init__(self, *replies: Reply, name: str = "", log: list[Any] | None = None) -> None:
        self._replies = list(replies)
        self._name = name
        self.log: list[Any] = [] if log is None else log

    def measure(self, request: Request, on_progress: object) -> Measured | NotMeasured:
        self._note(request)
        reply = self._replies.pop(0)
        if isinstance(reply, NotMeasured):
            return reply
        return Measured(measurement=reply, clean=True)

    def start(self) -> None:
        self._note("start")

    def stop(self) -> None:
        self._note("stop")

    def renew(self) -> None:
        self._note("renew")

    def _note(self, what: Any) -> None:
        self.log.append((self._name, what) if self._name else what)

    @property
    def left(self) -> int:
        return len(self._replies)


def gate_of(worker: Worker, **settings: Any) -> Gate:
    return Gate(engine="gpu", worker=worker, **settings)  # type: ignore[arg-type]


def measure(worker: Worker, asked: Any, **settings: Any) -> Case | NotMeasured:
    return gate_of(worker, **settings).measure("test_a.py::test_b", asked, lambda _: None)


def kinds_of(log: list[Any]) -> list[Any]:
    """The log with every request as "run"."""
    names = [one if isinstance(one, tuple) else ("", one) for one in log]
    short = [(name, "run" if isinstance(one, Request) else one) for name, one in names]
    return [f"{name} {one}".strip() for name, one in short]


def test_a_claim_without_headroom_is_measured_once_on_the_whole_device() -> None:
    worker = Worker(MEASUREMENT)
    judged = measure(worker, claim())
    assert isinstance(judged, Case)
    assert judged.outcome == "fits"
    assert worker.log == [Request(spec=SPEC, schedule=Schedule(), capacity_bytes=None)]


def test_no_card_overflows_on_a_cpu() -> None:
    worker = Worker()
    gate = Gate(engine="cpu", worker=worker)  # type: ignore[arg-type]
    asked = claim(card_bytes=24 * GIB, overflow="spill")
    assert gate.measure("", asked, lambda _: None) == NotMeasured(
        outcome="unsupported",
        says="overflow='spill' needs a GPU that passes for the card; run it with --gpu",
        clean=True,
    )


@pytest.mark.parametrize("overflow", ["oom", "spill"])
def test_a_card_is_asked_of_the_gpu_with_what_it_does_when_it_is_full(overflow: Any) -> None:
    """As an estimate takes it: of a bare size the driver keeps a fortieth."""
    worker = Worker(MEASUREMENT)
    measure(worker, claim(card_bytes=16 * GIB, overflow=overflow))
    assert [one.card for one in worker.log] == [
        Device(
            name="a card of 16,384 MiB",
            total_bytes=16 * GIB,
            reserved_bytes=16 * GIB // 40,
            held_bytes=0,
            overflow=overflow,
        )
    ]


def test_a_cpu_passes_for_no_card() -> None:
    worker = Worker(MEASUREMENT)
    gate = Gate(engine="cpu", worker=worker)  # type: ignore[arg-type]
    gate.measure("test_a.py::test_b", claim(card_bytes=16 * GIB), lambda _: None)
    assert [one.card for one in worker.log] == [None]


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


def says(judged: Case | NotMeasured) -> str:
    """Why it is contaminated, which it must be."""
    assert isinstance(judged, NotMeasured)
    assert judged.outcome == "contaminated"
    return judged.says


def test_out_of_memory_after_others_took_some_is_not_the_config_s_failure() -> None:
    seen = with_change(2 * GIB, "before memory ran out", RAN_OUT)
    for measured_by in (Gate.measure, Gate.measure_alone):
        judged = measured_by(gate_of(Worker(seen)), "a.py::b", claim(), lambda _: None)
        assert says(judged) == (
            "out of memory in the backward of step 1, and others took 2.0 GiB of the GPU before "
            "memory ran out"
        )


def test_what_others_took_may_decide_the_run_with_less() -> None:
    worker = Worker(MEASUREMENT, with_change(GIB, "before memory ran out", RAN_OUT))
    assert "others took 1.0 GiB" in says(measure(worker, HALF))


def test_no_run_with_less_where_it_could_not_be_judged() -> None:
    """Of the 11 GiB that it may have, it needs 10: others' 2 could decide."""
    worker = Worker(with_change(2 * GIB, "in the timed steps"))
    assert "others took 2.0 GiB" in says(measure(worker, HALF))
    assert kinds_of(worker.log) == ["run"]


def test_what_others_took_without_consequence_leaves_the_case_judged() -> None:
    judged = measure(Worker(with_change(2 * GIB, "in the timed steps")), claim())
    assert isinstance(judged, Case)
    assert judged.outcome == "fits"


def test_isolated_cases_get_a_fresh_worker_after_every_run() -> None:
    worker = Worker(MEASUREMENT, MEASUREMENT)
    measure(worker, HALF, isolate=True)
    assert kinds_of(worker.log) == ["run", "renew"] * 2


def test_the_samples_headroom_is_as_described() -> None:
    usable = MEASUREMENT.device.usable_bytes
    assert usable - HALF.limits.headroom.of(usable) - 512 * MIB == 11 * GIB


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With the baseline of the sample."""
    baselines = Store(tmp_path)
    baselines.put([recorded()])
    return baselines


AGAINST_A_BASELINE = ("step_time", "gpu_time", "peak_baseline")


def statuses(judged: Case | NotMeasured) -> list[str]:
    """Of the checks against a baseline."""
    assert isinstance(judged, Case)
    return [check(judged, name).status for name in AGAINST_A_BASELINE]


def checks_against(judged: Case, before: Entry) -> list[Check]:
    """What the checks of this case must say if it was compared with this entry."""
    seen = judged.measurements
    now = Entry.of(judged.nodeid, judged.engine, judged.claim.spec, seen)
    conditions = [one.conditions for one in seen if one.conditions]
    limits = judged.claim.limits
    return [*regressions(limits, now, before, conditions, in_turn=judged.in_turn)]


def made(judged: Case) -> list[Check]:
    """The checks against a baseline."""
    return [check(judged, name) for name in AGAINST_A_BASELINE]


def reasons(judged: Case | NotMeasured) -> set[str]:
    """Why the checks against a baseline are all unchecked."""
    assert statuses(judged) == ["unchecked"] * 3
    assert isinstance(judged, Case)
    return {check(judged, name).findings[0].kind for name in AGAINST_A_BASELINE}


def test_case_is_compared_with_its_baseline(store: Store) -> None:
    worker = Worker(MEASUREMENT)
    judged = measure(worker, claim(), baselines=store)
    assert isinstance(judged, Case)
    assert statuses(judged) == ["pass"] * 3
    assert made(judged) == checks_against(judged, recorded())
    assert not judged.in_turn
    assert kinds_of(worker.log) == ["run"]


def test_case_without_a_store_has_no_baseline() -> None:
    assert reasons(measure(Worker(MEASUREMENT), claim())) == {"no_baseline"}


@pytest.mark.parametrize("change", [{"engine": "cpu"}, {"device": "Other"}], ids=str)
def test_baseline_of_another_engine_or_device_is_none(
    change: dict[str, str], tmp_path: Path
) -> None:
    baselines = Store(tmp_path)
    baselines.put([recorded(**change)])
    assert reasons(measure(Worker(MEASUREMENT), claim(), baselines=baselines)) == {"no_baseline"}


def test_baseline_is_found_under_the_test_s_older_name(tmp_path: Path) -> None:
    baselines = Store(tmp_path)
    baselines.put([recorded(nodeid="test_a.py::test_old")])
    judged = measure(Worker(MEASUREMENT), claim(), baselines=baselines)
    assert isinstance(judged, Case)
    assert check(judged, "step_time").findings[-1].names == ("test_a.py::test_old",)


def test_baseline_of_another_config_is_not_compared(store: Store) -> None:
    other = claim(replace(SPEC, seq=1024))
    worker = Worker(timed(step=9))
    assert reasons(measure(worker, other, baselines=store)) == {"config_changed"}
    assert kinds_of(worker.log) == ["run"]


@pytest.mark.parametrize(
    ("gpu", "runs", "status"),
    [
        pytest.param(1.0, 1, "pass", id="sure at once"),
        pytest.param(1.025, 2, "pass", id="sure by two"),
        pytest.param(1.0295, 3, "pass", id="sure by three"),
        pytest.param(1.045, 1, "unchecked", id="too near the limit for any number"),
    ],
)
def test_time_in_doubt_is_measured_again_in_the_same_worker_until_it_is_sure(
    gpu: float, runs: int, status: str, store: Store
) -> None:
    """Its libraries are imported already."""
    worker = Worker(*[timed(gpu=gpu)] * 9)
    judged = measure(worker, claim(), baselines=store)
    assert isinstance(judged, Case)
    assert kinds_of(worker.log) == ["run"] * runs
    assert all(one == worker.log[0] for one in worker.log)
    assert check(judged, "gpu_time").status == status
    assert judged.measurements == (timed(gpu=gpu),) * runs
    assert judged.outcome == "fits"


def test_time_that_stays_in_doubt_is_measured_again_twice_at_most(store: Store) -> None:
    worker = Worker(*[timed(gpu=gpu) for gpu in (1.025, 1.038, 1.035, 1.0, 1.0)])
    judged = measure(worker, claim(), baselines=store)
    assert isinstance(judged, Case)
    assert in_doubt(judged)
    assert kinds_of(worker.log) == ["run"] * 3
    assert statuses(judged) == ["pass", "unchecked", "pass"]
    assert judged.outcome == "fits"


def test_required_time_in_doubt_is_measured_again_before_it_fails(store: Store) -> None:
    asked = claim(require=frozenset({"gpu_time"}))
    worker = Worker(*[timed(gpu=1.025)] * 2)
    judged = measure(worker, asked, baselines=store)
    assert kinds_of(worker.log) == ["run"] * 2
    assert statuses(judged) == ["pass"] * 3


@pytest.mark.parametrize("second", [CRASHED, RAN_OUT], ids=["crashed", "oom"])
def test_doubt_stays_where_it_cannot_be_measured_again(second: Reply, store: Store) -> None:
    worker = Worker(timed(gpu=1.025), second)
    judged = measure(worker, claim(), baselines=store)
    assert isinstance(judged, Case)
    assert statuses(judged) == ["pass", "unchecked", "pass"]
    assert judged.measurements == (timed(gpu=1.025),)
    assert judged.outcome == "fits"


HEAVY = with_memory(backward_peak_bytes=11 * GIB)


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [(timed(step=2), "slower"), (timed(gpu=1.2), "slower"), (HEAVY, "heavier")],
    ids=["step", "gpu", "peak"],
)
def test_failure_against_the_baseline_is_confirmed_once_in_a_renewed_worker(
    seen: Measurement, outcome: str, store: Store
) -> None:
    worker = Worker(seen, seen)
    judged = measure(worker, claim(), baselines=store)
    assert isinstance(judged, Case)
    assert judged.outcome == outcome
    assert kinds_of(worker.log) == ["run", "renew", "run"]
    assert judged.measurements == (seen, seen)


@pytest.mark.parametrize(
    "seen", [timed(step=2), timed(gpu=1.2), HEAVY], ids=["step", "gpu", "peak"]
)
def test_failure_that_is_not_confirmed_is_none(seen: Measurement, store: Store) -> None:
    """The other process says that the first one was no fault of the case."""
    worker = Worker(seen, MEASUREMENT)
    judged = measure(worker, claim(), baselines=store)
    assert isinstance(judged, Case)
    assert judged.outcome == "fits"
    assert kinds_of(worker.log) == ["run", "renew", "run"]


def test_failure_stays_where_the_confirming_process_has_no_gpu_time(store: Store) -> None:
    """Its profiler saw nothing."""
    judged = measure(
        Worker(timed(gpu=1.2), replace(MEASUREMENT, gpu=None)), claim(), baselines=store
    )
    assert isinstance(judged, Case)
    assert check(judged, "gpu_time").status == "fail"
    assert len(judged.measurements) == 2


def test_clocks_held_down_in_any_of_the_processes_are_kept_with_the_case(store: Store) -> None:
    """So that ``baselines accept`` refuses it; where the first is hot, more decide nothing."""
    calm = timed(gpu=1.025)
    hot = replace(calm, conditions=Conditions(throttled_ns={"hardware thermal": 10**9}))
    for processes in ((hot,), (calm, hot), (calm, calm)):
        judged = measure(Worker(*processes), claim(), baselines=store)
        assert isinstance(judged, Case)
        assert judged.measurements == processes
        assert judged.throttled == (("hardware thermal",) if hot in processes else ())


@pytest.mark.parametrize("second", [CRASHED, RAN_OUT], ids=["crashed", "oom"])
def test_failure_stays_where_it_cannot_be_confirmed(second: Reply, store: Store) -> None:
    judged = measure(Worker(timed(step=2), second), claim(), baselines=store)
    assert isinstance(judged, Case)
    assert judged.outcome == "slower"


def test_doubt_that_turns_into_a_failure_is_confirmed(store: Store) -> None:
    worker = Worker(*[timed(gpu=1.075)] * 3)
    judged = measure(worker, claim(), baselines=store)
    assert isinstance(judged, Case)
    assert judged.outcome == "slower"
    assert kinds_of(worker.log) == ["run", "run", "renew", "run"]


def test_failure_of_the_case_itself_is_not_confirmed(store: Store) -> None:
    worker = Worker(MEASUREMENT)
    judged = measure(worker, claim(max_step_ns=1), baselines=store)
    assert isinstance(judged, Case)
    assert judged.outcome == "slower"
    assert kinds_of(worker.log) == ["run"]


def test_headroom_is_tried_before_a_time_is_measured_again(store: Store) -> None:
    worker = Worker(timed(gpu=1.025), MEASUREMENT, timed(gpu=1.025))
    judged = measure(worker, HALF, baselines=store)
    assert isinstance(judged, Case)
    assert [request.capacity_bytes for request in worker.log] == [None, 11 * GIB, None]
    assert judged.measurements == (timed(gpu=1.025),) * 2
    assert statuses(judged) == ["pass"] * 3


def test_updating_all_baselines_compares_with_none(store: Store) -> None:
    worker = Worker(timed(step=9, gpu=9))
    assert reasons(measure(worker, claim(), baselines=store, update="all")) == {"recorded"}
    assert kinds_of(worker.log) == ["run"]


def test_updating_missing_baselines_compares_with_those_there_are(store: Store) -> None:
    judged = measure(Worker(MEASUREMENT), claim(), baselines=store, update="missing")
    assert statuses(judged) == ["pass"] * 3


def test_updating_missing_baselines_records_where_there_is_none(tmp_path: Path) -> None:
    worker = Worker(timed(step=9, gpu=9))
    judged = measure(worker, claim(), baselines=Store(tmp_path), update="missing")
    assert reasons(judged) == {"recorded"}
    assert kinds_of(worker.log) == ["run"]


@pytest.mark.parametrize(
    "seen", [MEASUREMENT, timed(step=9, gpu=9)], ids=["the same figures", "worse"]
)
def test_updating_missing_baselines_records_where_one_is_only_under_another_name(
    seen: Measurement, tmp_path: Path
) -> None:
    """Else a test that was renamed would never get its own."""
    baselines = Store(tmp_path)
    baselines.put([recorded(nodeid="test_a.py::test_old")])
    worker = Worker(seen)
    judged = measure(worker, claim(), baselines=baselines, update="missing")
    assert reasons(judged) == {"recorded"}
    assert kinds_of(worker.log) == ["run"]


def test_updating_missing_baselines_compares_with_its_own_rather_than_another_name_s(
    store: Store,
) -> None:
    store.put([recorded(timed(step=9), nodeid="test_a.py::test_old")])
    judged = measure(Worker(MEASUREMENT), claim(), baselines=store, update="missing")
    assert isinstance(judged, Case)
    assert made(judged) == checks_against(judged, recorded())


def test_case_that_is_measured_alone_is_compared_with_nothing_and_needs_nothing(
    store: Store,
) -> None:
    """Its own limits hold."""
    asked = claim(max_step_ns=1, require=frozenset(CHECKS))
    worker = Worker(timed(step=9))
    gate = gate_of(worker, baselines=store)
    judged = gate.measure_alone("test_a.py::test_b", asked, lambda _: None)
    assert isinstance(judged, Case)
    assert {one.name for one in judged.checks}.isdisjoint(AGAINST_A_BASELINE)
    assert [one.name for one in judged.checks if one.status == "fail"] == ["max_step"]
    assert not judged.in_turn
    assert kinds_of(worker.log) == ["run"]


def test_case_that_is_measured_alone_has_headroom_too() -> None:
    worker = Worker(MEASUREMENT, RAN_OUT)
    judged = gate_of(worker).measure_alone("a.py::b", HALF, lambda _: None)
    assert isinstance(judged, Case)
    assert judged.outcome == "no_headroom"


def test_case_that_cannot_be_measured_alone() -> None:
    assert gate_of(Worker(CRASHED)).measure_alone("a.py::b", claim(), lambda _: None) is CRASHED


def measured_against(
    here: list[Reply], there: list[Reply], asked: Any = None, **settings: Any
) -> tuple[Case | NotMeasured, list[str]]:
    """The case, compared with another environment, and who was asked in which order."""
    log: list[Any] = []
    worker = Worker(*here, name="here", log=log)
    other = Worker(*there, name="there", log=log)
    judged = measure(worker, asked or claim(), against=other, **settings)
    requests = {one.line() for _, one in log if isinstance(one, Request)}
    assert len(requests) == 1 or asked
    return judged, kinds_of(log)


def test_both_environments_are_measured_twice_in_turn() -> None:
    judged, order = measured_against([timed(step=1.5), timed(step=3)], [timed(), timed(step=2)])
    assert isinstance(judged, Case)
    assert order == ["here run", "there run"] * 2
    assert judged.measurements == (timed(step=1.5), timed(step=3))
    assert judged.in_turn
    there = Entry.of("test_a.py::test_b", "gpu", SPEC, [timed(), timed(step=2)])
    assert made(judged) == checks_against(judged, there)


def test_ratio_to_the_other_environment_is_that_of_the_pairs() -> None:
    """The machine slowed down by a factor of two from one turn to the next."""
    judged, _ = measured_against([timed(1.5, 1.5), timed(3, 3)], [timed(), timed(2, 2)])
    assert isinstance(judged, Case)
    assert check(judged, "step_time").ratio == pytest.approx(1.5)
    assert judged.outcome == "slower"


def test_against_another_environment_nothing_is_measured_more_than_twice() -> None:
    """They were measured in turn; one more of one side would have no partner."""
    for gpu, status in ((1.051, "unchecked"), (9, "fail")):
        judged, order = measured_against([timed(gpu=gpu)] * 2, [timed()] * 2)
        assert isinstance(judged, Case)
        assert check(judged, "gpu_time").status == status
        assert order == ["here run", "there run"] * 2


def test_against_another_environment_no_baseline_is_looked_at(store: Store) -> None:
    judged, _ = measured_against([timed(9, 9)] * 2, [timed(9, 9)] * 2, baselines=store)
    assert statuses(judged) == ["pass"] * 3
    assert isinstance(judged, Case)
    assert judged.in_turn


def test_headroom_is_tried_before_the_other_environment_is_asked() -> None:
    judged, order = measured_against([MEASUREMENT] * 3, [MEASUREMENT] * 2, HALF)
    assert statuses(judged) == ["pass"] * 3
    assert order == ["here run", "here run", "there run", "here run", "there run"]


def test_case_that_cannot_be_measured_here_is_not_measured_there() -> None:
    judged, order = measured_against([CRASHED], [])
    assert judged is CRASHED
    assert order == ["here run"]


def test_case_that_is_out_of_memory_here_is_not_measured_there() -> None:
    judged, order = measured_against([RAN_OUT], [])
    assert isinstance(judged, Case)
    assert judged.outcome == "oom"
    assert order == ["here run"]
    assert reasons(judged) == {"did_not_run"}


@pytest.mark.parametrize("there", [[CRASHED], [MEASUREMENT, CRASHED]], ids=["first", "second"])
def test_case_that_cannot_be_measured_there_is_told_as_such(there: list[Reply]) -> None:
    judged, _ = measured_against([MEASUREMENT] * 2, there)
    assert judged == replace(
        CRASHED, says="in the other environment the worker exited with status 1"
    )


@pytest.mark.parametrize("there", [[RAN_OUT], [MEASUREMENT, RAN_OUT]], ids=["first", "second"])
def test_out_of_memory_there_is_no_failure_here(there: list[Reply]) -> None:
    judged, order = measured_against([MEASUREMENT] * 2, there)
    assert isinstance(judged, Case)
    assert reasons(judged) == {"other_out_of_memory"}
    assert not judged.in_turn
    assert judged.outcome == "fits"
    assert order == ["here run", "there run"] * len(there)


@pytest.mark.parametrize("second", [CRASHED, RAN_OUT], ids=["crashed", "oom"])
def test_second_turn_that_is_lost_here_leaves_nothing_to_compare(second: Reply) -> None:
    judged, order = measured_against([MEASUREMENT, second], [MEASUREMENT])
    assert isinstance(judged, Case)
    assert reasons(judged) == {"not_in_turn"}
    assert not judged.in_turn
    assert judged.measurements == (MEASUREMENT,)
    assert judged.outcome == "fits"
    assert order == ["here run", "there run", "here run"]


def test_required_check_fails_where_the_other_side_is_lost() -> None:
    asked = claim(require=frozenset({"gpu_time"}))
    judged, _ = measured_against([MEASUREMENT] * 2, [RAN_OUT], asked)
    assert isinstance(judged, Case)
    assert judged.outcome == "slower"


def test_isolated_workers_are_both_renewed_after_every_run() -> None:
    _, order = measured_against([MEASUREMENT] * 2, [MEASUREMENT] * 2, isolate=True)
    assert order == ["here run", "here renew", "there run", "there renew"] * 2


def test_both_workers_start_and_stop_with_the_gate() -> None:
    log: list[Any] = []
    gate = gate_of(Worker(name="here", log=log), against=Worker(name="there", log=log))
    gate.start()
    gate.stop()
    assert kinds_of(log) == ["here start", "there start", "here stop", "there stop"]


OTHER = claim(replace(SPEC, optimizer="sgd"))


def ratios(worker: Worker, changed: Case, own: Case) -> dict[str, float | None]:
    found = gate_of(worker).ratios(changed, own, lambda _: None)
    return {name: one.ratio for name, one in found.items()}


def test_ratios_of_two_cases_measure_both_once_more_in_turn() -> None:
    """In the order they were measured in before: first the test's own, then the changed one."""
    worker = Worker(timed(step=2, gpu=2), timed(step=6, gpu=2.5))
    seen = ratios(worker, case(timed(step=3, gpu=1.25), OTHER), case(timed()))
    assert [request.spec for request in worker.log] == [SPEC, OTHER.spec]
    assert seen == pytest.approx({"step_time": 3.0, "gpu_time": 1.25, "peak_baseline": 1.0})


def test_ratios_are_those_of_pairs() -> None:
    """Both slowed down by half from one turn to the next, and the ratio is as sure as ever."""
    changed, own = case(timed(gpu=1.2), OTHER), case()
    worker = Worker(timed(gpu=1.5), timed(gpu=1.8))
    interval = gate_of(worker).ratios(changed, own, lambda _: None)["gpu_time"].interval
    assert interval == pytest.approx((1.2, 1.2), rel=0.01)


def test_ratios_are_there_where_the_limits_switch_the_checks_off() -> None:
    """Nothing is judged by them."""
    off = {"step_ratio": None, "gpu_ratio": None, "peak_ratio": None}
    seen = ratios(Worker(timed(), timed()), case(timed(), claim(**off)), case())
    assert list(seen) == ["step_time", "gpu_time", "peak_baseline"]


def test_ratios_take_one_earlier_measurement_of_each_case() -> None:
    """What was measured again because it was in doubt has no partner."""
    again = (timed(step=9), timed(step=9))
    own, changed = replace(case(), more=again), replace(case(timed(step=2), OTHER), more=again)
    assert ratios(Worker(timed(), timed(step=2)), changed, own)["step_time"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("replies", "changed", "own", "asked"),
    [
        ((), case(RAN_OUT, OTHER), case(), 0),
        ((), case(MEASUREMENT, OTHER), case(RAN_OUT), 0),
        ((RAN_OUT,), case(MEASUREMENT, OTHER), case(), 1),
        ((MEASUREMENT, CRASHED), case(MEASUREMENT, OTHER), case(), 2),
    ],
    ids=["changed oom", "own oom", "own not again", "changed not again"],
)
def test_no_ratios_where_one_of_the_cases_did_not_get_through(
    replies: Any, changed: Case, own: Case, asked: int
) -> None:
    worker = Worker(*replies)
    assert ratios(worker, changed, own) == {}
    assert len(worker.log) == asked


def recording(nodeid: str, asked: Any, **changes: Any) -> Recording:
    """A case as it was measured in the run."""
    entry = Entry.of(nodeid, "gpu", asked.spec, [MEASUREMENT])
    return Recording(claim=asked, entry=replace(entry, **changes))


def recorded_by(
    worker: Worker, *recordings: Recording, **settings: Any
) -> tuple[list[Entry], dict[str, str]]:
    recorded = record(gate_of(worker, **settings), recordings, 3, lambda _: lambda _: None)
    return recorded.entries, recorded.refused


TWO = (recording("a.py::a", claim()), recording("a.py::b", OTHER))


def test_baselines_are_recorded_in_processes_one_after_the_other() -> None:
    """Each for all cases, the run's own first: three in all, two of them fresh."""
    worker = Worker(timed(step=2), timed(step=3), timed(step=4), timed(step=5))
    entries, refused = recorded_by(worker, *TWO)
    assert kinds_of(worker.log) == ["renew", "run", "run"] * 2
    specs = [one.spec for one in worker.log if isinstance(one, Request)]
    assert specs == [SPEC, OTHER.spec] * 2
    assert refused == {}
    assert [entry.nodeid for entry in entries] == ["a.py::a", "a.py::b"]
    assert [entry.processes for entry in entries] == [
        tuple(Process.of(one) for one in (timed(), timed(step=2), timed(step=4))),
        tuple(Process.of(one) for one in (timed(), timed(step=3), timed(step=5))),
    ]
    assert [entry.digest for entry in entries] == [SPEC.digest, OTHER.spec.digest]


def test_smallest_peak_of_all_processes_is_recorded() -> None:
    """The run's process measured many cases before; a fresh one packs its blocks better."""
    worker = Worker(with_memory(backward_peak_bytes=10 * GIB - 512), HEAVY)
    entries, _ = recorded_by(worker, recording("a.py::a", claim()))
    assert [entry.peak_allocated_bytes for entry in entries] == [10 * GIB - 512]


def test_nothing_is_compared_or_required_while_it_is_recorded(store: Store) -> None:
    asked = claim(require=frozenset(CHECKS))
    worker = Worker(timed(step=9), timed(step=9))
    entries, refused = recorded_by(
        worker, recording("test_a.py::test_b", asked), baselines=store, update="all"
    )
    assert (len(entries), refused) == (1, {})
    assert kinds_of(worker.log) == ["renew", "run"] * 2


HOT = timed(conditions=Conditions(throttled_ns={"hardware thermal": 10**9}))


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (RAN_OUT, "oom"),
        (CRASHED, "crashed"),
        (with_memory(allocated_after_step_bytes=(1, 2)), "heavier"),
        (HOT, "throttled"),
    ],
)
def test_case_that_did_not_get_through_is_refused_and_not_measured_again(
    reply: Reply, why: str
) -> None:
    """The others are recorded."""
    worker = Worker(reply, MEASUREMENT, MEASUREMENT)
    entries, refused = recorded_by(worker, *TWO)
    assert refused == {"a.py::a": why}
    assert [entry.nodeid for entry in entries] == ["a.py::b"]
    assert len(entries[0].processes) == 3
    assert kinds_of(worker.log) == ["renew", "run", "run", "renew", "run"]


def test_case_that_is_lost_in_the_last_process_is_refused() -> None:
    entries, refused = recorded_by(Worker(MEASUREMENT, HOT), recording("a.py::a", claim()))
    assert (entries, refused) == ([], {"a.py::a": "throttled"})


def test_headroom_is_tried_in_every_process() -> None:
    worker = Worker(MEASUREMENT, MEASUREMENT, MEASUREMENT, RAN_OUT)
    _, refused = recorded_by(worker, recording("a.py::a", HALF))
    assert refused == {"a.py::a": "no_headroom"}


def test_progress_is_shown_for_the_case_that_is_measured() -> None:
    seen: list[str] = []

    def on_case(nodeid: str) -> Any:
        seen.append(nodeid)
        return lambda _: None

    record(gate_of(Worker(*[MEASUREMENT] * 4)), TWO, 3, on_case)
    assert seen == ["a.py::a", "a.py::b"] * 2


def test_nothing_to_record() -> None:
    assert recorded_by(Worker()) == ([], {})


def test_a_case_without_a_process_of_its_own_is_measured_in_three() -> None:
    """As under xdist, where the first ran beside others."""
    worker = Worker(*[MEASUREMENT] * 3)
    entries, _ = recorded_by(worker, recording("a.py::a", claim(), processes=()))
    assert kinds_of(worker.log) == ["renew", "run"] * 3
    assert len(entries[0].processes) == 3


def test_other_work_on_the_machine_is_kept_in_mind() -> None:
    replies = [timed(conditions=Conditions(others_cpu_share=share)) for share in (0.2, 0.4, 0.6)]
    cases = [recording("a.py::a", claim(), processes=())]
    recorded = record(gate_of(Worker(*replies)), cases, 3, lambda _: lambda _: None)
    assert recorded.loaded == {"a.py::a": 0.6}
    assert len(recorded.entries) == 1
