"""The last lines of a run, to the letter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import (
    GIB,
    MEASUREMENT,
    MEMORY,
    MIB,
    RAN_OUT,
    SPEC,
    case,
    claim,
    compared,
    pinned,
    timed,
    with_change,
    with_evidence,
    with_memory,
)

from pytest_vramfit.baseline import Entry
from pytest_vramfit.measurement import Conditions, Measurement
from pytest_vramfit.reporting import results, summary
from pytest_vramfit.spec import Claim, TrainSpec
from pytest_vramfit.verdict import Case, Reference, judge
from pytest_vramfit.worker.protocol import NotMeasured

Row = dict[str, Any]
NO_BASELINE = "no baseline; --vramfit-update-missing records one"
CPU = replace(with_evidence(devices={"cpu": 40}), gpu=None, conditions=Conditions())


def row(nodeid: str, judged: Case) -> Row:
    return results.row(replace(judged, nodeid=nodeid), judged=True)


def cpu(measurement: Measurement = CPU, asked: Claim | None = None) -> Case:
    return judge("test_a.py::test_b", "cpu", asked or claim(), measurement)


def not_measured(nodeid: str, outcome: Any, says: str, engine: Any = "cpu") -> Row:
    reply = NotMeasured(outcome=outcome, says=says)
    return results.not_measured_row(nodeid, engine, claim(), reply, judged=True)


def lines(*rows: Row) -> list[str]:
    return list(summary.lines(rows, command="pytest --gpu"))


def test_one_case_that_fits() -> None:
    assert lines(row("test_a.py::test_b", case())) == [
        "case               outcome      peak  of card    step  tokens/s   GPU time  J/10k tokens",
        "test_a.py::test_b     fits  10.0 GiB     46 %  250 ms     4,096  225.00 ms         3,906",
        f"3 checks unchecked ({NO_BASELINE}): step_time, gpu_time, peak_baseline",
        "GPU memory: up to 256 MiB held by others when a case began, and so not usable",
        "time in s: build 0.3, timed 1.9",
    ]


def test_cases_of_every_kind() -> None:
    """Counts over all cases, times summed up, and the next command last."""
    slow = replace(CPU, step_ns=(9_400_000_000,))
    assert lines(
        row("a.py::fits", cpu()),
        row("a.py::test_of_a_longer_name", cpu(RAN_OUT)),
        row("b.py::over[seq=9]", cpu(slow, claim(card_bytes=8 * GIB))),
        not_measured("c.py::large", "unsupported", "it needs 99 GiB; run it with --gpu"),
        not_measured("c.py::also", "unsupported", "it needs 99 GiB; run it with --gpu"),
        not_measured("d.py::crash", "crashed", "the worker exited with status 1"),
    ) == [
        "case                             outcome      peak  of card    step  tokens/s",
        "a.py::fits                          fits  10.0 GiB     46 %  250 ms     4,096",
        "a.py::test_of_a_longer_name          oom        --       --      --        --",
        "b.py::over[seq=9]              over_vram  10.0 GiB    131 %   9.4 s       109",
        "c.py::large                  unsupported        --       --      --        --",
        "c.py::also                   unsupported        --       --      --        --",
        "d.py::crash                      crashed        --       --      --        --",
        f"4 checks unchecked ({NO_BASELINE}): step_time, peak_baseline",
        "2 checks unchecked (no GPU time under the cpu engine): gpu_time",
        "3 checks unchecked (no card under the cpu engine): resident",
        (
            "6 checks unchecked (the step did not get through): peak_within_vram, trained, steady, "
            "step_time, gpu_time, peak_baseline"
        ),
        "2 unsupported, such as c.py::large: it needs 99 GiB; run it with --gpu",
        "GPU memory: up to 256 MiB held by others when a case began, and so not usable",
        "time in s: build 0.9, timed 5.6",
        "again: pytest --gpu a.py::test_of_a_longer_name",
        "on a GPU machine: pytest --gpu c.py",
    ]


def test_little_that_others_held_is_not_worth_a_line() -> None:
    seen = replace(MEASUREMENT, device=replace(MEASUREMENT.device, held_bytes=100 * MIB))
    assert not any("held" in line for line in lines(row("a.py::b", case(seen))))


def test_what_others_took_without_consequence_is_a_note() -> None:
    seen = with_change(2 * GIB, "in the timed steps")
    assert [line for line in lines(row("a.py::b", case(seen))) if line.startswith("note")] == [
        (
            "note: a.py::b: peak within VRAM 46 % of the card, 512 MiB of it outside the "
            "allocator; others took 2.0 GiB of the GPU in the timed steps"
        )
    ]


def test_columns_of_the_gpu_are_there_where_a_case_of_it_is() -> None:
    assert lines(
        row("a.py::gpu", case()),
        row("a.py::cpu", cpu()),
        row("a.py::oom", case(RAN_OUT)),
        not_measured("a.py::crash", "crashed", "the worker exited with status 1", engine="gpu"),
    )[:5] == [
        "case         outcome      peak  of card    step  tokens/s   GPU time  J/10k tokens",
        "a.py::gpu       fits  10.0 GiB     46 %  250 ms     4,096  225.00 ms         3,906",
        "a.py::cpu       fits  10.0 GiB     46 %  250 ms     4,096         --            --",
        "a.py::oom        oom        --       --      --        --         --            --",
        "a.py::crash  crashed        --       --      --        --         --            --",
    ]


@pytest.mark.parametrize(
    ("source", "energy_mj", "cell"),
    [
        ("counter", 2_000_000, "3,906"),
        ("samples", 4_000, "7.8"),
        ("power limit", 2_000_000, "<= 3,906"),
        (None, None, "--"),
    ],
)
def test_energy_by_the_power_limit_is_called_a_bound(
    source: Any, energy_mj: int | None, cell: str
) -> None:
    conditions = Conditions(energy_mj=energy_mj, energy_from=source)
    (table, *_) = lines(row("a.py::b", case(replace(MEASUREMENT, conditions=conditions))))[1:]
    assert table.split("  225.00 ms")[1].strip() == cell


def test_gpu_time_that_was_not_measured() -> None:
    (table, *_) = lines(row("a.py::b", case(replace(MEASUREMENT, gpu=None))))[1:]
    assert table.split()[-2:] == ["--", "3,906"]


def test_note_of_a_passed_check() -> None:
    better = timed(gpu=0.5, environment={**MEASUREMENT.environment, "driver": "1.3"})
    judged = pinned(compared(better, claim(step_ratio=None)))
    assert [line for line in lines(row("a.py::b", judged)) if "note" in line] == [
        (
            "note: a.py::b: GPU time 0.500 times the baseline (0.450 to 0.550); better than the "
            "baseline, which --vramfit-update refreshes; driver 1.2 → 1.3; SM clock 1980 MHz"
        )
    ]


def test_no_note_where_the_figures_are_those_of_the_baseline() -> None:
    assert not [line for line in lines(row("a.py::b", compared())) if "note" in line]


def test_failed_check_is_told_by_the_failure_and_not_by_a_note() -> None:
    """Its own findings are worth one."""
    slower = row("a.py::b", compared(timed(step=2, gpu=2)))
    assert not [line for line in lines(slower) if "note" in line]


@pytest.mark.parametrize(
    ("seen", "spec", "says"),
    [
        (
            with_evidence(quantised_elements=80_000, unquantised={"mlp.experts": 3 * GIB}),
            SPEC,
            "trained 3.0 GiB of the base is not quantised: mlp.experts",
        ),
        (
            with_memory(reserved_after_step_bytes=(5, 5 + 3 * GIB), allocator_retries=2),
            replace(SPEC, lengths="varied"),
            ("steady what is reserved grew by 3.0 GiB over the timed steps; 2 allocator retries"),
        ),
    ],
    ids=["unquantised", "fragmented"],
)
def test_note_of_what_passed_and_is_worth_knowing(
    seen: Measurement, spec: TrainSpec, says: str
) -> None:
    judged = case(seen, claim(spec))
    assert judged.outcome == "fits"
    assert [line for line in lines(row("a.py::b", judged)) if "note" in line] == [
        f"note: a.py::b: {says}"
    ]


def test_table_of_varied_lengths_has_no_rate() -> None:
    varied = claim(replace(SPEC, lengths="varied"))
    table = lines(row("a.py::b", case(MEASUREMENT, varied)))[1]
    assert table.split()[-6:] == ["250", "ms", "--", "225.00", "ms", "--"]


def test_undecided_checks_are_counted_by_their_reason_and_told_by_their_case() -> None:
    said = lines(
        row("a.py::b", pinned(compared(timed(gpu=1.04)))),
        row("a.py::c", pinned(compared(timed(gpu=1.06)))),
    )
    assert "2 checks unchecked (too noisy to tell): gpu_time" in said
    assert [line for line in said if "note" in line] == [
        (
            "note: a.py::b: GPU time too noisy to tell; 1.040 times the baseline (0.936 to 1.144); "
            "SM clock 1980 MHz"
        ),
        (
            "note: a.py::c: GPU time too noisy to tell; 1.060 times the baseline (0.954 to 1.166); "
            "SM clock 1980 MHz"
        ),
    ]


def test_one_unchecked_check() -> None:
    once = with_memory(allocated_after_step_bytes=(6 * GIB,))
    assert "1 check unchecked (one timed step cannot show growth): steady" in lines(
        row("a.py::b", case(once))
    )


def test_table_of_a_small_case() -> None:
    small = replace(
        CPU,
        memory=replace(
            MEMORY,
            forward_peak_bytes=3 * MIB,
            backward_peak_bytes=270 * MIB,
            optimizer_peak_bytes=0,
        ),
    )
    spec = replace(SPEC, batch=1, seq=2)
    table = lines(row("a.py::b", cpu(replace(small, step_ns=(800_000_000,)), claim(spec))))
    assert table[1] == "a.py::b  invalid  270 MiB    3.3 %  800 ms       2.5"


@pytest.mark.parametrize(
    ("nodeid", "command"),
    [
        ("a.py::b", "again: pytest --gpu a.py::b"),
        ("a.py::b[seq=512,rank=8]", 'again: pytest --gpu "a.py::b[seq=512,rank=8]"'),
        ("my tests/a.py::b", 'again: pytest --gpu "my tests/a.py::b"'),
    ],
)
def test_next_command_can_be_pasted(nodeid: str, command: str) -> None:
    assert lines(row(nodeid, case(with_evidence(loss=None))))[-1] == command


def test_no_next_command_where_all_fit() -> None:
    assert not [line for line in lines(row("a.py::b", case())) if "pytest" in line]


def test_case_that_was_only_measured_is_not_run_again() -> None:
    """``vramfit.measure`` judges nothing."""
    measured = results.row(case(RAN_OUT), judged=False)
    assert not [line for line in lines(measured) if line.startswith("again")]


def test_only_cases_that_were_not_measured() -> None:
    assert lines(not_measured("a.py::b", "timeout", "the case took more than 600 s")) == [
        "case     outcome  peak  of card  step  tokens/s",
        "a.py::b  timeout    --       --    --        --",
        "again: pytest --gpu a.py::b",
    ]


def test_command_for_a_gpu_machine_is_the_caller_s() -> None:
    row = not_measured("my tests/a.py::b", "unsupported", "too large")
    *_, last = summary.lines([row], command="pytest --vramfit=cpu", gpu_command="pytest --v=gpu")
    assert last == 'on a GPU machine: pytest --v=gpu "my tests/a.py"'


def test_what_the_gpu_does_not_support_is_not_sent_to_a_gpu() -> None:
    row = not_measured("a.py::b", "unsupported", "no usable GPU", engine="gpu")
    assert lines(row)[-1] == "1 unsupported: a.py::b: no usable GPU"


def against(there: dict[str, str]) -> Case:
    """Compared with the same case in an environment that differs from here by this."""
    here = replace(MEASUREMENT, environment={"device": "X", "torch": "2.11.0", "peft": "0.21.2"})
    slower = replace(timed(gpu=1.02), environment={**here.environment, **there})
    entry = Entry.of("test_a.py::test_b", "gpu", SPEC, [slower] * 2)
    reference = Reference(entry=entry, in_turn=True)
    return judge("test_a.py::test_b", "gpu", claim(), here, more=(here,), reference=reference)


def test_other_environment_is_named_with_its_ratios() -> None:
    says = lines(row("a", against({"torch": "2.13.0", "numpy": "2.0"})), row("b", case()))
    assert says[-3:-1] == [
        "other environment: torch 2.13.0 there, 2.11.0 here; numpy 2.0 there, none here",
        "here, times the other environment's: step time 1.000, GPU time 0.980, peak 1.000",
    ]


def test_other_environment_that_is_no_other_one_says_so() -> None:
    says = lines(row("a", against({})), row("b", against({})))[-3:-1]
    assert says == [
        "other environment: the same versions of everything",
        (
            "here, times the other environment's: step time 1.000 to 1.000, "
            "GPU time 0.980 to 0.980, peak 1.000 to 1.000"
        ),
    ]
