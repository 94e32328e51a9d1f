"""The tests that pytest collects in the current folder, by its own word."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_vramfit.cli import listing
from pytest_vramfit.cli.answer import WrongUseError

_ARGUMENTS = ("-p", listing.__name__, "--collect-only", "--verbosity=-1", "--color=no")
_NOTHING_SELECTED = 5


class Collected:
    """What a collection in the rootdir, which is the current folder, found."""

    def __init__(self, nodeids: Iterable[str]) -> None:
        self._nodeids = frozenset(nodeids)

    def __contains__(self, nodeid: str) -> bool:
        """Whether this test was collected."""
        return nodeid in self._nodeids

    def knows(self, nodeid: str) -> bool:
        """Whether this test would have been collected if it were there.

        A file that is there may be ignored, skipped, or lie outside of what is collected here.
        """
        file = _file(nodeid)
        return file in self._files or not Path(file).exists()

    @cached_property
    def _files(self) -> frozenset[str]:
        return frozenset(map(_file, self._nodeids))


def collect() -> Collected:
    """Run pytest's collection. Raises WrongUseError where it does not tell what is gone.

    It is the one that the user's settings make: without their options, which tests may be
    parametrized by, or in folders that they leave out, other tests would be collected.
    """
    found = _run()
    if not Path(found["rootdir"]).samefile("."):
        raise WrongUseError(f"pytest's rootdir here is {found['rootdir']}; run this there")
    part = next((one for one in found["arguments"] if "::" in one), None)
    part = "--lf" if found["last_failed"] else part
    if part is not None:
        raise WrongUseError(
            f"pytest's settings here collect a part of a file only, by {part}; "
            "name the tests to prune"
        )
    if not found["nodeids"]:
        raise WrongUseError("pytest collects no test in this folder; run this where the tests are")
    return Collected(found["nodeids"])


def _run() -> dict[str, Any]:
    """What `listing` wrote. Raises WrongUseError where pytest fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "listing.json"
        command = [sys.executable, "-m", "pytest", *_ARGUMENTS, f"{listing.OPTION}={file}"]
        run = subprocess.run(  # noqa: S603
            command, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        if run.returncode not in {0, _NOTHING_SELECTED} or not file.exists():
            said = (run.stdout + run.stderr).strip()
            raise WrongUseError(
                f"pytest cannot collect the tests, so none is gone for sure:\n{said}"
            )
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
