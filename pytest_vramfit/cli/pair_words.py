"""A comparison in words, and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any, Literal

from pytest_vramfit.baseline import Entry
from pytest_vramfit.cli.answer import table
from pytest_vramfit.cli.pairs import Pair, Status
from pytest_vramfit.reporting import figures, words
from pytest_vramfit.verdict import Check, Finding

_MARKS = {"pass": "pass", "fail": "FAIL", "unchecked": "--"}
_STATUSES: dict[Status, str] = {
    "pass": "passed",
    "fail": "failed",
    "unchecked": "undecided",
    "changed": "changed and not compared",
    "not_compared": "without figures to compare",
}
_NOTES = {
    "too_noisy": "too noisy: more processes would decide it",
    "host_loaded": "other processes took {0} of the CPU",
    "throttled": "the GPU's clocks were held down from outside: {all}",
    "no_gpu_time": "the new side has no GPU time",
    "no_gpu_time_before": "the old side has no GPU time",
    "improved": "better",
    "host_side": "GPU time {0}: it is the host",
    "kernels": "{0} → {1} kernels",
    "sm_clock": "SM clock {0} MHz",
}
"""Of the findings, but for what stands on top: ``environment_changed``, ``other_gpu``."""


def environment(pairs: Sequence[Pair]) -> list[tuple[str, str, str, int]]:
    """Name, old and new value of what changed, and for how many cases."""
    changes = Counter(change for pair in pairs for change in pair.environment)
    return [(*change, number) for change, number in changes.items()]


def environment_lines(pairs: Sequence[Pair]) -> Iterator[str]:
    """A line a change."""
    compared = sum(1 for pair in pairs if pair.old.entry and pair.new.entry)
    rows = [
        (name, f"{old} → {new}", "" if number == compared else f"({number} of {compared} cases)")
        for name, old, new, number in environment(pairs)
    ]
    yield from table(rows) if rows else ["same environment"] if compared else []
    kinds = {finding.kind for pair in pairs for check in pair.checks for finding in check.findings}
    if "other_gpu" in kinds:
        yield "on another GPU of the same model"


def lines(pair: Pair, limits: dict[str, float | None]) -> Iterator[str]:
    """A line a figure."""
    yield pair.new.nodeid
    if pair.changed:
        fields = ", ".join(f"{name} {old} → {new}" for name, old, new in pair.changed)
        yield f"  --    not compared    {fields}"
    if pair.worse_outcome:
        # the outcome may be the same word: slower than a baseline, and now than it may be at all
        failed = f" (failed: {', '.join(pair.new.failed)})" if pair.new.failed else ""
        yield f"  FAIL  outcome     {pair.old.outcome} → {pair.new.outcome}{failed}"
    elif pair.old.outcome != pair.new.outcome and not (pair.old.sound and pair.new.sound):
        yield f"  --    outcome     {pair.old.outcome} → {pair.new.outcome}"
    elif not pair.checks and not pair.changed:
        yield f"  --    outcome     {pair.new.outcome} on both sides"
    for check in pair.checks:
        kinds = {finding.kind for finding in check.findings}
        if "no_gpu" not in kinds:
            yield _line(check, pair, limits[check.name])


def statuses(pairs: Sequence[Pair]) -> str:
    """``5 cases in both: 3 passed, 2 failed``."""
    counts = Counter(pair.status for pair in pairs)
    listed = ", ".join(f"{counts[one]} {text}" for one, text in _STATUSES.items() if counts[one])
    return f"{len(pairs)} {'case' if len(pairs) == 1 else 'cases'} in both: {listed}"


def to_json(pair: Pair) -> dict[str, Any]:
    """All of a pair."""
    return {
        "device": pair.new.device,
        "engine": pair.new.engine,
        "nodeid": pair.new.nodeid,
        "status": pair.status,
        "outcome": {"old": pair.old.outcome, "new": pair.new.outcome},
        "changed": [{"name": name, "old": old, "new": new} for name, old, new in pair.changed],
        "checks": [
            {
                "name": check.name,
                "status": check.status,
                "old": _figures(check.name, pair)[0],
                "new": _figures(check.name, pair)[1],
                "unit": check.unit,
                "ratio": check.ratio,
                "interval": check.interval,
                "findings": [asdict(finding) for finding in check.findings],
            }
            for check in pair.checks
        ],
    }


def _line(check: Check, pair: Pair, limit: float | None) -> str:
    old, new = _figures(check.name, pair)
    write = figures.mib if check.unit == "bytes" else figures.milliseconds
    figure = f"{write(old)} → {write(new)}" if check.ratio and old and new else ""
    ratio = f"{check.ratio:.3f}" if check.ratio else ""
    if check.interval:
        ratio += " ({:.3f} to {:.3f})".format(*check.interval)
    notes = [] if check.status == "pass" else [f"at most {limit}"] if check.ratio else []
    notes += [_note(one) for one in check.findings if one.kind in _NOTES]
    name = "peak" if check.unit == "bytes" else words.check_name(check.name)
    head = f"  {_MARKS[check.status]:<4}  {name:<10}  {figure:<30}  {ratio:<22}"
    return f"{head}  {'; '.join(notes)}".rstrip()


def _note(finding: Finding) -> str:
    return _NOTES[finding.kind].format(*finding.names, all=", ".join(finding.names))


def _figures(name: str, pair: Pair) -> tuple[int | None, int | None]:
    old, new = pair.old.entry, pair.new.entry
    assert old is not None
    assert new is not None
    if name == "peak_baseline":
        return old.peak_allocated_bytes, new.peak_allocated_bytes
    if name == "step_time":
        return _middle(old, "step_ns"), _middle(new, "step_ns")
    return _middle(old, "gpu_ns"), _middle(new, "gpu_ns")


def _middle(entry: Entry, samples: Literal["step_ns", "gpu_ns"]) -> int | None:
    """What `verdict.ratio` takes the ratio of: one of these by the other is what stands beside."""
    known = [one for process in entry.processes if (one := getattr(process, samples))]
    return round(math.exp(median(math.log(median(one)) for one in known))) if known else None
