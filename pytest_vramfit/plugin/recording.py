"""The end of a run: baselines that were asked for are recorded, stale ones are listed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_vramfit.plugin.progress import ProgressLine

if TYPE_CHECKING:
    from pytest_vramfit.gate import Gate, Recording
    from pytest_vramfit.measuring.client import OnProgress
    from pytest_vramfit.plugin.options import Settings
    from pytest_vramfit.reporting.results import Row

PROCESSES = 3
"""The least that tell something about the spread between processes."""


class Collected:
    """Which tests were collected, to know the baselines that have no test any more."""

    def __init__(self) -> None:
        self.nodeids: set[str] = set()
        self._files: set[str] = set()

    def add(self, nodeid: str, *, is_case: bool) -> None:
        """Any test that was collected, whether it will run or not."""
        self._files.add(_file(nodeid))
        if is_case:
            self.nodeids.add(nodeid)

    def to_json(self) -> dict[str, list[str]]:
        """For xdist's controller, which collects nothing itself."""
        return {"nodeids": sorted(self.nodeids), "files": sorted(self._files)}

    def add_json(self, values: dict[str, list[str]]) -> None:
        """What a worker of xdist collected."""
        self.nodeids.update(values["nodeids"])
        self._files.update(values["files"])

    def lacks(self, nodeid: str, config: pytest.Config) -> bool:
        """Whether this test would have been collected if it were there."""
        if nodeid in self.nodeids or config.getoption("lf", default=False):
            return False
        file = _file(nodeid)
        if not (config.rootpath / file).exists():
            return True
        in_part = any("::" in one and one.partition("::")[0].endswith(file) for one in config.args)
        return file in self._files and not in_part


def record(
    config: pytest.Config,
    settings: Settings,
    gate: Gate,
    rows: Sequence[Row],
    passed: Collection[str],
) -> tuple[list[str], bool]:
    """Record what was asked for. The lines to print, and whether all of it was recorded.

    ``passed`` are the nodeids of tests that passed; their rows get the samples of all processes.
    """
    from pytest_vramfit.baseline import BaselineError
    from pytest_vramfit.gate import record as measure_on
    from pytest_vramfit.reporting import baselines, results

    assert settings.baselines is not None
    wanted = {row["nodeid"]: row for row in rows if row["judged"] and _is_wanted(row, settings)}
    refused = {nodeid: row for nodeid, row in wanted.items() if nodeid not in passed}
    throttled = {nodeid: row for nodeid, row in wanted.items() if row.get("throttled")}
    why = {nodeid: row["outcome"] for nodeid, row in refused.items()}
    why |= dict.fromkeys(throttled, "throttled")
    recordings = [_recording(row) for nodeid, row in wanted.items() if nodeid not in why]

    def on_case(nodeid: str) -> OnProgress:
        return ProgressLine(config, f", baseline of {nodeid}").show

    try:
        entries, failed = measure_on(gate, recordings, PROCESSES, on_case)
    finally:
        ProgressLine(config).clear()
    try:
        files = settings.baselines.put(entries)
    except (BaselineError, OSError) as error:
        return [f"no baseline was recorded: {error}"], False
    for entry in entries:
        results.add_processes(wanted[entry.nodeid], entry)
    why |= failed
    return list(baselines.recorded(entries, files, why)), not why


def stale(
    config: pytest.Config, settings: Settings, rows: Sequence[Row], collected: Collected
) -> Iterator[str]:
    """A line on the baselines of the devices of this run that have no test any more."""
    from pytest_vramfit.reporting import baselines

    if settings.baselines is None or config.option.collectonly:
        return
    devices = {
        (row["environment"]["device"], row["engine"]) for row in rows if row.get("environment")
    }
    gone = [
        entry
        for entry in settings.baselines.entries
        if (entry.device, entry.engine) in devices and collected.lacks(entry.nodeid, config)
    ]
    yield from baselines.stale(gone)


def _is_wanted(row: Row, settings: Settings) -> bool:
    """Whether a baseline of this case was asked for: it was measured without one in mind."""
    if settings.update == "all":
        return True
    return any("recorded" in check["findings"] for check in row["checks"])


def _recording(row: Row) -> Recording:
    from pytest_vramfit.gate import Recording
    from pytest_vramfit.reporting import results
    from pytest_vramfit.spec import Claim, Limits, Schedule, TrainSpec

    return Recording(
        claim=Claim(
            spec=TrainSpec.from_json(row["spec"]),
            limits=Limits.from_json(row["limits"]),
            schedule=Schedule(**row["schedule"]),
        ),
        entry=results.entry(row),
    )


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
