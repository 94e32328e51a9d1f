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
    entries: Sequence[Entry],
    files: Sequence[Path],
    refused: Mapping[str, str],
    loaded: Mapping[str, float],
) -> Iterator[str]:
    """How many were recorded where, why others were not (by their outcome), and whose times are
    worth little (by the share of the processors that others took).
    """
    if entries:
        number = f"{len(entries)} baseline" + ("s" if len(entries) > 1 else "")
        processes = min(len(entry.processes) for entry in entries)
        where = ", ".join(str(file) for file in files)
        yield f"recorded {number} of {processes} processes each in {where}"
    for nodeid, share in loaded.items():
        yield f"{nodeid} was recorded while others took {share:.0%} of the CPU; record it again"
    for nodeid, outcome in refused.items():
        yield f"not recorded: {nodeid}: {_WHY.get(outcome, outcome)}"


def stale(nodeids: Sequence[str]) -> Iterator[str]:
    """Which baselines have no test any more."""
    if not nodeids:
        return
    more = f" and {len(nodeids) - _MOST_LISTED} more" if len(nodeids) > _MOST_LISTED else ""
    names = ", ".join(nodeids[:_MOST_LISTED])
    yield f"{len(nodeids)} stale (no such test any more): {names}{more}"
    yield "remove them: pytest-vramfit baselines prune"
