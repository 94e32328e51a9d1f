"""One process of the machine has a GPU; the others wait, and see for whom. With real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_vramfit.worker.lease import Lease, LeaseTimeoutError, Party

UUID = "01234567-89ab"
ME = Party(family=1, name="process 1 (pytest --gpu)")
THEM = Party(family=2, name="process 2 (pytest --gpu -n 4)")
PROGRAM = """
import json, sys, time
from pathlib import Path
from pytest_vramfit.worker.lease import Lease, Party

_, folder, party, turns = sys.argv
lease = Lease("01234567-89ab", Party(**json.loads(party)), Path(folder))
for _ in range(int(turns)):
    lease.take(lambda holder: print("waits for", holder, flush=True), longest_s=60)
    print("took", time.monotonic(), flush=True)
    if turns == "1":
        sys.stdin.read()
    time.sleep(0.3)
    print("gave", time.monotonic(), flush=True)
    lease.give_back()
"""


class Process:
    """Another process: takes the GPU and holds it, or takes it several times in turns."""

    def __init__(self, folder: Path, party: Party = THEM, turns: int = 1) -> None:
        self.lines: list[str] = []
        self._popen = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), json.dumps(asdict(party)), str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.lines.append(line.strip())

    def says(self, begin: str) -> bool:
        return any(line.startswith(begin) for line in self.lines)

    def kill(self) -> None:
        self._popen.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Let it come to its end."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.wait(timeout=60)
        self._reader.join()
        self._popen.stdout.close()


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    own = Lease(UUID, ME, tmp_path)
    yield own
    own.give_back()


@pytest.fixture
def them(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.kill()


def nobody(holder: str) -> None:
    pytest.fail(f"waited for {holder}")


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_free_gpu_is_taken_at_once(lease: Lease) -> None:
    assert lease.take(nobody) is False
    assert lease.held
    assert lease.wanted_by() is None
    assert lease.take(nobody) is False


def test_gpus_are_taken_one_by_one(lease: Lease, tmp_path: Path) -> None:
    lease.take(nobody)
    other = Lease("another", THEM, tmp_path)
    other.take(nobody)
    assert other.held


def test_the_holder_is_named_while_it_is_waited_for(lease: Lease, them: Process) -> None:
    wait_until(lambda: them.says("took"))
    holders: list[str] = []
    with pytest.raises(LeaseTimeoutError) as error:
        lease.take(holders.append, longest_s=2.5)
    assert holders == [THEM.name] * 3
    assert re.fullmatch(
        rf"waited 3 s for the GPU, which {re.escape(THEM.name)} holds", str(error.value)
    )
    assert not lease.held


def test_a_killed_process_holds_nothing(lease: Lease, them: Process) -> None:
    wait_until(lambda: them.says("took"))
    threading.Timer(0.5, them.kill).start()
    assert lease.take(lambda _: None, longest_s=30) is True
    assert lease.holder == ME


def test_who_waits_is_seen_and_gets_it(lease: Lease, tmp_path: Path) -> None:
    lease.take(nobody)
    them = Process(tmp_path)
    wait_until(lambda: them.says(f"waits for {ME.name}"))
    assert lease.wanted_by() == THEM
    assert not them.says("took")
    lease.give_back()
    wait_until(lambda: them.says("took"))
    assert lease.holder == THEM
    them.kill()


def test_a_killed_waiter_waits_no_more(lease: Lease, tmp_path: Path) -> None:
    lease.take(nobody)
    them = Process(tmp_path)
    wait_until(lease.wanted_by)
    them.kill()
    assert lease.wanted_by() is None


def test_who_waits_goes_before_who_had_it(lease: Lease, tmp_path: Path) -> None:
    lease.take(nobody)
    them = Process(tmp_path)
    wait_until(lease.wanted_by)
    lease.give_back()
    with pytest.raises(LeaseTimeoutError):
        lease.take(lambda _: None, longest_s=1)
    assert them.says("took")
    them.kill()


def test_four_processes_take_turns(tmp_path: Path) -> None:
    """None has it while another does, and all have had it before one is through."""
    processes = [Process(tmp_path, Party(family=n, name=f"{n}"), turns=4) for n in range(4)]
    for one in processes:
        one.end()
    times = [
        sorted(float(line.split()[1]) for line in one.lines if line.startswith(("took", "gave")))
        for one in processes
    ]
    turns = sorted(
        (took, gave) for one in times for took, gave in zip(one[::2], one[1::2], strict=True)
    )
    assert len(turns) == 16
    assert all(gave <= took for (_, gave), (took, _) in pairwise(turns))
    assert max(one[0] for one in times) < min(one[-1] for one in times)


@pytest.mark.skipif(os.name == "nt", reason="rights of files are POSIX's")
def test_files_are_everybody_s_whatever_the_umask(lease: Lease, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lease.take(nobody)
    finally:
        os.umask(before)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666}


def test_a_holder_that_has_not_said_who_it_is(lease: Lease, them: Process, tmp_path: Path) -> None:
    wait_until(lambda: them.says("took"))
    for file in tmp_path.iterdir():
        file.write_text("")
    holders: list[str] = []
    with pytest.raises(LeaseTimeoutError, match="which another process holds"):
        lease.take(holders.append, longest_s=0.2)
    assert holders == ["another process"]
