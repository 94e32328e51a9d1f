"""The main figures of a case as properties of its JUnit test case."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_vramfit.reporting.results import Row

_FIGURES = {
    "memory": (
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "first_step_peak_allocated_bytes",
        "outside_allocator_bytes",
    ),
    "time": ("tokens_per_second", "seconds_per_10k_tokens", "joules_per_10k_tokens"),
}


def properties(row: Row) -> Iterator[tuple[str, object]]:
    """Name and value; a figure that was not measured has no property."""
    for name in ("outcome", "engine", "digest"):
        yield f"vramfit_{name}", row[name]
    for part, names in _FIGURES.items():
        for name in names:
            value = (row[part] or {}).get(name)
            if value is not None:
                yield f"vramfit_{name}", value
