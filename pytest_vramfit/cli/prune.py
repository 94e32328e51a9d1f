"""``baselines prune``: drop what no test needs any more."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence

from pytest_vramfit.baseline import Entry, Store
from pytest_vramfit.cli import arguments
from pytest_vramfit.cli.answer import Answer, WrongUseError
from pytest_vramfit.cli.collected import collect
from pytest_vramfit.cli.show import kept


def add(commands: arguments.Commands) -> None:
    """Register it."""
    parser = arguments.subcommand(
        commands,
        "prune",
        _prune,
        "remove the baselines of these tests; without names, of those that are gone by pytest's "
        "collection in this folder",
    )
    parser.add_argument("nodeids", nargs="*", metavar="NODEID")
    arguments.baselines(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed")


def _prune(given: argparse.Namespace) -> Answer:
    store = Store(given.baselines)
    entries = kept(store)
    unknown: list[Entry] = []
    if given.nodeids:
        gone = _named(entries, given.nodeids)
    else:
        gone, unknown = _stale(entries)
    if gone and not given.dry_run:
        store.remove(gone)
    verb = "would remove" if given.dry_run else "removed"
    lines = [f"{verb} {_title(entry)}" for entry in gone]
    lines += [f"kept {_title(entry)}: pytest collects nothing of its file" for entry in unknown]
    lines += [] if gone else ["nothing to remove: pytest collects the test of every other baseline"]
    return Answer(
        lines=tuple(lines),
        json={
            "removed": [_key(one) for one in gone],
            "kept": [_key(one) for one in unknown],
            "dry_run": given.dry_run,
        },
    )


def _named(entries: Sequence[Entry], nodeids: Sequence[str]) -> list[Entry]:
    known = [entry.nodeid for entry in entries]
    for nodeid in nodeids:
        if nodeid not in known:
            near = difflib.get_close_matches(nodeid, known, n=1, cutoff=0)
            raise WrongUseError(f"{nodeid} has no baseline; the nearest is {near[0]}")
    return [entry for entry in entries if entry.nodeid in nodeids]


def _stale(entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Those whose test is gone, and those of which that is not known."""
    collected = collect()
    missing = [entry for entry in entries if entry.nodeid not in collected]
    gone = [entry for entry in missing if collected.knows(entry.nodeid)]
    unknown = [entry for entry in missing if not collected.knows(entry.nodeid)]
    return gone, unknown


def _title(entry: Entry) -> str:
    return f"{entry.nodeid} ({entry.engine}, {entry.device})"


def _key(entry: Entry) -> dict[str, str]:
    return {"device": entry.device, "engine": entry.engine, "nodeid": entry.nodeid}
