"""A process with its children, from its start to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_vramfit.worker import process

PARENT_OF_ONE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def start(code: str) -> subprocess.Popen[bytes]:
    return process.start([sys.executable, "-c", code], os.environ)


def close(popen: subprocess.Popen[bytes]) -> None:
    for pipe in (popen.stdin, popen.stdout, popen.stderr):
        assert pipe is not None
        pipe.close()


def ends(pid: int) -> bool:
    """Whether the process is gone, or a zombie that nobody asked for, within seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_children_end_with_it() -> None:
    popen = start(PARENT_OF_ONE)
    assert popen.stdout is not None
    child = int(popen.stdout.readline())
    process.end(popen)
    close(popen)
    assert popen.returncode == -signal.SIGKILL
    assert ends(child)


def test_ending_twice_is_no_error() -> None:
    popen = start("")
    popen.wait()
    process.end(popen)
    process.end(popen)
    close(popen)
    assert popen.returncode == 0


@posix
def test_one_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in a driver."""
    popen = start("import time; time.sleep(60)")
    with monkeypatch.context() as patch:
        patch.setattr(process.os, "killpg", lambda *_: None)
        patch.setattr(process, "_SECONDS_TO_END", 0.1)
        process.end(popen)
    assert popen.poll() is None
    process.end(popen)
    close(popen)


@posix
def test_it_is_in_a_group_of_its_own() -> None:
    """Ctrl-C at the terminal reaches pytest's group."""
    popen = start("import os; print(os.getpgid(0) == os.getpid() != os.getppid())")
    assert popen.stdout is not None
    assert popen.stdout.read().split() == [b"True"]
    process.end(popen)
    close(popen)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        pytest.param(
            -9,
            "was killed by SIGKILL; the kernel does that when the machine runs out of memory",
            marks=posix,
        ),
        (-50, "was killed by signal 50"),
        # an access violation on Windows
        (3221225477, "exited with status 0xc0000005"),
    ],
)
def test_ending_in_words(code: int, says: str) -> None:
    assert process.ending(code) == says


def test_on_windows_children_are_ended_by_the_systems_own_command() -> None:
    assert process.end_on_windows(1234) == ["taskkill", "/T", "/F", "/PID", "1234"]
