"""Results files read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from entries import ENVIRONMENT, GIB, H200, document, entry, process, results, row, three
from hypothesis import given
from hypothesis import strategies as st

from pytest_vramfit.baseline import BaselineError
from pytest_vramfit.measurement import Conditions
from pytest_vramfit.reporting.results_reader import Result, read


def the_one(file: str) -> Result:
    (result,) = read(Path(file))
    return result


def message(file: str) -> str:
    with pytest.raises(BaselineError) as caught:
        read(Path(file))
    return str(caught.value)


def test_row_becomes_an_entry(tmp_path: Path) -> None:
    result = the_one(results(tmp_path / "r.json", row(processes=three())))
    assert result.entry == entry()
    assert (result.nodeid, result.device, result.outcome) == ("test_a.py::test_b", H200, "fits")
    assert result.sound


def test_environment_of_the_row_counts_where_it_has_one(tmp_path: Path) -> None:
    own = {"device": "Tesla T4", "driver": "550.5"}
    result = the_one(results(tmp_path / "r.json", row(environment=own)))
    assert result.entry is not None
    assert result.entry.environment == own
    assert result.device == result.entry.device == "Tesla T4"


def test_environment_may_stand_in_the_rows_only(tmp_path: Path) -> None:
    """As where they differ."""
    rows = [row("a", environment=ENVIRONMENT), row("b", environment={**ENVIRONMENT, "x": "1"})]
    first, second = read(Path(document(tmp_path / "r.json", rows, None)))
    assert first.entry is not None
    assert second.entry is not None
    assert (first.entry.environment, second.entry.environment) == (
        ENVIRONMENT,
        {**ENVIRONMENT, "x": "1"},
    )


def test_case_that_was_not_measured_is_of_the_device_of_its_run(tmp_path: Path) -> None:
    crashed = row("b", outcome="crashed", processes=(), card=None)
    file = document(tmp_path / "r.json", [row("a", environment=ENVIRONMENT), crashed], None)
    result = read(Path(file))[1]
    assert (result.device, result.entry, result.sound) == (H200, None, False)


def test_run_that_measured_nothing_has_no_device(tmp_path: Path) -> None:
    crashed = row(outcome="crashed", processes=(), card=None)
    assert the_one(document(tmp_path / "r.json", [crashed], None)).device is None


def test_cases_of_vramfit_measure_are_left_out(tmp_path: Path) -> None:
    file = results(tmp_path / "r.json", row(), row(judged=False, peak=5))
    assert the_one(file).entry == entry(processes=(process(),))


def test_last_judged_row_of_a_test_counts(tmp_path: Path) -> None:
    rows = [row(peak=1), row(peak=2), row(judged=False, peak=3), row(engine="cpu", peak=4)]
    found = read(Path(results(tmp_path / "r.json", *rows)))
    peaks = [one.entry.peak_allocated_bytes for one in found if one.entry]
    assert peaks == [2, 4]


@pytest.mark.parametrize(
    ("outcome", "failed", "sound"),
    [
        ("fits", (), True),
        ("slower", ("step_time",), True),
        ("slower", ("gpu_time", "step_time", "peak_baseline"), True),
        ("heavier", ("peak_baseline",), True),
        ("slower", ("max_step",), False),
        ("slower", ("max_step", "step_time"), False),
        ("heavier", ("steady",), False),
        ("slower", ("step_time", "steady"), False),
        ("oom", ("no_oom",), False),
        ("invalid", ("trained",), False),
        ("timeout", (), False),
    ],
)
def test_sound_is_what_at_most_an_older_baseline_speaks_against(
    outcome: str, failed: tuple[str, ...], sound: bool, tmp_path: Path
) -> None:
    result = the_one(results(tmp_path / "r.json", row(outcome=outcome, failed=failed)))
    assert result.failed == failed
    assert result.sound is sound


@pytest.mark.parametrize("outcome", ["fits", "slower"])
def test_result_is_not_sound_where_a_check_had_to_be_made_and_was_not(
    outcome: str, tmp_path: Path
) -> None:
    """Unlike one that was made and failed."""
    made = row(outcome=outcome, failed=("step_time",), required=("gpu_time",))
    result = the_one(results(tmp_path / "r.json", made))
    assert result.failed == ("step_time", "gpu_time")
    assert result.not_made == ("gpu_time",)
    assert not result.sound


def test_digest_of_another_spec(tmp_path: Path) -> None:
    file = results(tmp_path / "r.json", row(digest="deadbeef"))
    assert message(file) == (
        f'{file}: results[0].digest is "deadbeef", not "{entry().digest}", the digest of its spec'
    )


def test_held_down_clocks_are_read(tmp_path: Path) -> None:
    throttled = ["hardware thermal", "power brake"]
    assert the_one(results(tmp_path / "r.json", row(throttled=throttled))).throttled == (
        "hardware thermal",
        "power brake",
    )


def test_conditions_are_read_as_far_as_they_are_known(tmp_path: Path) -> None:
    known = {"others_cpu_share": 0.25, "sm_clock_mhz": 1_980, "throttled_ns": {"power cap": 0}}
    rows = [
        row("a", conditions={**known, "energy_mj": None}),
        row("b", conditions=dict.fromkeys(known)),
        row("c", conditions=None),
    ]
    conditions = [one.conditions for one in read(Path(results(tmp_path / "r.json", *rows)))]
    assert conditions == [(Conditions(**known),), (Conditions(),), ()]


def test_file_without_cases(tmp_path: Path) -> None:
    assert read(Path(document(tmp_path / "r.json", [], None))) == []


def test_file_that_is_not_there(tmp_path: Path) -> None:
    file = str(tmp_path / "none.json")
    assert message(file) == f"{file} cannot be read: No such file or directory"


def test_baselines_are_no_results(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"schema": "pytest-vramfit/baselines/1"}', encoding="utf-8")
    assert message(str(file)) == (
        f'{file}: schema is "pytest-vramfit/baselines/1", not "pytest-vramfit/results/1"'
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"judged": "yes"}, 'results[0].judged is "yes", not true or false'),
        ({"nodeid": 5}, "results[0].nodeid is 5, not a text"),
        ({"outcome": None}, "results[0].outcome is missing"),
        ({"checks": {}}, "results[0].checks is {}, not a list"),
        ({"checks": [{"name": "steady"}]}, "results[0].checks[0].status is missing"),
        ({"memory": {}}, "results[0].memory.peak_allocated_bytes is missing"),
        ({"time": {"step_ns": [5]}}, "results[0].time.processes is missing"),
        (
            {"time": {"processes": []}},
            "results[0].time.processes is [], not a list of at least one process",
        ),
        (
            {"time": {"processes": [{"step_ns": [5, -5]}]}},
            "results[0].time.processes[0].step_ns[1] is -5, not an integer above 0",
        ),
        ({"environment": {"driver": "1"}}, "results[0].environment.device is missing"),
        (
            {"conditions": {"others_cpu_share": -0.5}},
            "results[0].conditions.others_cpu_share is -0.5, not a number of at least 0",
        ),
        (
            {"conditions": {"throttled_ns": {"power cap": "1"}}},
            'results[0].conditions.throttled_ns.power cap is "1", not a number of at least 0',
        ),
        ({"throttled": "hot"}, 'results[0].throttled is "hot", not a list'),
    ],
)
def test_wrong_value_is_said_with_its_place(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    file = results(tmp_path / "r.json", row(**changes))
    assert message(file) == f"{file}: {says}"


def test_figures_without_an_environment(tmp_path: Path) -> None:
    file = document(tmp_path / "r.json", [row()], None)
    assert message(file).startswith(f"{file}: results[0] is {{")
    assert message(file).endswith("not a row with an environment")


@given(data=st.data())
def test_no_value_anywhere_raises_anything_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("results") / "r.json"
    results(file, row("a", failed=("steady",)), row("b", processes=(), environment=ENVIRONMENT))
    document: Any = json.loads(file.read_text(encoding="utf-8"))
    inner = document
    while True:
        keys = [*inner] if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
            values = [None, True, 0, -1, 2**70, 1.5, "", "x", [], [1], {}, {"a": 1}]
            inner[key] = data.draw(st.sampled_from(values))
            break
        inner = inner[key]
    file.write_text(json.dumps(document), encoding="utf-8")
    said = ""
    try:
        read(file)
    except BaselineError as error:
        said = str(error)
    assert not said or said.startswith(f"{file}: ")


def test_peak_is_that_of_the_row(tmp_path: Path) -> None:
    result = the_one(results(tmp_path / "r.json", row(peak=7 * GIB)))
    assert result.entry is not None
    assert result.entry.peak_allocated_bytes == 7 * GIB
