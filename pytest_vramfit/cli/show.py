"""``baselines show``: all that is kept."""

from __future__ import annotations

import argparse

from pytest_vramfit.baseline import Entry, Store
from pytest_vramfit.cli import arguments
from pytest_vramfit.cli.answer import Answer, WrongUseError, table
from pytest_vramfit.reporting import figures

_ENVIRONMENT = ("driver", "torch")
_COLUMNS = ("device", "test", "engine", "peak", "step", "GPU time", "processes", *_ENVIRONMENT)


def add(commands: arguments.Commands) -> None:
    """Register it."""
    parser = arguments.subcommand(commands, "show", _show, "list all baselines")
    arguments.baselines(parser)


def _show(given: argparse.Namespace) -> Answer:
    entries = kept(Store(given.baselines))
    rows = [_COLUMNS, *(_row(entry) for entry in entries)]
    return Answer(
        lines=tuple(table(rows)),
        json={"baselines": [{"device": one.device, **one.to_json()} for one in entries]},
    )


def kept(store: Store) -> list[Entry]:
    """Every entry, in order. Raises WrongUseError where there is none."""
    if not store.entries:
        raise WrongUseError(f"there are no baselines in {store.folder}")
    return sorted(store.entries, key=lambda one: (one.device, *one.key))


def _row(entry: Entry) -> tuple[str, ...]:
    gpu_ns = entry.median_gpu_ns
    return (
        entry.device,
        entry.nodeid,
        entry.engine,
        figures.size(entry.peak_allocated_bytes),
        figures.duration(entry.median_step_ns),
        "--" if gpu_ns is None else figures.milliseconds(gpu_ns),
        str(len(entry.processes)),
        *(entry.environment.get(name, "--") for name in _ENVIRONMENT),
    )
