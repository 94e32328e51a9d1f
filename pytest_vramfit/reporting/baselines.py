"""What a run says about the baselines it recorded, and those that lost their test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_vramfit.baseline import Entry

_WHY = {
    "fits": "its test did not pass",
    "throttled": "the GPU's clocks were held down from outside",
}
_MOST_LISTED = 5


def recorded(
    entries: Sequence[Entry], files: Sequence[Path], refused: Mapping[str, str]
) -> Iterator[str]:
    """How many were recorded where, and why others were not (by their outcome)."""
    if entries:
        number = f"{len(entries)} baseline" + ("s" if len(entries) > 1 else "")
        processes = min(len(entry.processes) for entry in entries)
        where = ", ".join(str(file) for file in files)
        yield f"recorded {number} of {processes} processes each in {where}"
    for nodeid, outcome in refused.items():
        yield f"not recorded: {nodeid}: {_WHY.get(outcome, outcome)}"


def stale(entries: Sequence[Entry]) -> Iterator[str]:
    """Which baselines have no test any more."""
    if not entries:
        return
    names = ", ".join(entry.nodeid for entry in entries[:_MOST_LISTED])
    more = f" and {len(entries) - _MOST_LISTED} more" if len(entries) > _MOST_LISTED else ""
    yield f"{len(entries)} stale (no such test any more): {names}{more}"
    yield "remove them: pytest-vramfit baselines prune"
