"""The last lines of a run: a line a case, what stayed unchecked, what to run next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_vramfit.reporting import figures
from pytest_vramfit.reporting.results import Row

_COLUMNS = ("outcome", "peak", "of card", "step", "tokens/s")


def lines(rows: Sequence[Row], *, command: str) -> Iterator[str]:
    """The summary of all rows; ``command`` is what the user ran, up to the paths."""
    measured = [row for row in rows if row["memory"] or row["outcome"] == "oom"]
    yield from _table(rows)
    unchecked: dict[str, Counter[str]] = {}
    for row in measured:
        for check in row["checks"]:
            if check["status"] == "unchecked":
                unchecked.setdefault(check["says"], Counter())[check["name"]] += 1
    for reason, names in unchecked.items():
        total = sum(names.values())
        yield f"{total} checks unchecked ({reason}): {', '.join(names)}"
    unsupported = [row for row in rows if row["outcome"] == "unsupported"]
    for row in unsupported:
        yield f"unsupported: {row['nodeid']}: {row['says']}"
    yield from _time(measured)
    yield from _next(rows, command)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    cells = [(row["nodeid"], *_cells(row)) for row in rows]
    width = max(len(one[0]) for one in cells)
    yield f"{'case':<{width}}  " + "  ".join(f"{name:>9}" for name in _COLUMNS)
    for nodeid, *values in cells:
        yield f"{nodeid:<{width}}  " + "  ".join(f"{value:>9}" for value in values)


def _cells(row: Row) -> tuple[str, ...]:
    memory, card = row["memory"], row["card"]
    if memory is None:
        return (row["outcome"], "--", "--", "--", "--")
    peak, times = memory["peak_allocated_bytes"], row["time"]
    step_ns = sorted(times["step_ns"])[(len(times["step_ns"]) - 1) // 2]
    return (
        row["outcome"],
        figures.size(peak),
        figures.percent(peak, card["usable_bytes"]),
        figures.duration(step_ns),
        figures.count(times["tokens_per_second"]),
    )


def _time(measured: Sequence[Row]) -> Iterator[str]:
    """Where the measuring time went, over all cases."""
    total: Counter[str] = Counter()
    for row in measured:
        total.update(row["time"]["stages_ns"])
    if total:
        spent = ", ".join(f"{name} {figures.seconds(value)}" for name, value in total.items())
        yield f"time in s: {spent}"


def _next(rows: Sequence[Row], command: str) -> Iterator[str]:
    failed = [row["nodeid"] for row in rows if row.get("judged") and row["outcome"] != "fits"]
    unsupported = [row["nodeid"] for row in rows if row["outcome"] == "unsupported"]
    if failed:
        yield f"again: {command} {_quoted(failed[0])}"
    if unsupported:
        yield f"on a GPU machine: pytest --gpu {_quoted(unsupported[0].partition('::')[0])}"


def _quoted(nodeid: str) -> str:
    return f'"{nodeid}"' if any(sign in nodeid for sign in "[ ") else nodeid
