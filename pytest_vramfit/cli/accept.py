"""``baselines accept``: take what runs elsewhere measured, such as in CI, into the baselines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_vramfit.baseline import ENOUGH_PROCESSES, Entry, Store
from pytest_vramfit.baseline.entry import changed_fields
from pytest_vramfit.cli import arguments
from pytest_vramfit.cli.answer import Answer, WrongUseError
from pytest_vramfit.reporting import figures, results_reader
from pytest_vramfit.reporting.results_reader import Result
from pytest_vramfit.verdict import LOADED_SHARE
from pytest_vramfit.verdict.regression import environment_changes

_Key = tuple[str | None, str, str]


class _RefusedError(Exception):
    """No baseline comes of this; the message says why."""


def add(commands: arguments.Commands) -> None:
    """Register it."""
    parser = arguments.subcommand(
        commands,
        "accept",
        _accept,
        "take the results of runs (--vramfit-json) into the baselines: of each case at least "
        "three processes, over all files",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json")
    arguments.baselines(parser)


def _accept(given: argparse.Namespace) -> Answer:
    cases: dict[_Key, list[Result]] = {}
    for file in given.results:
        for result in results_reader.read(file):
            cases.setdefault((result.device, result.nodeid, result.engine), []).append(result)
    if not cases:
        raise WrongUseError(f"no judged case in {', '.join(map(str, given.results))}")
    store = Store(given.baselines)
    before = {(one.device, *one.key): one for one in store.entries}
    accepted: list[Entry] = []
    refused: list[tuple[_Key, str]] = []
    for key, results in cases.items():
        refused += [(key, reason) for one in results if (reason := _unfit(one))]
        fit = [one for one in results if not _unfit(one)]
        try:
            accepted += [_pooled(fit)] if fit else []
        except _RefusedError as error:
            refused.append((key, str(error)))
    files = store.put(accepted)
    return Answer(
        lines=(
            *(_line(one, before.get((one.device, *one.key))) for one in accepted),
            *(f"wrote {file}" for file in files),
            *(f"refused {_title(*key)}: {reason}" for key, reason in refused),
        ),
        json={
            "accepted": [{"device": one.device, **one.to_json()} for one in accepted],
            "refused": [
                {"device": device, "engine": engine, "nodeid": nodeid, "says": reason}
                for (device, nodeid, engine), reason in refused
            ],
            "files": [str(file) for file in files],
        },
        holds=not refused,
    )


def _unfit(result: Result) -> str:
    """Why this one row cannot be part of a baseline; empty where it can."""
    if not result.sound:
        failed = f" (failed: {', '.join(result.failed)})" if result.failed else ""
        return f"its outcome is {result.outcome}{failed}"
    # sound, so the baseline is the reason why the test of one that does not fit failed
    if result.test == "failed" and result.outcome == "fits":
        return "its test failed"
    if result.test not in {None, "passed", "failed"}:
        return f"its test was {result.test}"
    if result.throttled:
        return f"the GPU's clocks were held down from outside: {', '.join(result.throttled)}"
    others = max((one.others_cpu_share or 0.0 for one in result.conditions), default=0.0)
    if others > LOADED_SHARE:
        return f"other processes took {others:.0%} of the CPU"
    return "" if result.entry else "it has no figures"


def _pooled(results: Sequence[Result]) -> Entry:
    """One entry of all results of a test. Raises _RefusedError."""
    entries = [result.entry for result in results if result.entry]
    first, *others = entries
    for other in others:
        changes = environment_changes(first, other)
        if first.digest != other.digest:
            digests = ("digest", first.digest, other.digest)
            changes = [*(changed_fields(first.spec, other.spec) or [digests]), *changes]
        if changes:
            says = ", ".join(f"{name} {old} and {new}" for name, old, new in changes)
            raise _RefusedError(f"the results differ in {says}")
    # a file that is given twice adds nothing
    processes = tuple(dict.fromkeys(process for one in entries for process in one.processes))
    if len(processes) < ENOUGH_PROCESSES:
        number = "one process" if len(processes) == 1 else "two processes"
        raise _RefusedError(
            f"it has {number}; run with --vramfit-update, which measures three, or give the "
            "results of three runs"
        )
    peak = min(one.peak_allocated_bytes for one in entries)
    return replace(first, processes=processes, peak_allocated_bytes=peak)


def _line(entry: Entry, before: Entry | None) -> str:
    was = f"before: {_figures(before)}" if before else "new"
    return f"accepted {_title(entry.device, *entry.key)}: {_figures(entry)} ({was})"


def _figures(entry: Entry) -> str:
    gpu_ns = entry.median_gpu_ns
    gpu = f", GPU time {figures.milliseconds(gpu_ns)}" if gpu_ns else ""
    peak, step = figures.size(entry.peak_allocated_bytes), figures.duration(entry.median_step_ns)
    return f"peak {peak}, step {step}{gpu} of {len(entry.processes)} processes"


def _title(device: str | None, nodeid: str, engine: str) -> str:
    return f"{nodeid} ({engine}, {device})" if device else f"{nodeid} ({engine})"
