"""The life of a baseline: missing, recorded, held, slower, heavier, improved, renamed, stale.

One folder goes through it; ratios of time are wide enough for a busy machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inner import HEAD, Ran, run

from pytest_vramfit.baseline import Store

RECORDED = f"""{HEAD}
CASE = {{**TINY, "steps": 2, "step_ratio": 30}}

@pytest.mark.fits_vram(**CASE)
def test_held(): pass

@pytest.mark.fits_vram(**CASE)
def test_slower(): pass

@pytest.mark.fits_vram(**CASE)
def test_heavier(): pass

@pytest.mark.fits_vram(**CASE)
def test_improved(): pass

@pytest.mark.fits_vram(**CASE)
def test_changed(): pass

@pytest.mark.fits_vram(**CASE, alpha=3)
def test_old_name(): pass

@pytest.mark.parametrize("vramfit", [{{"rank": 2}}, {{"rank": 8}}], indirect=True)
@pytest.mark.fits_vram(**CASE)
def test_parametrised(): pass

@pytest.mark.fits_vram(**CASE, max_step="1ns")
def test_too_slow_anyway(): pass

@pytest.mark.fits_vram(**CASE)
def test_body_fails(): assert False

@pytest.mark.fits_vram(**CASE)
def test_teardown_fails(request): request.addfinalizer(lambda: 1 / 0)

@pytest.mark.fits_vram(**CASE)
def test_skips(): pytest.skip("today")

@pytest.mark.xfail
@pytest.mark.fits_vram(**CASE, max_step="1ns")
def test_expected(): pass

@pytest.mark.fits_vram(**{{**CASE, "step_ratio": None}}, gpu_ratio=None, peak_ratio=None)
def test_switched_off(): pass
"""
NAMES = ("held", "slower", "heavier", "improved", "changed", "old_name")
LATER = (
    RECORDED.replace("test_old_name", "test_new_name")
    .replace("@pytest.mark.fits_vram(**CASE)\ndef test_changed", "CHANGED\ndef test_changed")
    .replace("CHANGED", "@pytest.mark.fits_vram(**{**CASE, 'seq': 24}, targets=['q_proj'])")
)

Edit = Callable[[dict[str, Any]], None]


def faster(entry: dict[str, Any]) -> None:
    for process in entry["processes"]:
        process["step_ns"] = [max(1, one // 1000) for one in process["step_ns"]]
    entry["environment"]["torch"] = "2.0.0"


def slower(entry: dict[str, Any]) -> None:
    for process in entry["processes"]:
        process["step_ns"] = [one * 1000 for one in process["step_ns"]]


def lighter(entry: dict[str, Any]) -> None:
    entry["peak_allocated_bytes"] = entry["peak_allocated_bytes"] * 9 // 10


def edit(file: Path, edits: dict[str, Edit]) -> None:
    document = json.loads(file.read_text(encoding="utf-8"))
    for entry in document["entries"]:
        name = entry["nodeid"].partition("::test_")[2]
        if name in edits:
            edits[name](entry)
    file.write_text(json.dumps(document), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("suite")


@pytest.fixture
def in_folder(
    pytester: pytest.Pytester,
    folder: Path,
    kept: dict[object, Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Ran]:
    """Run pytest in the folder of all tests of this module, each command once."""

    def in_folder(name: str, source: str, *arguments: str) -> Ran:
        if name not in kept:
            (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
            (folder / "test_a.py").write_text(source, encoding="utf-8")
            with monkeypatch.context() as patch:
                patch.chdir(folder)
                kept[name] = run(pytester, "--vramfit=cpu", *arguments)
        return kept[name]

    return in_folder


@pytest.fixture
def recorded(in_folder) -> Ran:
    return in_folder("recorded", RECORDED, "--vramfit-update-missing", "--vramfit-json=first.json")


@pytest.fixture
def file(recorded, folder: Path) -> Path:
    (file,) = (folder / ".vramfit").glob("*.json")
    return file


@pytest.fixture
def later(in_folder, file, kept, folder) -> Ran:
    if "later" not in kept:
        edits: dict[str, Edit] = {"slower": faster, "heavier": lighter, "improved": slower}
        edit(file, edits)
    return in_folder("later", LATER, "--vramfit-json=later.json")


def rows(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    return {row["nodeid"].partition("::test_")[2]: row for row in document["results"]}


def checks(row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in row["checks"]}


def test_recorded_in_three_processes(recorded, file, folder) -> None:
    (entries,) = [Store(file.parent).entries]
    by_name = {entry.nodeid.partition("::test_")[2]: entry for entry in entries}
    assert set(by_name) == {*NAMES, "parametrised[rank=2]", "parametrised[rank=8]"}
    assert all(len(entry.processes) == 3 for entry in entries)
    assert all(len(one.step_ns) == 2 for entry in entries for one in entry.processes)
    assert f"recorded 8 baselines of 3 processes each in {file}" in recorded.summary
    row = rows(folder, "first.json")["held"]
    assert [one["step_ns"] for one in row["time"]["processes"]] == [
        list(one.step_ns) for one in by_name["held"].processes
    ]
    assert row["memory"]["peak_allocated_bytes"] == by_name["held"].peak_allocated_bytes


def test_parametrised_cases_have_entries_of_their_own(recorded, file) -> None:
    entries = {entry.nodeid: entry for entry in Store(file.parent).entries}
    two, eight = (entries[f"test_a.py::test_parametrised[rank={rank}]"] for rank in (2, 8))
    assert two.digest != eight.digest
    assert two.peak_allocated_bytes < eight.peak_allocated_bytes


def test_nothing_is_recorded_of_a_failing_test(recorded) -> None:
    assert recorded.word("test_too_slow_anyway") == "FAILED"
    assert "not recorded: test_a.py::test_too_slow_anyway: slower" in recorded.summary
    for name in ("test_body_fails", "test_teardown_fails"):
        assert f"not recorded: test_a.py::{name}: its test did not pass" in recorded.summary
    assert "test_skips" not in "".join(line for line in recorded.summary if "recorded" in line)
    assert "test_expected" not in "".join(line for line in recorded.summary if "recorded" in line)
    assert recorded.status == 1


def test_held(later, folder) -> None:
    assert later.word("test_held") == "PASSED"
    found = checks(rows(folder, "later.json")["held"])
    assert found["step_time"]["status"] == "pass"
    assert found["peak_baseline"]["ratio"] == 1.0
    assert found["gpu_time"]["status"] == "unchecked"


def test_slower_is_confirmed_in_a_fresh_process_and_says_what_differs(later, folder) -> None:
    assert later.cases["test_slower"] == "slower"
    row = rows(folder, "later.json")["slower"]
    step = checks(row)["step_time"]
    low, _ = step["interval"]
    assert step["status"] == "fail"
    assert low > 30
    assert len(row["time"]["processes"]) == 2
    assert "torch 2.0.0 → " in later.text("test_slower")
    assert "times the baseline" in later.text("test_slower")


def test_heavier(later) -> None:
    assert later.cases["test_heavier"] == "heavier"
    assert "1.111 times the baseline" in later.text("test_heavier")


def test_improved_passes_and_asks_to_be_refreshed(later) -> None:
    assert later.word("test_improved") == "PASSED"
    (note,) = [line for line in later.summary if line.startswith("note: test_a.py::test_improved")]
    assert "better than the baseline, which --vramfit-update refreshes" in note


def test_a_changed_config_is_named_and_judged_alone(later, folder) -> None:
    assert later.word("test_changed") == "PASSED"
    found = checks(rows(folder, "later.json")["changed"])
    says = found["peak_baseline"]["says"]
    assert found["peak_baseline"]["status"] == found["step_time"]["status"] == "unchecked"
    assert says.startswith("the config changed since the baseline: seq 16 → 24, targets ")


def test_a_renamed_test_keeps_its_baseline(later, folder) -> None:
    found = checks(rows(folder, "later.json")["new_name"])
    assert found["peak_baseline"]["status"] == "pass"
    assert "baseline of test_a.py::test_old_name, which trains the same" in "\n".join(later.summary)


def test_stale_baselines_are_listed(later) -> None:
    assert "1 stale (no such test any more): test_a.py::test_old_name" in later.summary
    assert "remove them: pytest-vramfit baselines prune" in later.summary


def test_switched_off_checks_are_not_made(later, folder) -> None:
    names = set(checks(rows(folder, "later.json")["switched_off"]))
    assert names.isdisjoint({"step_time", "gpu_time", "peak_baseline"})


def test_update_takes_what_only_differs_from_the_old_baseline(later, in_folder, file) -> None:
    before = {entry.nodeid: entry for entry in Store(file.parent).entries}
    again = in_folder(
        "again", LATER, "--vramfit-update", "-k", "slower or heavier or body_fails", "-n2"
    )
    after = {entry.nodeid: entry for entry in Store(file.parent).entries}
    assert again.word("test_slower") == again.word("test_heavier") == "PASSED"
    changed = {nodeid for nodeid, entry in after.items() if entry != before.get(nodeid)}
    assert changed == {"test_a.py::test_slower", "test_a.py::test_heavier"}
    assert len(after["test_a.py::test_slower"].processes) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:-9], "is not JSON"),
        (lambda text: text.replace("baselines/1", "baselines/2"), "newer"),
        (lambda text: text.replace('"step_ns": [', '"step_ns": [-5, ', 1), "step_ns[0] is -5"),
    ],
)
def test_a_file_that_cannot_be_read_stops_the_run_and_is_left_alone(
    recorded, pytester, file, change, says
) -> None:
    pytester.makepyfile(test_a=RECORDED)
    spoiled = pytester.mkdir(".vramfit") / file.name
    text = change(file.read_text(encoding="utf-8"))
    spoiled.write_text(text, encoding="utf-8")
    ran = run(pytester, "--vramfit=cpu", "--vramfit-update")
    assert ran.status == 4
    assert says in ran.output
    assert str(spoiled) in ran.output
    assert "INTERNALERROR" not in ran.output
    assert spoiled.read_text(encoding="utf-8") == text


REQUIRED = f"""{HEAD}
@pytest.mark.fits_vram(**TINY, require=["step_time"])
def test_by_marker(): pass

@pytest.mark.fits_vram(**TINY)
def test_by_option(): pass
"""


def test_a_required_check_fails_where_it_cannot_be_made(pytester) -> None:
    pytester.makepyfile(REQUIRED)
    ran = run(pytester, "--vramfit=cpu", "--vramfit-require=peak_baseline")
    assert ran.cases == {"test_by_marker": "slower", "test_by_option": "heavier"}
    text = ran.text("test_by_option")
    assert "FAIL  peak baseline      required; no baseline" in text


PAIRED = f"""{HEAD}
@pytest.mark.fits_vram(**TINY, step_ratio=30)
def test_against(): pass

@pytest.mark.fits_vram(**TINY)
def test_ratio(vramfit):
    changed = vramfit.measure(seq=32)
    assert changed.peak_ratio > 1.05
    assert changed.step_ratio > 0
    assert changed.gpu_ratio is None

def test_unmarked(vramfit):
    with pytest.raises(LookupError):
        vramfit.measure(**TINY).peak_ratio
"""


def test_against_another_interpreter(pytester) -> None:
    """The same libraries: the peak is the same, measured in turn."""
    pytester.makepyfile(PAIRED)
    ran = run(pytester, "--vramfit=cpu", f"--vramfit-against={sys.executable}", "--vramfit-json=r")
    assert ran.status == 0, ran.output
    document = json.loads((ran.folder / "r").read_text(encoding="utf-8"))
    row = document["results"][0]
    found = checks(row)
    assert found["peak_baseline"]["ratio"] == 1.0
    assert found["step_time"]["ratio"] > 0
    assert len(row["time"]["processes"]) == 2
    assert row["against"]["peak_allocated_bytes"] == row["memory"]["peak_allocated_bytes"]
    assert "other environment: the same versions of everything" in ran.output


def test_another_interpreter_that_cannot_measure(pytester) -> None:
    broken = pytester.path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    pytester.makepyfile(f"{HEAD}\n@pytest.mark.fits_vram(**TINY)\ndef test_a(): pass\n")
    ran = run(pytester, "--vramfit=cpu", "--vramfit-against=./broken")
    assert ran.word("test_a") == "ERROR"
    assert "in the other environment the worker exited with status 3" in ran.text("test_a")
