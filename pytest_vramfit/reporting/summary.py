"""The last lines of a run: a line a case, what stayed unchecked, what to run next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_vramfit.measurement import median
from pytest_vramfit.reporting import figures, words
from pytest_vramfit.reporting.results import Row

_COLUMNS = ("outcome", "peak", "of card", "step", "tokens/s")
_GPU_COLUMNS = ("GPU time", "J/10k tokens")


def lines(rows: Sequence[Row], *, command: str, gpu_command: str = "pytest --gpu") -> Iterator[str]:
    """The summary of all rows; ``command`` is what the user ran, up to the paths."""
    measured = [row for row in rows if row["memory"] or row["outcome"] == "oom"]
    yield from _table(rows)
    unchecked: dict[str, Counter[str]] = {}
    for row in measured:
        for check in row["checks"]:
            if check["status"] == "unchecked":
                says = check["says"]
                # the rest of the figures is a case's own: a note tells it
                reason = says if check["ratio"] is None else says.partition("; ")[0]
                unchecked.setdefault(reason, Counter())[check["name"]] += 1
    for reason, names in unchecked.items():
        total = sum(names.values())
        checks = "check" if total == 1 else "checks"
        yield f"{total} {checks} unchecked ({reason}): {', '.join(names)}"
    unsupported = [row for row in rows if row["outcome"] == "unsupported"]
    if unsupported:
        first, number = unsupported[0], len(unsupported)
        such = ", such as" if number > 1 else ":"
        yield f"{number} unsupported{such} {first['nodeid']}: {first['says']}"
    yield from _held(measured)
    yield from _against(measured)
    yield from _notes(measured)
    yield from _time(measured)
    yield from _next(rows, command, gpu_command)


def _table(rows: Sequence[Row]) -> Iterator[str]:
    has_gpu = any(row["engine"] == "gpu" for row in rows)
    columns = (*_COLUMNS, *_GPU_COLUMNS) if has_gpu else _COLUMNS
    cells = [(row["nodeid"], *_cells(row), *_gpu_cells(row))[: len(columns) + 1] for row in rows]
    table = [("case", *columns), *cells]
    first, *widths = (max(map(len, column)) for column in zip(*table, strict=True))
    for nodeid, *cells in table:
        right = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        yield "  ".join([f"{nodeid:<{first}}", *right])


def _cells(row: Row) -> tuple[str, ...]:
    memory, card = row["memory"], row["card"]
    if memory is None:
        return (row["outcome"], "--", "--", "--", "--")
    peak, times = memory["peak_allocated_bytes"], row["time"]
    rate = times["tokens_per_second"]
    return (
        row["outcome"],
        figures.size(peak),
        figures.percent(peak + (memory["outside_allocator_bytes"] or 0), card["usable_bytes"]),
        figures.duration(median(times["step_ns"])) if times["step_ns"] else "--",
        "--" if rate is None else figures.count(rate),
    )


_WORTH_A_NOTE = {
    "improved",
    "other_gpu",
    "renamed",
    "environment_changed",
    "kernels",
    "host_side",
    "unquantised",
    "fragmented",
    "others_changed",
}
"""Findings of a check that passed."""


def _gpu_cells(row: Row) -> tuple[str, ...]:
    times = row["time"] or {}
    gpu_ns, joules = times.get("gpu_ns"), times.get("joules_per_10k_tokens")
    bound = (row.get("conditions") or {}).get("energy_from") == "power limit"
    return (
        figures.milliseconds(median(gpu_ns)) if gpu_ns else "--",
        ("<= " if bound else "") + figures.count(joules) if joules else "--",
    )


def _held(measured: Sequence[Row]) -> Iterator[str]:
    """What the cases could not have, because others had it when they began."""
    most = max((row["card"]["held_bytes"] for row in measured), default=0)
    if text := words.held(most).removeprefix(", "):
        yield f"GPU memory: up to {text} when a case began, and so not usable"


def _notes(measured: Sequence[Row]) -> Iterator[str]:
    """What a check against a baseline has to say that passed or was not decided."""
    for row in measured:
        for check in row["checks"]:
            passed = check["status"] == "pass" and _WORTH_A_NOTE & {*check["findings"]}
            undecided = check["status"] == "unchecked" and check["ratio"] is not None
            if passed or undecided:
                name = words.check_name(check["name"])
                yield f"note: {row['nodeid']}: {name} {check['says']}"


def _against(measured: Sequence[Row]) -> Iterator[str]:
    """How this environment compares with the other one, over all cases."""
    compared = [row for row in measured if row.get("against")]
    if not compared:
        return
    here, there = compared[0]["environment"], compared[0]["against"]["environment"]
    changes = [
        f"{name} {there.get(name, 'none')} there, {here.get(name, 'none')} here"
        for name in {**here, **there}
        if here.get(name) != there.get(name)
    ]
    yield f"other environment: {'; '.join(changes) or 'the same versions of everything'}"
    ratios: dict[str, list[float]] = {}
    for row in compared:
        for check in row["checks"]:
            if check["ratio"] is not None:
                ratios.setdefault(check["name"], []).append(check["ratio"])
    spans = [
        f"{words.check_name(name).removesuffix(' baseline')} {min(found):.3f}"
        + (f" to {max(found):.3f}" if len(found) > 1 else "")
        for name, found in ratios.items()
    ]
    yield f"here, times the other environment's: {', '.join(spans)}"


def _time(measured: Sequence[Row]) -> Iterator[str]:
    """Where the measuring time went, over all cases."""
    total: Counter[str] = Counter()
    for row in measured:
        total.update(row["time"]["stages_ns"])
    if total:
        spent = ", ".join(f"{name} {figures.seconds(value)}" for name, value in total.items())
        yield f"time in s: {spent}"


def _next(rows: Sequence[Row], command: str, gpu_command: str) -> Iterator[str]:
    no_failure = ("fits", "unsupported")
    failed = [row for row in rows if row["judged"] and row["outcome"] not in no_failure]
    elsewhere = [row for row in rows if row["outcome"] == "unsupported" and row["engine"] != "gpu"]
    if failed:
        yield f"again: {command} {_quoted(failed[0]['nodeid'])}"
    if elsewhere:
        file = elsewhere[0]["nodeid"].partition("::")[0]
        yield f"on a GPU machine: {gpu_command} {_quoted(file)}"


def _quoted(nodeid: str) -> str:
    return f'"{nodeid}"' if any(sign in nodeid for sign in "[ ") else nodeid
