"""The rows of results.json, and the file."""

from __future__ import annotations

import json
import stat
from dataclasses import fields, replace
from pathlib import Path

import pytest
from samples import (
    FULL,
    GIB,
    MEASUREMENT,
    MIB,
    MS,
    RAN_OUT,
    RESIDENCY,
    SPEC,
    case,
    claim,
    compared,
    pinned,
    recorded,
    suggestion,
    timed,
    with_memory,
    with_phases,
)

from pytest_vramfit.baseline import Entry
from pytest_vramfit.estimating.advice import Advice
from pytest_vramfit.measurement import Conditions
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.reporting import results
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.worker.protocol import NotMeasured

CRASHED = NotMeasured(outcome="crashed", says="the worker exited with status 1")
PROMISED = {
    "": "nodeid engine outcome digest spec limits card memory time spill checks",
    "card": "name total_bytes usable_bytes emulated",
    "memory": "peak_allocated_bytes peak_reserved_bytes first_step_peak_allocated_bytes "
    "resident_bytes outside_allocator_bytes managed_bytes allocator_retries phases ledger",
    "time": "step_ns gpu_ns kernels tokens_per_second seconds_per_10k_tokens "
    "joules_per_10k_tokens processes",
}
"""The keys that the documentation promises."""


@pytest.mark.parametrize("part", PROMISED)
def test_row_has_every_promised_key(part: str) -> None:
    row = results.row(case(), judged=True)
    keys = set(row[part] if part else row)
    assert keys >= set(PROMISED[part].split())


def test_phases_are_those_promised() -> None:
    assert results.row(case(), judged=True)["memory"]["phases"] == {
        "load": 7 * GIB,
        "forward": 9 * GIB,
        "backward": 10 * GIB,
        "optimizer": 8 * GIB,
    }


def test_phases_that_were_asked_for_are_told_as_far_as_they_got() -> None:
    asked = claim(phases=("eval", "save", "merge"))
    row = results.row(case(with_phases(eval=11 * GIB, save=None), asked), judged=True)
    assert row["memory"]["phases"] == {
        "load": 7 * GIB,
        "forward": 9 * GIB,
        "backward": 10 * GIB,
        "optimizer": 8 * GIB,
        "eval": 11 * GIB,
    }
    assert row["memory"]["peak_allocated_bytes"] == 10 * GIB
    assert row["outcome"] == "oom"
    assert list(row["schedule"]["phases"]) == ["eval", "save", "merge"]
    assert {one["name"]: one["status"] for one in row["checks"][2:5]} == {
        "eval": "pass",
        "save": "fail",
        "merge": "unchecked",
    }


@pytest.mark.parametrize("managed", [None, 0, 3 * MIB])
def test_states_in_managed_memory_are_told_apart(managed: int | None) -> None:
    memory = results.row(case(with_memory(managed_bytes=managed)), judged=True)["memory"]
    assert memory["managed_bytes"] == managed
    assert memory["peak_allocated_bytes"] == 10 * GIB


def test_what_would_fit_is_a_list_of_keywords_with_their_memory() -> None:
    advice = Advice(ended="complete", suggestions=(suggestion(GIB, batch=1, accumulation=2),))
    row = results.row(replace(case(RAN_OUT), advice=advice), judged=True)
    assert row["advice_says"] is None
    assert row["advice"] == [
        {
            "keywords": {"batch": 1, "accumulation": 2},
            "peak_allocated_bytes": GIB,
            "outside_allocator_bytes": 512 * MIB,
            "says": "batch=1, accumulation=2",
        }
    ]


def test_advice_that_was_not_sought_is_null_and_one_without_a_result_says_so() -> None:
    row = results.row(case(RAN_OUT), judged=True)
    assert (row["advice"], row["advice_says"]) == (None, None)
    ended = replace(case(RAN_OUT), advice=Advice(ended="out_of_time"))
    row = results.row(ended, judged=True)
    assert row["advice"] == []
    assert row["advice_says"] == "not all was tried: predictions for one case end after 60 s"


def test_rates_of_varied_lengths_are_null() -> None:
    """Their steps have different numbers of tokens."""
    spec = replace(SPEC, lengths="varied")
    times = results.row(case(MEASUREMENT, claim(spec)), judged=True)["time"]
    assert times["step_ns"] == list(MEASUREMENT.step_ns)
    for rate in ("tokens_per_second", "seconds_per_10k_tokens", "joules_per_10k_tokens"):
        assert times[rate] is None


def test_row_says_what_was_claimed() -> None:
    asked = claim(
        FULL,
        card_bytes=16 * GIB,
        headroom=Headroom(share=0.1),
        max_step_ns=MS,
        peak_ratio=None,
        require=frozenset({"steady", "gpu_time"}),
    )
    row = results.row(case(MEASUREMENT, asked), judged=True)
    assert row["nodeid"] == "test_a.py::test_b"
    assert row["engine"] == "gpu"
    assert row["digest"] == FULL.digest
    assert set(row["spec"]) == {field.name for field in fields(TrainSpec)}
    assert row["spec"]["seq"] == 512
    assert row["limits"] == {
        "card_bytes": 16 * GIB,
        "card": None,
        "overflow": "oom",
        "headroom": {"share": 0.1, "size_bytes": 0},
        "max_step_ns": MS,
        "step_ratio": 1.25,
        "gpu_ratio": 1.05,
        "peak_ratio": None,
        "require": ["gpu_time", "steady"],
    }
    assert row["schedule"] == {
        "warmup": 3,
        "steps": 5,
        "timeout_s": 600.0,
        "phases": (),
        "eval_batch": 8,
    }


def test_row_says_what_was_measured() -> None:
    row = results.row(case(), judged=True)
    memory = {key: value for key, value in row["memory"].items() if key != "phases"}
    assert memory == {
        "peak_allocated_bytes": 10 * GIB,
        "peak_reserved_bytes": 12 * GIB,
        "first_step_peak_allocated_bytes": 9 * GIB,
        "resident_bytes": 12 * GIB,
        "outside_allocator_bytes": 512 * MIB,
        "managed_bytes": None,
        "allocator_retries": 0,
        "ledger": None,
    }
    assert row["card"] == {
        "name": "Card",
        "total_bytes": 24 * GIB,
        "usable_bytes": 23 * GIB,
        "emulated": False,
        "held_bytes": 256 * MIB,
    }
    assert row["oom"] is None
    assert row["evidence"]["loss"] == 2.5


def test_times_are_those_of_the_median_step() -> None:
    """1,024 tokens in 250 ms are 4,096 a second."""
    times = results.row(case(), judged=True)["time"]
    assert times["step_ns"] == [260 * MS, 240 * MS, 250 * MS, 900 * MS, 230 * MS]
    assert times["tokens_per_second"] == pytest.approx(4_096)
    assert times["seconds_per_10k_tokens"] == pytest.approx(10_000 / 4_096)


def test_tokens_of_all_micro_batches_count() -> None:
    spec = replace(SPEC, accumulation=4)
    times = results.row(case(MEASUREMENT, claim(spec)), judged=True)["time"]
    assert times["tokens_per_second"] == pytest.approx(4 * 4_096)


def test_memory_off_the_card_is_told_with_what_every_witness_saw() -> None:
    residency = replace(RESIDENCY, off_card_bytes=2 * GIB, uncertainty_bytes=20 * MIB)
    seen = replace(with_memory(served_from_host_bytes=2 * GIB + 5), residency=residency)
    row = results.row(case(seen), judged=True)
    assert row["outcome"] == "spilled"
    assert row["memory"]["resident_bytes"] == 10 * GIB
    assert row["spill"] == {
        "spilled_bytes": 2 * GIB,
        "uncertainty_bytes": 20 * MIB,
        "served_from_host_bytes": 2 * GIB + 5,
        "witnesses": [
            {
                "name": "accounting",
                "off_card": False,
                "says": "all that the allocator and what is beside it had fits the card",
            },
            {
                "name": "residency",
                "off_card": True,
                "says": (
                    "2.0 GiB are off the card (within 20.0 MiB): what is there is read at 25 GB/s, "
                    "what is on the card at 700"
                ),
            },
            {"name": "pcie", "off_card": None, "says": "could not look"},
            {"name": "utilisation", "off_card": None, "says": "could not look"},
            {
                "name": "retries",
                "off_card": False,
                "says": "the allocator never had to give back its cache",
            },
            {"name": "host_memory", "off_card": None, "says": "could not look"},
            {"name": "step_time", "off_card": None, "says": "could not look"},
        ],
    }


def test_memory_whose_place_nobody_could_look_at_is_null() -> None:
    row = results.row(case(replace(MEASUREMENT, residency=None)), judged=True)
    assert row["memory"]["resident_bytes"] is None
    for key in ("spilled_bytes", "uncertainty_bytes", "served_from_host_bytes"):
        assert row["spill"][key] is None
    off_card = {one["name"]: one["off_card"] for one in row["spill"]["witnesses"]}
    assert (off_card["accounting"], off_card["residency"]) == (False, None)


def test_without_an_allocator_nothing_is_known_of_memory_off_the_card() -> None:
    row = results.row(case(with_memory(peak_reserved_bytes=None)), judged=True)
    assert row["memory"]["resident_bytes"] is None
    assert row["spill"] is None
    assert results.row(case(RAN_OUT), judged=True)["spill"] is None


def test_gpu_time_and_energy() -> None:
    """5 steps of 1,024 tokens took 2 kJ."""
    times = results.row(case(), judged=True)["time"]
    assert times["gpu_ns"] == [225 * MS, 223 * MS, 227 * MS]
    assert times["kernels"] == 8_382
    assert times["joules_per_10k_tokens"] == pytest.approx(2_000 / 5_120 * 10_000)


def test_conditions_are_told_as_they_are() -> None:
    conditions = replace(
        MEASUREMENT.conditions,
        pcie_bytes=9 * MIB,
        gpu_busy_percent=99,
        memory_busy_percent=48,
        throttled_ns={"power cap": 0, "power brake": 5},
    )
    row = results.row(case(replace(MEASUREMENT, conditions=conditions)), judged=True)
    assert row["conditions"] == {
        "energy_mj": 2_000_000,
        "energy_from": "counter",
        "pcie_bytes": 9 * MIB,
        "gpu_busy_percent": 99,
        "memory_busy_percent": 48,
        "sm_clock_mhz": 1_980,
        "temperature_c": None,
        "throttled_ns": {"power cap": 0, "power brake": 5},
        "others_cpu_share": 0.05,
    }
    assert row["throttled"] == []


def test_clocks_held_down_from_outside_are_told_by_reason() -> None:
    hot = replace(MEASUREMENT.conditions, throttled_ns={"hardware thermal": 10**9, "power cap": 9})
    row = results.row(case(replace(MEASUREMENT, conditions=hot)), judged=True)
    assert row["throttled"] == ["hardware thermal"]


def test_what_the_cpu_engine_cannot_know_is_null() -> None:
    seen = replace(MEASUREMENT, gpu=None, conditions=Conditions(others_cpu_share=0.0))
    row = results.row(case(seen), judged=True)
    for key in ("gpu_ns", "kernels", "joules_per_10k_tokens"):
        assert row["time"][key] is None
    assert set(row["conditions"].values()) == {None, 0.0}
    assert row["time"]["processes"][0]["gpu_ns"] is None


def test_every_measurement_of_a_case_is_a_process() -> None:
    """Those that got through, the first one first."""
    judged = replace(case(), more=(RAN_OUT, timed(step=2, gpu=2)))
    assert results.row(judged, judged=True)["time"]["processes"] == [
        {
            "step_ns": [260 * MS, 240 * MS, 250 * MS, 900 * MS, 230 * MS],
            "gpu_ns": [225 * MS, 223 * MS, 227 * MS],
            "kernels": 8_382,
        },
        {
            "step_ns": [520 * MS, 480 * MS, 500 * MS, 1_800 * MS, 460 * MS],
            "gpu_ns": [450 * MS, 446 * MS, 454 * MS],
            "kernels": 8_382,
        },
    ]


def test_what_an_engine_without_an_allocator_cannot_know_is_null() -> None:
    row = results.row(
        case(
            with_memory(
                peak_reserved_bytes=None, outside_allocator_bytes=None, allocator_retries=None
            )
        ),
        judged=True,
    )
    for key in ("peak_reserved_bytes", "outside_allocator_bytes", "allocator_retries"):
        assert row["memory"][key] is None


def test_after_an_oom_what_was_not_measured_is_null() -> None:
    row = results.row(case(RAN_OUT), judged=True)
    assert row["outcome"] == "oom"
    assert row["memory"] is None
    assert row["evidence"] is None
    assert row["conditions"] is None
    assert row["throttled"] == []
    assert row["time"]["processes"] == []
    assert row["time"]["step_ns"] is None
    assert row["time"]["gpu_ns"] is None
    assert row["time"]["kernels"] is None
    assert row["time"]["joules_per_10k_tokens"] is None
    assert row["time"]["tokens_per_second"] is None
    assert row["time"]["seconds_per_10k_tokens"] is None
    assert row["oom"]["phase"] == "backward"
    assert row["oom"]["requested_bytes"] == 2 * GIB


def test_no_measured_zero_becomes_null() -> None:
    assert (
        results.row(case(with_memory(allocator_retries=0)), judged=True)["memory"][
            "allocator_retries"
        ]
        == 0
    )


def test_checks_are_told_with_figures_and_sentence() -> None:
    by_name = {one["name"]: one for one in results.row(case(), judged=True)["checks"]}
    assert by_name["peak_within_vram"] == {
        "name": "peak_within_vram",
        "status": "pass",
        "value": 10 * GIB + 512 * MIB,
        "limit": 23 * GIB,
        "unit": "bytes",
        "ratio": None,
        "interval": None,
        "findings": [],
        "says": "46 % of the card, 512 MiB of it outside the allocator",
    }
    assert by_name["gpu_time"] == {
        "name": "gpu_time",
        "status": "unchecked",
        "value": None,
        "limit": None,
        "unit": None,
        "ratio": None,
        "interval": None,
        "findings": ["no_baseline"],
        "says": "no baseline; --vramfit-update-missing records one",
    }


def test_checks_against_a_baseline_are_told_with_ratio_and_interval() -> None:
    row = results.row(pinned(compared(timed(step=2))), judged=True)
    by_name = {one["name"]: one for one in row["checks"]}
    step, peak = by_name["step_time"], by_name["peak_baseline"]
    assert (step["value"], step["limit"], step["unit"]) == (500 * MS, 312_500_000, "ns")
    assert step["ratio"] == pytest.approx(2)
    assert step["interval"] == pytest.approx([1.8, 2.2])
    assert step["findings"] == ["host_side"]
    assert step["says"] == (
        "2.000 times the baseline (1.800 to 2.200); on the host's side: GPU time is 1.000 times "
        "that of the baseline"
    )
    assert (peak["value"], peak["limit"], peak["unit"]) == (10 * GIB, 10_844_792_422, "bytes")
    assert (peak["ratio"], peak["interval"], peak["findings"]) == (1.0, None, [])


def test_row_is_a_baseline_of_what_it_says(tmp_path: Path) -> None:
    row = results.row(case(), judged=True)
    assert results.entry(row) == Entry.of("test_a.py::test_b", "gpu", SPEC, [MEASUREMENT])
    assert results.entry(json.loads(json.dumps(row))) == results.entry(row)


def test_row_of_a_recorded_baseline_has_the_samples_of_all_its_processes() -> None:
    row, before = (results.row(case(), judged=True) for _ in range(2))
    results.add_processes(row, recorded(timed(step=2)))
    assert results.entry(row).processes == recorded(timed(step=2)).processes
    row["time"].pop("processes")
    before["time"].pop("processes")
    assert row == before


def test_case_of_vramfit_measure_is_marked_as_not_judged() -> None:
    assert results.row(case(), judged=True)["judged"] is True
    assert results.row(case(), judged=False)["judged"] is False


def test_row_of_a_case_that_was_not_measured() -> None:
    row = results.not_measured_row("test_a.py::test_b", "gpu", claim(), CRASHED, judged=True)
    assert row["outcome"] == "crashed"
    assert row["says"] == "the worker exited with status 1"
    assert row["digest"] == SPEC.digest
    assert [row[key] for key in ("card", "memory", "time", "spill")] == [None] * 4
    assert row["checks"] == []
    assert set(row) >= set(PROMISED[""].split())


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    rows = [
        results.not_measured_row("test_a.py::test_a", "gpu", claim(), CRASHED, judged=True),
        results.row(case(), judged=True),
        results.row(case(RAN_OUT), judged=True),
    ]
    results.write(path, rows)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) == {"schema", "environment", "results"}
    assert document["schema"] == "pytest-vramfit/results/1"
    assert document["environment"] == {
        "device": "Card",
        "driver": "1.2",
        "python": "3.12.1",
        "torch": "2.11.0",
    }
    assert [row["outcome"] for row in document["results"]] == ["crashed", "fits", "oom"]
    assert all("environment" not in row for row in document["results"])


def test_environment_that_differs_from_the_first_stays_with_its_row(tmp_path: Path) -> None:
    """The top has that of the first; a row without one of its own shares it."""
    newer = {**MEASUREMENT.environment, "driver": "1.3"}
    rows = [
        results.row(case(), judged=True),
        results.row(case(replace(MEASUREMENT, environment=newer)), judged=True),
        results.row(case(), judged=True),
    ]
    results.write(tmp_path / "results.json", rows)
    document = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert document["environment"] == MEASUREMENT.environment
    assert [row.get("environment") for row in document["results"]] == [None, newer, None]


def test_file_of_no_rows(tmp_path: Path) -> None:
    results.write(tmp_path / "results.json", [])
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == {
        "schema": "pytest-vramfit/results/1",
        "environment": None,
        "results": [],
    }


def test_spec_of_a_file_is_read_back(tmp_path: Path) -> None:
    results.write(
        tmp_path / "results.json", [results.row(case(MEASUREMENT, claim(FULL)), judged=True)]
    )
    document = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert TrainSpec.from_json(document["results"][0]["spec"]) == FULL


def test_rows_stay_as_they_are_when_written(tmp_path: Path) -> None:
    """The summary reads them too."""
    row = results.row(case(), judged=True)
    results.write(tmp_path / "results.json", [row])
    assert row == results.row(case(), judged=True)


def test_file_makes_its_folder(tmp_path: Path) -> None:
    results.write(tmp_path / "new" / "deep" / "results.json", [])
    assert (tmp_path / "new" / "deep" / "results.json").is_file()


def test_file_replaces_an_older_one_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text("old", encoding="utf-8")
    results.write(path, [])
    assert json.loads(path.read_text(encoding="utf-8"))["results"] == []
    assert list(tmp_path.iterdir()) == [path]


def test_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    """So that the job that collects it may read it."""
    path, other = tmp_path / "results.json", tmp_path / "other"
    other.write_text("", encoding="utf-8")
    results.write(path, [])
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


@pytest.mark.parametrize("bad", [float("nan"), object()], ids=["NaN", "object"])
def test_what_cannot_be_written_leaves_the_older_file(bad: object, tmp_path: Path) -> None:
    """Whole or not at all."""
    path = tmp_path / "results.json"
    path.write_text("old", encoding="utf-8")
    with pytest.raises((ValueError, TypeError)):
        results.write(path, [{"nodeid": "a", "value": bad}])
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_disk_that_fails_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    path.write_text("old", encoding="utf-8")

    def fail(self: Path, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        results.write(path, [])
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
