"""What a run says about baselines it recorded and those that lost their test, to the letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from entries import entry, process, three

from pytest_vramfit.reporting import baselines

FILE, OTHER = Path(".vramfit/nvidia-h200.json"), Path(".vramfit/nvidia-a100.json")


@pytest.mark.parametrize(
    ("number", "files", "line"),
    [
        (1, [FILE], f"recorded 1 baseline of 3 processes each in {FILE}"),
        (2, [FILE, OTHER], f"recorded 2 baselines of 3 processes each in {FILE}, {OTHER}"),
    ],
)
def test_recorded(number: int, files: list[Path], line: str) -> None:
    entries = [entry(f"a.py::{index}") for index in range(number)]
    assert list(baselines.recorded(entries, files, {}, {})) == [line]


def test_processes_are_those_that_each_of_the_recorded_has() -> None:
    """A time that was in doubt was measured more often."""
    entries = [entry("a.py::a", processes=(*three(), process())), entry("a.py::b")]
    (line,) = baselines.recorded(entries, [FILE], {}, {})
    assert " of 3 processes each" in line


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ("fits", "its test did not pass"),
        ("throttled", "the GPU's clocks were held down from outside"),
        ("oom", "oom"),
        ("crashed", "crashed"),
    ],
)
def test_refused(why: str, says: str) -> None:
    """By its outcome, unless that was sound."""
    assert list(baselines.recorded([], [], {"a.py::b[seq=9]": why}, {})) == [
        f"not recorded: a.py::b[seq=9]: {says}"
    ]


def test_refused_ones_come_after_the_recorded_each_on_its_line() -> None:
    refused = {"a.py::b": "oom", "a.py::c": "slower"}
    assert list(baselines.recorded([entry()], [FILE], refused, {})) == [
        f"recorded 1 baseline of 3 processes each in {FILE}",
        "not recorded: a.py::b: oom",
        "not recorded: a.py::c: slower",
    ]


def test_nothing_recorded_is_not_said() -> None:
    assert list(baselines.recorded([], [], {}, {})) == []


@pytest.mark.parametrize(
    ("number", "listed"),
    [
        (1, "a.py::0"),
        (5, "a.py::0, a.py::1, a.py::2, a.py::3, a.py::4"),
        (7, "a.py::0, a.py::1, a.py::2, a.py::3, a.py::4 and 2 more"),
    ],
)
def test_stale(number: int, listed: str) -> None:
    assert list(baselines.stale([f"a.py::{index}" for index in range(number)])) == [
        f"{number} stale (no such test any more): {listed}",
        "remove them: pytest-vramfit baselines prune",
    ]


def test_no_stale_ones_are_not_said() -> None:
    assert list(baselines.stale([])) == []


def test_times_that_are_worth_little() -> None:
    assert list(baselines.recorded([], [], {}, {"a.py::b": 0.587})) == [
        "a.py::b was recorded while others took 59% of the CPU; record it again"
    ]
