"""One GPU, several processes: each case has it to itself, and what others hold is not its own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pytest_vramfit.gate import Gate
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.measuring import driver
from pytest_vramfit.measuring.nvml import Gpu
from pytest_vramfit.verdict import Case
from pytest_vramfit.worker.client import Worker
from pytest_vramfit.worker.lease import Lease, Party
from pytest_vramfit.worker.protocol import Measured, NotMeasured, Progress, Request

MIB, GIB = 2**20, 2**30
SUITE = """
import pytest

@pytest.mark.parametrize("again", range(4))
@pytest.mark.parametrize(
    "vramfit", [{"seq": 64}, {"seq": 128}], indirect=True, ids=["short", "long"]
)
@pytest.mark.fits_vram(model="tiny", warmup=2, steps=2)
def test_tiny(vramfit, again): pass
"""
OTHER = """
import sys, torch
torch.zeros(1, device="cuda")
print("ready", flush=True)
kept = []
for line in sys.stdin:
    kept.append(torch.ones(int(line), dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    print("took", flush=True)
"""
"""Takes as many bytes as it is told, and keeps them."""


class OtherProcess:
    """Somebody else who uses the GPU, without asking."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._expect("ready")

    def take(self, size_bytes: int) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{size_bytes}\n")
        self._popen.stdin.flush()
        self._expect("took")

    def end(self) -> None:
        self._popen.communicate()

    def _expect(self, word: str) -> None:
        assert self._popen.stdout is not None
        assert self._popen.stdout.readline() == f"{word}\n"


@pytest.fixture
def other() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.end()


@pytest.fixture
def lease() -> Iterator[Lease]:
    """As another pytest on this machine would have it."""
    found = Lease(driver.visible()[0].uuid, Party(family=1, name="process 1 (another pytest)"))
    yield found
    found.give_back()


@pytest.fixture
def worker() -> Iterator[Worker]:
    started = Worker("gpu")
    yield started
    started.stop()


def rows_of(pytester: pytest.Pytester, *options: str) -> dict[str, dict]:
    """The rows of a run of eight small cases, which all must fit."""
    pytester.makepyfile(test_it=SUITE)
    run = pytester.runpytest_subprocess("--gpu", "--vramfit-json=out.json", *options)
    run.assert_outcomes(passed=8)
    rows = json.loads((pytester.path / "out.json").read_text())["results"]
    return {row["nodeid"]: row for row in rows}


def test_four_workers_on_one_gpu(pytester):
    """They wait for each other, and measure what one process measures; none sees another."""
    pytest.importorskip("xdist")
    alone, together = rows_of(pytester), rows_of(pytester, "-n4")
    assert sum("waiting" in row["time"]["stages_ns"] for row in together.values()) >= 3
    for nodeid, row in together.items():
        one = alone[nodeid]
        for name, most in (("peak_allocated_bytes", 0), ("outside_allocator_bytes", 64 * MIB)):
            assert abs(row["memory"][name] - one["memory"][name]) <= most, (nodeid, name)
        assert abs(row["card"]["held_bytes"] - one["card"]["held_bytes"]) <= 64 * MIB


def test_second_pytest_waits_and_says_for_whom(pytester, lease):
    lease.take(lambda _: None)
    pytester.makepyfile(test_it=SUITE)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pytest", "--gpu", "-k", "short-0"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "PY_COLORS": "1"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # Linux's way to say that the other end is closed
            while part := os.read(ours, 4096):
                shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    says = b"waiting for the GPU, which process 1 (another pytest) holds"
    wait_until(lambda: says in shown)
    assert lease.wanted_by().name.startswith(f"process {process.pid} (")
    assert process.poll() is None
    lease.give_back()
    assert process.wait(60) == 0, bytes(shown).decode()
    reader.join()
    os.close(ours)
    assert b"waiting " in shown.partition(b"time in s: ")[2]


def test_idle_worker_leaves_the_gpu_to_who_waits(worker, lease):
    """Its context too; and its own next case is measured all the same."""
    gpu = Gpu(driver.visible()[0].uuid)
    before = gpu.card().used_bytes
    first = measured(worker, model="tiny")
    assert gpu.card().used_bytes > before + 200 * MIB
    lease.take(lambda _: None, 20)
    wait_until(lambda: gpu.card().used_bytes <= before + 32 * MIB)
    lease.give_back()
    assert measured(worker, model="tiny").memory.peak_allocated_bytes == (
        first.memory.peak_allocated_bytes
    )


def test_what_others_held_at_the_start_is_named_and_not_usable(pytester, other):
    other.take(8 * GIB)
    pytester.makepyfile(test_it=SUITE)
    run = pytester.runpytest_subprocess("--gpu", "--vramfit-json=out.json", "-k", "short-0")
    run.assert_outcomes(passed=1, deselected=7)
    (row,) = json.loads((pytester.path / "out.json").read_text())["results"]
    card = row["card"]
    assert 8 * GIB <= card["held_bytes"] <= 9.5 * GIB
    assert card["usable_bytes"] <= card["total_bytes"] - card["held_bytes"]
    assert row["memory"]["outside_allocator_bytes"] < 2 * GIB
    run.stdout.re_match_lines(
        [
            r"vramfit: gpu engine on .* \([89]\.\d GiB held by others\).*",
            r"GPU memory: up to [89]\.\d GiB held by others when a case began.*",
        ]
    )


def judged(
    worker: Worker, other: OtherProcess, stage: str, **keywords: object
) -> Case | NotMeasured:
    """A case of which others take 20 GiB of the GPU, once it has come to this stage."""
    taking: list[threading.Thread] = []

    def on_progress(progress: Progress) -> None:
        begun = progress.stage == stage and (progress.done == 1 or progress.of == 1)
        if begun and not taking:
            taking.append(threading.Thread(target=other.take, args=(20 * GIB,)))
            taking[0].start()

    claim = read_claim([keywords], rootdir=Path())
    case = Gate(engine="gpu", worker=worker).measure("a.py::b", claim, on_progress)
    taking[0].join()
    return case


LONG = {"model": "tiny", "warmup": 2, "steps": 500}
"""Some seconds of timed steps: time enough to take memory."""


def test_what_others_take_without_consequence_is_a_note(worker, other):
    case = judged(worker, other, "timed", **LONG)
    assert isinstance(case, Case), case
    assert case.outcome == "fits"
    change = case.measurement.device.held_change
    assert change is not None
    assert change.when == "in the timed steps"
    assert change.bytes == pytest.approx(20 * GIB, abs=64 * MIB)
    memory = case.measurement.memory
    assert memory is not None
    assert memory.outside_allocator_bytes is not None
    assert memory.outside_allocator_bytes < 2 * GIB


def test_what_others_take_may_decide_the_headroom(worker, other):
    total = Gpu(driver.visible()[0].uuid).card().total_bytes
    headroom = f"{total // GIB - 10}GiB"
    case = judged(worker, other, "timed", **LONG, headroom=headroom)
    assert isinstance(case, NotMeasured), case
    assert case.outcome == "contaminated"
    assert case.says.startswith("others took ")


def test_out_of_memory_after_others_took_some_is_not_the_config_s_failure(worker, other):
    """Of the 224 GiB that it needs it gets at least the first 56, which takes longer."""
    too_large = {"model": "Qwen2.5-14B", "method": "full", "warmup": 2, "steps": 1}
    case = judged(worker, other, "build", **too_large)
    assert isinstance(case, NotMeasured), case
    assert case.outcome == "contaminated"
    assert case.says.startswith("out of memory ")


def test_out_of_memory_with_nobody_else_there_is_the_config_s_failure(worker):
    """What the case itself loads beside its allocator is not taken for others'."""
    reply = measured(worker, model="Qwen2.5-14B", method="full", warmup=2, steps=1)
    assert reply.oom is not None
    assert reply.device.held_change is None


@pytest.mark.parametrize("number", range(4))
def test_each_worker_has_a_gpu_of_its_own_as_far_as_there_are_enough(number, worker, monkeypatch):
    """The one that the worker has is not free, all others are."""
    visible = driver.visible()
    if number >= len(visible):
        pytest.skip(f"there are {len(visible)} GPUs")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
    before = [Gpu(one.uuid).card().used_bytes for one in visible]
    measured(worker, model="tiny")
    grown = [
        Gpu(one.uuid).card().used_bytes - used > 200 * MIB
        for one, used in zip(visible, before, strict=True)
    ]
    assert grown == [index == number for index in range(len(visible))]


def measured(worker: Worker, **keywords: object):
    claim = read_claim([keywords], rootdir=Path())
    request = Request(spec=claim.spec, schedule=claim.schedule)
    reply = worker.measure(request, lambda _: None)
    assert isinstance(reply, Measured), reply
    return reply.measurement


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 50
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
