"""The files: one a device, in a folder of the user's repository."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_vramfit.baseline.entry import Entry
from pytest_vramfit.baseline.json_reader import BaselineError, Value

SCHEMA = "pytest-vramfit/baselines/1"
_SHORT_LIST = re.compile(r"\[\n\s+(-?[\d.]+(?:,\s+-?[\d.]+)*)\n\s*\]")
"""No text of JSON has a line break, so only lists match."""

Entries = Mapping[tuple[str, str], Entry]


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """The baseline that a case is compared with."""

    entry: Entry
    renamed: bool
    """Whether it was found by what it trains, under another nodeid."""


class Store:
    """All baselines of a folder, read when it is made. Raises BaselineError.

    Where it raises, nothing was touched. A folder that is not there has no baselines.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise BaselineError(f"{folder} is a file, not a folder of baselines")
        self.folder = folder
        self._files = {file: read_file(file) for file in sorted(folder.glob("*.json"))}
        for file, entries in self._files.items():
            for entry in entries.values():
                own = self._file(entry.device)
                if own != file:
                    device = json.dumps(entry.device)
                    raise BaselineError(f"{file}: device is {device}, whose file is {own.name}")

    @property
    def entries(self) -> list[Entry]:
        """Every entry of every device."""
        return [entry for entries in self._files.values() for entry in entries.values()]

    def find(self, *, device: str, engine: str, nodeid: str, digest: str) -> Match | None:
        """The entry of this test; else the only one on this device that trains the same thing."""
        entries = self._files.get(self._file(device), {})
        entry = entries.get((nodeid, engine))
        if entry is not None:
            return Match(entry=entry, renamed=False)
        same = [one for one in entries.values() if (one.engine, one.digest) == (engine, digest)]
        return Match(entry=same[0], renamed=True) if len(same) == 1 else None

    def put(self, new: Iterable[Entry]) -> list[Path]:
        """Write these entries into the files of their devices; the files that were written."""
        by_device: dict[str, list[Entry]] = {}
        for entry in new:
            by_device.setdefault(entry.device, []).append(entry)
        written = []
        for device, entries in by_device.items():
            added = {entry.key: entry for entry in entries}
            file = self._file(device)
            self._rewrite(file, device, lambda old, added=added: {**old, **added})  # type: ignore[misc]
            written.append(file)
        return written

    def remove(self, gone: Iterable[Entry]) -> None:
        """Take these entries out of the files of their devices."""
        keys: dict[str, set[tuple[str, str]]] = {}
        for entry in gone:
            keys.setdefault(entry.device, set()).add(entry.key)
        for device, dropped in keys.items():
            self._rewrite(
                self._file(device),
                device,
                lambda old, dropped=dropped: {  # type: ignore[misc]
                    key: entry for key, entry in old.items() if key not in dropped
                },
            )

    def _file(self, device: str) -> Path:
        """``nvidia-h200.json``."""
        return self.folder / f"{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}.json"

    def _rewrite(self, file: Path, device: str, change: Callable[[Entries], Entries]) -> None:
        """Change a file as it is by now, whole or not at all. Raises BaselineError, OSError."""
        from filelock import FileLock  # noqa: PLC0415 (a dependency of torch; only who writes needs it)

        file.parent.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
        # not beside the file: it would have to be kept out of the user's repository
        with FileLock(Path(tempfile.gettempdir()) / f"pytest-vramfit-{name}.lock"):
            old = read_file(file) if file.exists() else {}
            entries = change(old)
            temporary = file.with_name(f"{file.name}.{os.getpid()}")
            try:
                temporary.write_text(_text(device, entries.values()), encoding="utf-8")
                temporary.replace(file)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._files[file] = dict(entries)


def read_file(file: Path) -> dict[tuple[str, str], Entry]:
    """The entries of one file by their keys. Raises BaselineError."""
    value = Value.of_file(file)
    value.expect_schema(SCHEMA)
    device = value["device"].text()
    entries: dict[tuple[str, str], Entry] = {}
    for one in value["entries"]:
        entry = Entry.read(one, device)
        if entry.key in entries:
            raise one["nodeid"].error("another test than that of an entry before it")
        entries[entry.key] = entry
    return entries


def _text(device: str, entries: Iterable[Entry]) -> str:
    """Made to be read in a diff: sorted, a line a value, samples on one line."""
    ordered = sorted(entries, key=lambda entry: entry.key)
    document = {
        "schema": SCHEMA,
        "device": device,
        "entries": [entry.to_json() for entry in ordered],
    }
    text = json.dumps(document, indent=1, sort_keys=False, ensure_ascii=False)
    return _SHORT_LIST.sub(_on_one_line, text) + "\n"


def _on_one_line(numbers: re.Match[str]) -> str:
    return f"[{' '.join(numbers[1].split())}]"
