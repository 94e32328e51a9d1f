"""What the timed steps ran under, with a GPU and a clock that say what they are told."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vramfit.measurement import Conditions
from pytest_vramfit.measuring import watch
from pytest_vramfit.measuring.nvml import Counters
from pytest_vramfit.measuring.watch import Watch

SECOND = 10**9


def counters(
    energy_mj: int | None = None,
    power_mw: int | None = None,
    *,
    sm_clock_mhz: int | None = None,
    temperature_c: int | None = None,
    throttled_ns: Mapping[str, int] | None = None,
    pcie_bytes: Mapping[str, int] | None = None,
    gpu_busy_percent: int | None = None,
    memory_busy_percent: int | None = None,
) -> Counters:
    return Counters(
        energy_mj=energy_mj,
        power_mw=power_mw,
        sm_clock_mhz=sm_clock_mhz,
        temperature_c=temperature_c,
        throttled_ns=throttled_ns or {},
        pcie_bytes=pcie_bytes,
        gpu_busy_percent=gpu_busy_percent,
        memory_busy_percent=memory_busy_percent,
    )


class Gpu:
    """Counts what it is told: one reading before the steps, one after each, one at the end."""

    def __init__(self, *readings: Counters, limit_mw: int | None = None) -> None:
        self._readings = list(readings)
        self._limit_mw = limit_mw

    def counters(self) -> Counters:
        return self._readings.pop(0)

    def power_limit_mw(self) -> int | None:
        return self._limit_mw


class Machine:
    """Four processors, and time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.busy_s = self.own_s = 1_000.0

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def cpu_seconds(self) -> tuple[float, float]:
        return self.busy_s, self.own_s

    def step(self, seconds: float, *, own: float = 0, others: float = 0) -> None:
        self.now_ns += round(seconds * SECOND)
        self.own_s += own
        self.busy_s += own + others


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    here = Machine()
    monkeypatch.setattr(watch, "time", SimpleNamespace(perf_counter_ns=here.perf_counter_ns))
    monkeypatch.setattr(watch, "os", SimpleNamespace(cpu_count=lambda: 4))
    monkeypatch.setattr(watch, "_cpu_seconds", here.cpu_seconds)
    return here


def watched(machine: Machine, readings: Sequence[Counters], **settings: Any) -> Conditions:
    """Steps of half a second; the last reading is taken 10 s after the last of them."""
    seen = Watch(Gpu(*readings, **settings))  # type: ignore[arg-type]
    for _ in readings[1:-1]:
        machine.step(0.5)
        seen.sample()
    machine.step(10)
    return seen.conditions()


@pytest.mark.parametrize(
    ("readings", "limit_mw", "energy"),
    [
        pytest.param(
            [counters(7_000, 1), counters(7_100, 1), counters(7_450, 1), counters(9_999, 1)],
            1,
            (450, "counter"),
            id="counter, up to the last step",
        ),
        pytest.param(
            [counters(None, 1), counters(None, 300_000), counters(None, 400_000), counters()],
            1,
            (350_000, "samples"),
            id="mean of the samples after steps, over one second",
        ),
        pytest.param(
            [counters(7, 1), counters(7, 300_000), counters(7, 300_000), counters(8)],
            1,
            (300_000, "samples"),
            id="counter that did not move",
        ),
        pytest.param(
            [counters(7), counters(7, 300_000), counters(None, None), counters(9)],
            1,
            (300_000, "samples"),
            id="counter and samples that are not always there",
        ),
        pytest.param(
            [counters(9_000), counters(10), counters(20), counters(30)],
            700_000,
            (700_000, "power limit"),
            id="counter that began anew",
        ),
        pytest.param(
            [counters(power_mw=300_000), counters(), counters(), counters()],
            450_000,
            (450_000, "power limit"),
            id="the sample before the steps is none of theirs",
        ),
        pytest.param([counters()] * 4, None, (None, None), id="nothing"),
    ],
)
def test_energy_is_the_best_that_the_gpu_has(
    readings: list[Counters], limit_mw: int | None, energy: tuple[Any, Any], machine: Machine
) -> None:
    seen = watched(machine, readings, limit_mw=limit_mw)
    assert (seen.energy_mj, seen.energy_from) == energy


@pytest.mark.parametrize(
    ("clocks", "median"),
    [
        ([9, 3, 1, 2], 2),  # not the one before the steps
        ([9, 1, 4, 2, 3], 2),
        ([9, None, 5, None], 5),
        ([9, None, None], None),
    ],
)
def test_clock_is_the_median_after_the_steps(
    clocks: list[int | None], median: int | None, machine: Machine
) -> None:
    readings = [counters(sm_clock_mhz=one) for one in (*clocks, 99)]
    assert watched(machine, readings).sm_clock_mhz == median


def test_temperature_is_that_after_the_last_step(machine: Machine) -> None:
    readings = [counters(temperature_c=one) for one in (30, 40, 50, 60)]
    assert watched(machine, readings).temperature_c == 50


def test_throttling_is_what_was_added_up_to_the_end(machine: Machine) -> None:
    """The profiled steps come after the last sample."""
    before = {"power cap": 100, "hardware thermal": 7}
    after = {"power cap": 150, "hardware thermal": 7}
    end = {"power cap": 400, "hardware thermal": 9}
    readings = [counters(throttled_ns=one) for one in (before, after, end)]
    assert watched(machine, readings).throttled_ns == {"power cap": 300, "hardware thermal": 2}


def test_no_throttling_is_zero_and_none_counted_is_none(machine: Machine) -> None:
    counted = [counters(throttled_ns={"power cap": 5})] * 3
    assert watched(machine, counted).throttled_ns == {"power cap": 0}
    assert watched(machine, [counters()] * 3).throttled_ns is None


@pytest.mark.parametrize(
    ("first", "last"), [({"a": 1, "b": 1}, {"b": 4, "c": 9}), ({"b": 1}, {"b": 4, "a": 9})]
)
def test_reason_that_is_not_counted_all_the_time_is_left_out(
    first: dict[str, int], last: dict[str, int], machine: Machine
) -> None:
    readings = [counters(throttled_ns=one) for one in (first, first, last)]
    assert watched(machine, readings).throttled_ns == {"b": 3}


def over_the_bus(*counts: tuple[int, int] | None) -> list[Counters]:
    """What went out and came in by each reading."""
    return [
        counters(pcie_bytes=None if one is None else {"sent": one[0], "received": one[1]})
        for one in counts
    ]


@pytest.mark.parametrize(
    ("counts", "moved"),
    [
        pytest.param([(10, 20), (15, 20), (15, 50), (99, 99)], 35, id="up to the last step"),
        pytest.param([(7, 7)] * 4, 0, id="nothing went over it"),
        pytest.param([(2**32 - 5, 0), (3, 1), (4, 1), (9, 9)], 10, id="one begins anew"),
        pytest.param([(2**32 - 1, 2**32 - 2), (0, 0), (0, 0)], 3, id="both begin anew"),
        pytest.param(
            [(0, 0), (3 * 2**30, 0), (2 * 2**30, 0), (2**30, 0), (0, 0)],
            9 * 2**30,
            id="round and round",
        ),
        pytest.param([None] * 4, None, id="not counted"),
        pytest.param([(1, 1), None, (5, 5), (6, 6)], None, id="not counted once"),
        pytest.param([(1, 1), (2, 2), None, (6, 6)], None, id="not counted in the end"),
        pytest.param([(1, 1), (2, 2), (3, 3), None], 4, id="not counted after the end"),
    ],
)
def test_bytes_over_the_bus_are_what_was_added_from_step_to_step(
    counts: list[tuple[int, int] | None], moved: int | None, machine: Machine
) -> None:
    assert watched(machine, over_the_bus(*counts)).pcie_bytes == moved


@given(
    steps=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), min_size=1),
    before=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
)
def test_less_than_one_round_a_step_is_counted_in_full(
    steps: list[tuple[int, int]], before: tuple[int, int]
) -> None:
    totals = [before]
    for out, back in steps:
        totals.append((totals[-1][0] + out, totals[-1][1] + back))
    readings = over_the_bus(*((out % 2**32, back % 2**32) for out, back in totals))
    seen = Watch(Gpu(*readings, counters()))  # type: ignore[arg-type]
    for _ in steps:
        seen.sample()
    assert seen.conditions().pcie_bytes == sum(out + back for out, back in steps)


def test_how_busy_the_gpu_was_is_told_after_the_last_step(machine: Machine) -> None:
    readings = [
        counters(gpu_busy_percent=one, memory_busy_percent=one // 2) for one in (10, 99, 80, 0)
    ]
    seen = watched(machine, readings)
    assert (seen.gpu_busy_percent, seen.memory_busy_percent) == (80, 40)


@pytest.mark.parametrize(
    ("seconds", "own", "others", "share"),
    [
        (1.0, 4.0, 0.0, 0.0),
        (1.0, 1.0, 2.0, 0.5),
        (1.0, 0.0, 4.0, 1.0),
        (2.0, 1.0, 1.0, 0.125),
        (1.0, 1.0, -0.02, 0.0),  # ticks of the two counts
        (0.1, 0.0, 0.2, 0.5),
        (0.099_999, 0.0, 0.2, None),
        (0.0, 0.0, 0.0, None),
    ],
)
def test_share_of_others_is_of_all_processors_and_none_in_a_short_window(
    seconds: float, own: float, others: float, share: float | None, machine: Machine
) -> None:
    seen = Watch(None)
    machine.step(seconds, own=own, others=others)
    seen.sample()
    assert seen.conditions() == Conditions(others_cpu_share=share)


def test_what_others_do_after_the_last_sample_does_not_count(machine: Machine) -> None:
    """The proof of training and the profiled steps have other work of their own."""
    seen = Watch(None)
    machine.step(1, others=1)
    seen.sample()
    machine.step(1, others=4)
    assert seen.conditions().others_cpu_share == 0.25


def test_without_a_sample_there_is_no_window(machine: Machine) -> None:
    seen = Watch(None)
    machine.step(1, others=4)
    assert seen.conditions().others_cpu_share is None


@given(
    steps=st.lists(
        st.tuples(st.floats(0.01, 5), st.floats(0, 20), st.floats(0, 20)), min_size=1, max_size=6
    )
)
def test_share_of_several_steps_is_that_of_the_whole_window(
    steps: list[tuple[float, float, float]],
) -> None:
    here = Machine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "time", SimpleNamespace(perf_counter_ns=here.perf_counter_ns))
        patch.setattr(watch, "os", SimpleNamespace(cpu_count=lambda: 4))
        patch.setattr(watch, "_cpu_seconds", here.cpu_seconds)
        seen = Watch(None)
        for seconds, own, others in steps:
            here.step(seconds, own=own, others=others)
            seen.sample()
        share = seen.conditions().others_cpu_share
    seconds = here.now_ns / SECOND
    if seconds < 0.1:
        assert share is None
    else:
        expected = sum(others for *_, others in steps) / seconds / 4
        assert share == pytest.approx(expected, abs=0.001)


def test_machine_s_own_counts_go_up_and_hold_those_of_this_process() -> None:
    """For real: a busy loop of this process is in both."""
    busy, own = watch._cpu_seconds()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    later_busy, later_own = watch._cpu_seconds()
    assert later_own - own >= 0.25
    # the machine counts in ticks
    assert later_busy - busy >= later_own - own - 0.1
