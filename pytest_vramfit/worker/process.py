"""Starting and ending a process with all that it starts: what differs between operating systems.

Seen on Linux. The Windows half was never run on Windows.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

if sys.platform == "win32":
    _APART_ON_WINDOWS = subprocess.CREATE_NEW_PROCESS_GROUP
else:
    _APART_ON_WINDOWS = 0

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_END = 10.0
_LARGEST_STATUS = 255
"""Above it, Windows' exit codes are those of the system, known by their hexadecimal form."""


def start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process with pipes, out of the reach of a Ctrl-C that is meant for this one.

    Raises OSError.
    """
    return subprocess.Popen(  # noqa: S603 (our own program)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        creationflags=_APART_ON_WINDOWS,
    )


def end(popen: subprocess.Popen[bytes]) -> None:
    """End a process that :func:`start` started, and its children, now."""
    if sys.platform == "win32":
        subprocess.run(end_on_windows(popen.pid), capture_output=True, check=False)  # noqa: S603
        popen.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
    # one that hangs in a driver does not even end then: not to be waited for
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(_SECONDS_TO_END)


def end_on_windows(pid: int) -> list[str]:
    """The command that ends a process and its children there."""
    return ["taskkill", "/T", "/F", "/PID", str(pid)]


def end_with_parent() -> None:
    """See to it that this process ends when the one that started it does, whatever this one does.

    For what cannot see that its standard input was closed: code that hangs and does not let
    another thread run, or a fork of the parent that still has the pipe. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def ending(code: int) -> str:
    """What is said of a process that nobody here ended, by its exit code: ``exited with ...``."""
    if code > _LARGEST_STATUS:
        return f"exited with status {code:#010x}"
    if code >= 0:
        return f"exited with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was killed by signal {-code}"
    hint = "; the kernel does that when the machine runs out of memory"
    return f"was killed by {name}{hint if name == 'SIGKILL' else ''}"
