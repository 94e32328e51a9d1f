"""The files: one a device, in a folder of the user's repository."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_vramfit.baseline.entry import Entry
from pytest_vramfit.baseline.json_reader import BaselineError, Value

SCHEMA = "pytest-vramfit/baselines/1"
_SHORT_LIST = re.compile(r"\[\n\s+(-?[\d.]+(?:,\s+-?[\d.]+)*)\n\s*\]")
"""No text of JSON has a line break, so only lists match."""

_PATIENCE_S = 60
"""For another process that writes; a file takes it a part of a second."""

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
        self._devices: dict[str, Entries] = {}
        files: dict[str, Path] = {}
        for file in sorted(folder.glob("*.json")):
            if file.is_fifo():  # to open it would wait for whoever writes into it
                raise BaselineError(f"{file} cannot be read: Is a named pipe")
            device, self._devices[device] = self._read(file)
            other = files.setdefault(device, file)
            if other != file:
                raise _misplaced(file, device, other)

    @property
    def entries(self) -> list[Entry]:
        """Every entry of every device."""
        return [entry for entries in self._devices.values() for entry in entries.values()]

    def find(self, *, device: str, engine: str, nodeid: str, digest: str) -> Match | None:
        """The entry of this test; else the only one on this device that trains the same thing."""
        entries = self._devices.get(device, {})
        entry = entries.get((nodeid, engine))
        if entry is not None:
            return Match(entry=entry, renamed=False)
        same = [one for one in entries.values() if (one.engine, one.digest) == (engine, digest)]
        return Match(entry=same[0], renamed=True) if len(same) == 1 else None

    def put(self, new: Iterable[Entry]) -> list[Path]:
        """Write these entries into the files of their devices; the files that were written."""
        by_device: dict[str, list[Entry]] = {}
        for entry in new:
            _expect_writable(entry)
            by_device.setdefault(entry.device, []).append(entry)
        written = []
        for device, entries in by_device.items():
            added = {entry.key: entry for entry in entries}
            written.append(self._rewrite(device, lambda old, added=added: {**old, **added}))  # type: ignore[misc]
        return written

    def remove(self, gone: Iterable[Entry]) -> None:
        """Take these entries out of the files of their devices."""
        keys: dict[str, set[tuple[str, str]]] = {}
        for entry in gone:
            keys.setdefault(entry.device, set()).add(entry.key)
        for device, dropped in keys.items():
            self._rewrite(
                device,
                lambda old, dropped=dropped: {  # type: ignore[misc]
                    key: entry for key, entry in old.items() if key not in dropped
                },
            )

    def _names(self, device: str) -> tuple[Path, Path]:
        """``nvidia-h200.json``; the second where another device has the first."""
        words = re.findall("[a-z0-9]+", device.lower())
        digest = hashlib.sha256(device.encode()).hexdigest()[:8]
        second = self.folder / f"{'-'.join([*words, digest])}.json"
        return (self.folder / f"{'-'.join(words)}.json" if words else second), second

    def _read(self, file: Path) -> tuple[str, Entries]:
        """Device and entries of a file that has one of the device's names. Raises BaselineError."""
        device, entries = _read(file)
        names = self._names(device)
        if file not in names:
            raise _misplaced(file, device, names[0])
        return device, entries

    def _now(self, device: str) -> tuple[Path, Entries]:
        """The file of a device, which may not be there yet, and its entries by now."""
        names = self._names(device)
        for file in names:
            if file.exists():
                of, entries = self._read(file)
                if of == device:
                    return file, entries
        return next((file for file in names if not file.exists()), names[1]), {}

    def _rewrite(self, device: str, change: Callable[[Entries], Entries]) -> Path:
        """Change the file of a device as it is by now, whole or not at all; the file.

        Raises BaselineError, OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self._names(device)[0]):
            file, old = self._now(device)
            entries = change(old)
            target = file.resolve()  # a link stays one
            temporary = target.with_name(f"{target.name}.{os.getpid()}")
            try:
                temporary.write_text(_text(device, entries.values()), encoding="utf-8")
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            self._devices[device] = entries
        return file


def read_file(file: Path) -> Entries:
    """The entries of one file by their keys. Raises BaselineError."""
    return _read(file)[1]


def _read(file: Path) -> tuple[str, Entries]:
    value = Value.of_file(file)
    value.expect_schema(SCHEMA)
    device = value["device"].text()
    entries: dict[tuple[str, str], Entry] = {}
    for one in value["entries"]:
        entry = Entry.read(one, device)
        if entry.key in entries:
            raise one["nodeid"].error("another test than that of an entry before it")
        entries[entry.key] = entry
    return device, entries


def _misplaced(file: Path, device: str, own: Path) -> BaselineError:
    return BaselineError(f"{file}: device is {json.dumps(device)}, whose file is {own.name}")


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep other processes of this user from writing the file. Raises BaselineError."""
    from filelock import FileLock, Timeout  # noqa: PLC0415 (a dependency of torch; only who writes needs it)

    name = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]
    user = os.getuid() if hasattr(os, "getuid") else ""  # a lock of another user cannot be opened
    # not beside the file: it would have to be kept out of the user's repository
    # never removed: who waits for it would get it while another makes and gets a new one
    path = Path(tempfile.gettempdir()) / f"pytest-vramfit-{user}-{name}.lock"
    lock = FileLock(path, timeout=_PATIENCE_S)
    try:
        lock.acquire()
    except Timeout as error:
        raise BaselineError(f"another process holds {path}, the lock of {file}") from error
    try:
        yield
    finally:
        lock.release()


def _expect_writable(entry: Entry) -> None:
    """Raise BaselineError for half of a surrogate pair, which UTF-8 does not have."""
    try:
        _text(entry.device, [entry]).encode()
    except UnicodeEncodeError as error:
        nodeid = json.dumps(entry.nodeid)
        raise BaselineError(f"the baseline of {nodeid} is not text that can be written") from error


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
