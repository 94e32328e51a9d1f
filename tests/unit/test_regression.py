"""The checks against a baseline."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import pytest
from entries import ENVIRONMENT, GIB, MS, entry, process, three

from pytest_vramfit.baseline import Entry, Process
from pytest_vramfit.measurement import Conditions
from pytest_vramfit.spec import Limits
from pytest_vramfit.verdict import Check, Finding, regressions
from pytest_vramfit.verdict.regression import environment_changes

BEFORE = entry()
CALM = Conditions(others_cpu_share=0.05, throttled_ns={})
LOADED = Conditions(others_cpu_share=0.62)
SECOND = 10**9


def one_process(step_ms: float = 250, gpu_ms: float | None = 225, **changes: Any) -> Entry:
    return entry(processes=(process(step_ms, gpu_ms),), **changes)


def checks(
    now: Entry, before: Entry = BEFORE, *conditions: Conditions, **limits: Any
) -> dict[str, Check]:
    seen = regressions(Limits(**limits), now, before, conditions)
    return {check.name: check for check in seen}


def kinds(check: Check) -> list[str]:
    return [finding.kind for finding in check.findings]


def finding(check: Check, kind: str) -> Finding:
    (found,) = (one for one in check.findings if one.kind == kind)
    return found


def test_all_three_checks_pass_on_the_same_figures_without_a_word() -> None:
    seen = checks(one_process())
    assert [*seen] == ["step_time", "gpu_time", "peak_baseline"]
    assert all(check.status == "pass" and not check.findings for check in seen.values())


def test_figures_of_a_time() -> None:
    check = checks(one_process(step_ms=275))["step_time"]
    assert (check.value, check.unit) == (275 * MS, "ns")
    assert check.limit == 312_500_000  # 1.25 times 250 ms
    assert check.ratio == pytest.approx(1.1)
    assert check.interval is not None
    low, high = check.interval
    assert low < 1.1 < high


def test_figures_of_the_peak() -> None:
    check = checks(one_process(peak_allocated_bytes=11 * GIB), peak_ratio=1.5)["peak_baseline"]
    assert (check.value, check.limit, check.unit) == (11 * GIB, 15 * GIB, "bytes")
    assert check.ratio == pytest.approx(1.1)
    assert check.interval is None


@pytest.mark.parametrize(
    ("limit", "name"),
    [("step_ratio", "step_time"), ("gpu_ratio", "gpu_time"), ("peak_ratio", "peak_baseline")],
)
def test_limit_of_none_switches_its_check_off(limit: str, name: str) -> None:
    assert name not in checks(one_process(), **{limit: None})
    assert len(checks(one_process(), **{limit: None})) == 2


@pytest.mark.parametrize(
    ("more_bytes", "status"), [(0, "pass"), (GIB // 10, "pass"), (GIB // 10 + 1, "fail")]
)
def test_peak_may_be_one_percent_higher_and_no_byte_more(more_bytes: int, status: str) -> None:
    now = one_process(peak_allocated_bytes=10 * GIB + more_bytes)
    assert checks(now)["peak_baseline"].status == status


def test_peak_at_its_limit_passes() -> None:
    now = one_process(peak_allocated_bytes=11 * GIB)
    assert checks(now, peak_ratio=1.1)["peak_baseline"].status == "pass"
    assert checks(one_process(), peak_ratio=1.0)["peak_baseline"].status == "pass"


def test_twice_the_step_time_fails() -> None:
    assert checks(one_process(step_ms=500))["step_time"].status == "fail"


def test_two_percent_of_gpu_time_fail_at_a_limit_of_one() -> None:
    """One process against a baseline of three."""
    assert checks(one_process(gpu_ms=229.5), gpu_ratio=1.01)["gpu_time"].status == "fail"


def test_half_a_percent_of_gpu_time_passes_at_a_limit_of_one() -> None:
    assert checks(one_process(gpu_ms=226.1), gpu_ratio=1.01)["gpu_time"].status == "pass"


@pytest.mark.parametrize("now_processes", [1, 3])
@pytest.mark.parametrize(
    ("gpu_ms", "spread_ms"), [(225, 18), (85, 18), (85, 25)], ids=["gpu", "host", "noisy host"]
)
def test_no_false_alarm_at_the_default_limits(
    gpu_ms: float, spread_ms: float, now_processes: int
) -> None:
    """The same case on both sides, 500 times, with a spread of 7 or 10 % of wall time, and of
    0.2 % of GPU time, which is twice the usual.
    """
    generator = random.Random(7)

    def simulated(number: int) -> Entry:
        processes = []
        for _ in range(number):
            step, gpu = generator.gauss(250, spread_ms), generator.gauss(gpu_ms, 0.002 * gpu_ms)
            processes.append(
                Process(
                    step_ns=tuple(int(generator.gauss(step, 8) * MS) for _ in range(5)),
                    gpu_ns=tuple(int(generator.gauss(gpu, 0.0005 * gpu) * MS) for _ in range(3)),
                    kernels=2_000,
                )
            )
        return entry(processes=tuple(processes))

    failed = [
        check.name
        for _ in range(500)
        for check in checks(simulated(now_processes), simulated(3)).values()
        if check.status == "fail"
    ]
    assert failed == []


GPU_S, HOST_S, HALF = (225, 25, 125)
"""GPU times of steps of 250 ms: nine tenths, one tenth and half of it."""


def step_time(now: Entry, before: Entry, **limits: Any) -> Check:
    return checks(now, before, **limits)["step_time"]


def width(check: Check) -> float:
    """Of the interval, as a factor."""
    assert check.interval is not None
    return check.interval[1] / check.interval[0]


def of_gpu_ms(gpu_ms: float | None, step_ms: float = 250) -> tuple[Entry, Entry]:
    """One process of this step time and three of 250 ms, all with this GPU time."""
    return one_process(step_ms, gpu_ms), entry(processes=three(gpu_ms=gpu_ms))


def test_step_that_is_mostly_the_host_s_is_judged_more_leniently() -> None:
    """Both take 1.6 times as long by the wall clock with the same GPU time: what varies from
    process to process is the host's part.
    """
    gpu, host = (step_time(*of_gpu_ms(gpu_ms, step_ms=400)) for gpu_ms in (GPU_S, HOST_S))
    assert (gpu.value, gpu.limit, gpu.ratio) == (host.value, host.limit, host.ratio)
    assert gpu.status == "fail"
    assert (host.status, kinds(host)[0]) == ("unchecked", "too_noisy")
    assert step_time(*of_gpu_ms(HOST_S, step_ms=600)).status == "fail"


def test_more_of_the_step_on_the_host_widens_the_interval() -> None:
    widths = [width(step_time(*of_gpu_ms(gpu_ms))) for gpu_ms in (300, 250, GPU_S, HALF, HOST_S)]
    assert widths[0] == pytest.approx(widths[1])  # no less than no part is the host's
    assert widths[1:] == sorted(set(widths))


def test_larger_one_of_the_host_s_shares_counts() -> None:
    """Whichever side it is on."""
    gpu, host = (entry(processes=three(gpu_ms=gpu_ms)) for gpu_ms in (GPU_S, HOST_S))
    least, most = width(step_time(gpu, gpu)), width(step_time(host, host))
    assert least < most
    assert width(step_time(gpu, host)) == pytest.approx(most)
    assert width(step_time(host, gpu)) == pytest.approx(most)


def test_without_gpu_time_a_quarter_is_taken_to_be_the_host_s() -> None:
    quarter = width(step_time(*of_gpu_ms(187.5)))
    assert width(step_time(*of_gpu_ms(None))) == pytest.approx(quarter)
    cpu = (replace(one, engine="cpu") for one in of_gpu_ms(None))
    assert width(step_time(*cpu)) == pytest.approx(quarter)


TWELVE = {
    "Qwen2.5-1.5B": (
        (452, 403, 337, 346, 421, 356, 258, 409, 237, 397, 417, 274),
        (38.13, 38.16, 38.16, 38.15, 38.13, 38.15, 38.15, 38.10, 38.16, 38.16, 38.11, 38.16),
    ),
    "Qwen2.5-7B": (
        (359, 357, 306, 386, 356, 266, 340, 256, 334, 405, 291, 371),
        (82.16, 82.20, 82.15, 82.17, 82.18, 82.09, 82.17, 82.15, 82.13, 82.15, 82.15, 82.15),
    ),
}
"""Medians in ms of twelve processes on one H200, wall and GPU: QLoRA, seq 512."""


def of_medians(medians_ms: tuple[tuple[float, ...], ...]) -> list[Process]:
    """A process of one sample for each: nothing is known of the spread within it, so that the
    interval is as narrow as it can be.
    """
    return [
        Process(step_ns=(round(step * MS),), gpu_ns=(round(gpu * MS),), kernels=2_000)
        for step, gpu in zip(*medians_ms, strict=True)
    ]


@pytest.mark.parametrize("medians_ms", TWELVE.values(), ids=TWELVE)
def test_no_real_process_fails_against_another(medians_ms: tuple[tuple[float, ...], ...]) -> None:
    """Though the wall time of some is 1.9 times that of others, and GPU time may grow by 1 %."""
    pairs = [*permutations(of_medians(medians_ms), 2)]
    assert len(pairs) == 132
    for now, before in pairs:
        seen = checks(entry(processes=(now,)), entry(processes=(before,)), gpu_ratio=1.01)
        assert seen["step_time"].status != "fail"
        assert seen["gpu_time"].status == "pass"


@pytest.mark.parametrize("medians_ms", TWELVE.values(), ids=TWELVE)
def test_no_real_process_fails_against_three_others(
    medians_ms: tuple[tuple[float, ...], ...],
) -> None:
    """As a baseline has."""
    processes = of_medians(medians_ms)
    for now in processes:
        others = [one for one in processes if one is not now]
        for before in combinations(others, 3):
            seen = checks(entry(processes=(now,)), entry(processes=before), gpu_ratio=1.01)
            assert seen["step_time"].status != "fail"
            assert seen["gpu_time"].status == "pass"


@pytest.mark.parametrize("step_ms", [300, 325])
def test_interval_on_both_sides_of_the_limit_decides_nothing(step_ms: float) -> None:
    check = checks(one_process(step_ms=step_ms))["step_time"]
    assert check.interval is not None
    assert check.interval[0] < 1.25 < check.interval[1]
    assert check.status == "unchecked"
    assert kinds(check)[0] == "too_noisy"
    assert check.ratio == pytest.approx(step_ms / 250)


def test_more_processes_decide() -> None:
    assert checks(one_process(step_ms=340))["step_time"].status == "unchecked"
    now = entry(processes=three(step_ms=340) + three(step_ms=340))
    assert checks(now)["step_time"].status == "fail"


def test_busy_host_excuses_the_wall_clock_only() -> None:
    seen = checks(one_process(step_ms=500, gpu_ms=245), BEFORE, LOADED)
    assert seen["step_time"].status == "unchecked"
    assert seen["step_time"].findings[0] == Finding(kind="host_loaded", names=("62%",))
    assert seen["gpu_time"].status == "fail"


def test_busy_host_does_not_spoil_what_holds() -> None:
    assert checks(one_process(), BEFORE, LOADED)["step_time"].status == "pass"


def test_some_load_is_no_excuse() -> None:
    calm = Conditions(others_cpu_share=0.29)
    assert checks(one_process(step_ms=500), BEFORE, calm)["step_time"].status == "fail"


@pytest.mark.parametrize("reason", ["software thermal", "hardware thermal", "power brake"])
def test_clocks_held_down_from_outside_excuse_both_times(reason: str) -> None:
    hot = Conditions(throttled_ns={reason: SECOND})
    seen = checks(one_process(step_ms=500, gpu_ms=245), BEFORE, CALM, hot)
    for name in ("step_time", "gpu_time"):
        assert seen[name].status == "unchecked"
        assert seen[name].findings[0] == Finding(kind="throttled", names=(reason,))
    assert seen["peak_baseline"].status == "pass"


def test_clocks_held_down_do_not_spoil_what_holds() -> None:
    hot = Conditions(throttled_ns={"hardware thermal": SECOND})
    seen = checks(one_process(), BEFORE, hot)
    assert {check.status for check in seen.values()} == {"pass"}


@pytest.mark.parametrize(
    "throttled_ns", [{"power cap": SECOND}, {"hardware thermal": MS}, {}, None], ids=str
)
def test_what_comes_from_the_step_itself_or_is_short_is_no_excuse(
    throttled_ns: dict[str, int] | None,
) -> None:
    """A power cap is what the step asks for; a millisecond is under one percent of the time."""
    now = one_process(step_ms=500, gpu_ms=245)
    seen = checks(now, BEFORE, Conditions(throttled_ns=throttled_ns))
    assert seen["gpu_time"].status == "fail"
    assert seen["step_time"].status == "fail"


def test_much_better_is_said_and_passes() -> None:
    """Another baseline is due."""
    now = one_process(step_ms=125, gpu_ms=110, peak_allocated_bytes=5 * GIB)
    for check in checks(now).values():
        assert check.status == "pass"
        assert "improved" in kinds(check)


def test_a_little_better_is_not_said() -> None:
    now = one_process(step_ms=240, gpu_ms=222, peak_allocated_bytes=10 * GIB - 4096)
    assert [kinds(check) for check in checks(now).values()] == [[], [], []]


def test_changed_environment_is_named_beyond_half_of_the_limit() -> None:
    driver = {**ENVIRONMENT, "driver": "590.2"}
    far, near = one_process(environment=driver), one_process(gpu_ms=233, environment=driver)
    assert "environment_changed" not in kinds(checks(far)["gpu_time"])
    check = checks(near)["gpu_time"]
    assert check.status == "pass"  # 3.5 % of 5 %
    assert finding(check, "environment_changed").names == ("driver", "580.1", "590.2")
    assert "environment_changed" not in kinds(checks(near)["peak_baseline"])


def test_changed_environment_is_named_with_a_failure() -> None:
    now = one_process(
        gpu_ms=245,
        peak_allocated_bytes=11 * GIB,
        environment={**ENVIRONMENT, "torch": "2.13.0", "ecc": "on"},
    )
    seen = checks(now)
    for name in ("gpu_time", "peak_baseline"):
        assert seen[name].status == "fail"
        changes = finding(seen[name], "environment_changed").names
        assert changes == ("torch", "2.11.0", "2.13.0", "ecc", "none", "on")


def test_same_environment_is_not_mentioned() -> None:
    assert kinds(checks(one_process(gpu_ms=245))["gpu_time"]) == []


def test_another_gpu_of_the_same_model_is_said_with_times() -> None:
    before = entry(environment={**ENVIRONMENT, "gpu": "aa"})
    seen = checks(one_process(environment={**ENVIRONMENT, "gpu": "bb"}), before)
    assert kinds(seen["step_time"]) == ["other_gpu"]
    assert kinds(seen["gpu_time"]) == ["other_gpu"]
    assert kinds(seen["peak_baseline"]) == []


def test_slower_step_with_the_same_gpu_time_comes_from_the_host() -> None:
    check = checks(one_process(step_ms=500))["step_time"]
    assert finding(check, "host_side").names == ("1.000",)


def test_slower_step_with_a_slower_gpu_does_not() -> None:
    assert "host_side" not in kinds(checks(one_process(step_ms=500, gpu_ms=450))["step_time"])


def test_other_number_of_kernels_is_said_with_a_slower_time() -> None:
    now = entry(processes=(process(gpu_ms=245, kernels=2_345),))
    assert finding(checks(now)["gpu_time"], "kernels").names == ("2,000", "2,345")


def test_clock_is_said_with_a_slower_gpu() -> None:
    slow, fast = Conditions(sm_clock_mhz=1_200), Conditions(sm_clock_mhz=1_980)
    check = checks(one_process(gpu_ms=245), BEFORE, fast, slow)["gpu_time"]
    assert finding(check, "sm_clock").names == ("1200",)


@pytest.mark.parametrize(
    ("now", "before", "kind"),
    [
        (one_process(gpu_ms=None), BEFORE, "no_gpu_time"),
        (one_process(), entry(processes=three(gpu_ms=None)), "no_gpu_time_before"),
        (one_process(gpu_ms=None, engine="cpu"), entry(engine="cpu"), "no_gpu"),
    ],
    ids=["now", "before", "cpu"],
)
def test_gpu_time_that_was_not_measured_is_unchecked(now: Entry, before: Entry, kind: str) -> None:
    check = checks(now, before)["gpu_time"]
    assert (check.status, kinds(check)) == ("unchecked", [kind])
    assert check.value is None
    assert check.ratio is None


@pytest.mark.parametrize("gpu_ms", [225, 300], ids=["same", "slower"])
def test_process_without_gpu_time_leaves_it_to_the_others(gpu_ms: float) -> None:
    """Its profiler failed; on either side."""
    without = process(gpu_ms=None)
    now, before = (entry(processes=(process(gpu_ms=one),)) for one in (gpu_ms, 225))
    known = checks(now, before)["gpu_time"]
    assert known.status == ("pass" if gpu_ms == 225 else "fail")
    for more_now, more_before in (((without,), ()), ((), (without,)), ((without,), (without,))):
        seen = checks(
            replace(now, processes=(*more_now, *now.processes)),
            replace(before, processes=(*before.processes, *more_before)),
        )
        assert seen["gpu_time"] == known


def gpu_time_in_turn(now: tuple[Process, ...], before: tuple[Process, ...]) -> Check:
    limits = Limits(step_ratio=None, peak_ratio=None)
    (check,) = regressions(limits, entry(processes=now), entry(processes=before), in_turn=True)
    return check


def test_pair_of_which_one_has_no_gpu_time_leaves_it_to_the_other_pairs() -> None:
    """Samples are not paired with those of another turn."""
    without = process(gpu_ms=None)
    now, before = process(gpu_ms=280), process(gpu_ms=200)
    check = gpu_time_in_turn((without, now), (process(gpu_ms=100), before))
    assert check.ratio == pytest.approx(1.4)
    assert check.ratio == gpu_time_in_turn((now,), (before,)).ratio
    none = gpu_time_in_turn((without, now), (before, without))
    assert (none.status, kinds(none)) == ("unchecked", ["no_gpu_time"])


def test_processes_in_turn_are_judged_by_pairs() -> None:
    """Both slow down together by a factor of three; one is always 40 % slower."""
    before = entry(processes=tuple(process(one, 0.9 * one) for one in (100, 200, 300)))
    now = entry(processes=tuple(process(one, 0.9 * one) for one in (140, 280, 420)))
    apart = checks(now, before)["step_time"]
    assert apart.status == "unchecked"
    (check, *_) = regressions(Limits(step_ratio=1.1), now, before, in_turn=True)
    assert check.ratio == pytest.approx(1.4)
    assert check.status == "fail"


def test_environment_changes_leave_out_which_gpu_of_a_model_it_is() -> None:
    before = entry(environment={"device": "A", "driver": "1", "gpu": "aa", "ecc": "on"})
    now = replace(before, environment={"device": "A", "driver": "2", "gpu": "bb", "cuda": "13"})
    assert environment_changes(before, now) == [
        ("driver", "1", "2"),
        ("ecc", "on", "none"),
        ("cuda", "none", "13"),
    ]
