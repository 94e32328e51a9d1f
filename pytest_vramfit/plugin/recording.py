"""The end of a run: baselines that were asked for are recorded, stale ones are listed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_vramfit.plugin import items
from pytest_vramfit.plugin.progress import ProgressLine

if TYPE_CHECKING:
    from pytest_vramfit.gate import Gate
    from pytest_vramfit.plugin.options import Settings
    from pytest_vramfit.recording import Recording
    from pytest_vramfit.reporting.results import Row
    from pytest_vramfit.worker.client import OnProgress

T = TypeVar("T")


def _lost(nodeids: Iterable[str], collected: Collection[str], config: pytest.Config) -> set[str]:
    """Those that would have been collected if their tests were there."""
    if config.getoption("lf", default=False) or any("::" in one for one in config.args):
        return set()  # only a part of the tests was collected
    known, files = {*collected}, {_file(one) for one in collected}
    return {
        one
        for one in nodeids
        if one not in known and (_file(one) in files or not (config.rootpath / _file(one)).exists())
    }


def record(
    config: pytest.Config, settings: Settings, gate: Gate, rows: Sequence[Row]
) -> tuple[list[str], bool]:
    """Record what was asked for. The lines to print, and whether all of it was recorded.

    The rows of what is recorded get the samples of all processes.
    """
    from pytest_vramfit.baseline import ENOUGH_PROCESSES, BaselineError
    from pytest_vramfit.recording import record as measure_on
    from pytest_vramfit.reporting import baselines, results

    assert settings.baselines is not None
    wanted = {row["nodeid"]: row for row in rows if row["judged"] and _is_wanted(row, settings)}
    why = {nodeid: row["outcome"] for nodeid, row in wanted.items() if row["test"] != "passed"}
    why |= {nodeid: "throttled" for nodeid, row in wanted.items() if row.get("throttled")}
    # what ran beside others of this run says little about a process that has the machine
    together = config.getoption("dist", default="no") != "no"
    recordings = [
        _recording(row, measured=not together)
        for nodeid, row in wanted.items()
        if nodeid not in why
    ]

    def on_case(nodeid: str) -> OnProgress:
        return ProgressLine(config, f", baseline of {nodeid}").show

    try:
        recorded = measure_on(gate, recordings, ENOUGH_PROCESSES, on_case)
    finally:
        ProgressLine(config).clear()
    try:
        files = settings.baselines.put(recorded.entries)
    except (BaselineError, OSError) as error:
        return [f"no baseline was recorded: {error}"], False
    for entry in recorded.entries:
        results.add_processes(wanted[entry.nodeid], entry)
    why |= recorded.refused

    def shown(values: Mapping[str, T]) -> dict[str, T]:
        return {items.as_argument(nodeid, config): value for nodeid, value in values.items()}

    lines = baselines.recorded(recorded.entries, files, shown(why), shown(recorded.loaded))
    return list(lines), not why


def stale(
    config: pytest.Config, settings: Settings, rows: Sequence[Row], collected: Collection[str]
) -> Iterator[str]:
    """A line on the baselines of the devices of this run that have no test any more."""
    from pytest_vramfit.reporting import baselines

    if settings.baselines is None or config.option.collectonly:
        return
    devices = {
        (row["environment"]["device"], row["engine"]) for row in rows if row.get("environment")
    }
    nodeids = [
        entry.nodeid
        for entry in settings.baselines.entries
        if (entry.device, entry.engine) in devices
    ]
    lost = _lost(nodeids, collected, config)
    gone = [items.as_argument(nodeid, config) for nodeid in nodeids if nodeid in lost]
    yield from baselines.stale(gone)


def _is_wanted(row: Row, settings: Settings) -> bool:
    """Whether a baseline of this case was asked for: it was measured without one in mind.

    Not of a test that was skipped or failed as it was expected to.
    """
    if row["test"] == "skipped":
        return False
    if settings.update == "all":
        return True
    return any("recorded" in check["findings"] for check in row["checks"])


def _recording(row: Row, *, measured: bool) -> Recording:
    """The row's case, with the process it was measured in, unless that does not count."""
    from pytest_vramfit.recording import Recording
    from pytest_vramfit.reporting import results
    from pytest_vramfit.spec import Claim, Limits, Schedule, TrainSpec

    entry = results.entry(row)
    return Recording(
        claim=Claim(
            spec=TrainSpec.from_json(row["spec"]),
            limits=Limits.from_json(row["limits"]),
            schedule=Schedule(**row["schedule"]),
        ),
        entry=entry if measured else replace(entry, processes=()),
    )


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]
