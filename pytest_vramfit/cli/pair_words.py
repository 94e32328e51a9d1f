"""A comparison in words, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

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
        return
    if pair.old.outcome != pair.new.outcome and not (pair.old.sound and pair.new.sound):
        mark = "FAIL" if pair.worse_outcome else "--"
        yield f"  {mark:<4}  outcome     {pair.old.outcome} → {pair.new.outcome}"
    elif not pair.checks:
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
    if name == "step_time":
        return old.median_step_ns, new.median_step_ns
    if name == "gpu_time":
        return old.median_gpu_ns, new.median_gpu_ns
    return old.peak_allocated_bytes, new.peak_allocated_bytes
