"""The tests that pytest collects in the current folder, by its own word."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_vramfit.cli.answer import WrongUseError

# whatever the user's ini file adds: one nodeid a line, nothing selected, and what was skipped
_ARGUMENTS = ("--collect-only", "--verbosity=-1", "-m", "", "-k", "", "-rs", "--color=no")
_TOTAL = re.compile(r"^(\d+)(/\d+)? tests? collected", re.MULTILINE)
_NOTHING_COLLECTED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What a collection found."""

    nodeids: frozenset[str]
    skipped: bool
    """Whether a whole file was skipped, so that its tests are not known."""


def collect() -> Collected:
    """Run pytest's collection. Raises WrongUseError where it does not tell all tests."""
    command = [sys.executable, "-m", "pytest", *_ARGUMENTS]
    run = subprocess.run(  # noqa: S603
        command, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if run.returncode == _NOTHING_COLLECTED:
        raise WrongUseError("pytest collects no test in this folder; run this where the tests are")
    if run.returncode != 0:
        said = (run.stdout + run.stderr).strip()
        raise WrongUseError(f"pytest cannot collect the tests, so none is gone for sure:\n{said}")
    total = _TOTAL.search(run.stdout)
    nodeids = list(_nodeids(run.stdout))
    if total is None or int(total[1]) != len(nodeids):
        raise WrongUseError(
            f"pytest's list of tests cannot be read; name the tests to prune:\n{run.stdout.strip()}"
        )
    if total[2]:
        raise WrongUseError(
            "pytest's settings here deselect tests, which are not gone; name the tests to prune"
        )
    elsewhere = next((one for one in nodeids if not file_of(one).exists()), None)
    if elsewhere is not None:
        raise WrongUseError(
            f"{elsewhere} is named from another folder; run this in pytest's rootdir"
        )
    return Collected(nodeids=frozenset(nodeids), skipped="\nSKIPPED " in run.stdout)


def file_of(nodeid: str) -> Path:
    """The file of a test."""
    return Path(nodeid.partition("::")[0])


def _nodeids(output: str) -> Iterator[str]:
    """The lines up to the first that is empty."""
    for line in output.split("\n"):
        if not line:
            return
        if "::" in line:
            yield line
