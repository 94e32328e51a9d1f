"""A GPU belongs to one process of the machine at a time.

There are two lock files a GPU, in the system's folder for temporary files: who has the first has
the GPU, who has the second is next. So the one that has the GPU sees whether somebody waits, and
cannot take it again before that one had it. The operating system releases the locks of a process
that dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LONGEST_WAIT_S = 3600.0
_POLL_S = 0.1
_SAY_AGAIN_S = 1.0


class LeaseTimeoutError(Exception):
    """The GPU did not become free; the message says who holds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Party:
    """Who has a GPU or waits for it."""

    family: int
    """The process that started it: of the workers of one pytest only one works at a time."""
    name: str
    """For people: ``process 1234 (pytest --gpu)``."""


class Lease:
    """The right to use the GPU with this UUID, for as long as this process lives or wants."""

    def __init__(self, uuid: str, me: Party, folder: Path | None = None) -> None:
        folder = folder or Path(tempfile.gettempdir())
        self.me = me
        self._gpu = _Lock(folder / f"pytest-vramfit-{uuid}.lock")
        self._next = _Lock(folder / f"pytest-vramfit-{uuid}-next.lock")

    @property
    def held(self) -> bool:
        """Whether this process has the GPU."""
        return self._gpu.held

    @property
    def holder(self) -> Party | None:
        """Who took the GPU last; None where it has not yet said so."""
        return self._gpu.taken_by()

    def take(self, on_wait: Callable[[str], None], longest_s: float = LONGEST_WAIT_S) -> bool:
        """Have the GPU; whether it had to be waited for. Raises LeaseTimeoutError.

        ``on_wait`` is told who holds it, about once a second.
        """
        if self.held:
            return False
        begin = time.monotonic()
        said = -_SAY_AGAIN_S
        for lock in (self._next, self._gpu):
            while not lock.take(self.me):
                waited = time.monotonic() - begin
                holder = self.holder
                name = "another process" if holder is None else holder.name
                if waited >= longest_s:
                    self._next.give_back()
                    raise LeaseTimeoutError(
                        f"waited {waited:,.0f} s for the GPU, which {name} holds"
                    )
                if waited >= said + _SAY_AGAIN_S:
                    said = waited
                    on_wait(name)
                time.sleep(_POLL_S)
        self._next.give_back()
        return said >= 0

    def wanted_by(self) -> Party | None:
        """Who is next for the GPU that this process has, if anybody waits and has said so."""
        if self._next.take():
            self._next.give_back()
            return None
        return self._next.taken_by()

    def give_back(self) -> None:
        """Let others have the GPU."""
        self._gpu.give_back()


class _Lock:
    """A file of all users of the machine that one process at a time has; it says which.

    Not `filelock`'s: that refuses the files of other users, and may empty a file to lock it.
    """

    _RIGHTS = 0o666
    _LOCKED_BYTE = 2**30
    """On Windows what is locked cannot be read, so it is none of the text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self, me: Party | None = None) -> bool:
        """Take it if nobody has it; say in it who did."""
        descriptor = self._open()
        try:
            self._lock(descriptor)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        if me is not None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.ftruncate(descriptor, os.write(descriptor, json.dumps(asdict(me)).encode()))
        return True

    def give_back(self) -> None:
        """Let others have it, if this process has it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def taken_by(self) -> Party | None:
        """Who took it last; None where it has not yet said so."""
        try:
            return Party(**json.loads(self._path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return None

    def _open(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            # without O_CREAT, which Linux refuses for files of others in a folder of all users
            return os.open(self._path, os.O_RDWR)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, self._RIGHTS)
        if sys.platform != "win32":
            os.fchmod(descriptor, self._RIGHTS)  # whatever the umask
        return descriptor

    def _lock(self, descriptor: int) -> None:
        """Raises OSError where another process has it; ends when the descriptor is closed."""
        if sys.platform == "win32":
            os.lseek(descriptor, self._LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
