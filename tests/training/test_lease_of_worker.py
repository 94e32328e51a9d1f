"""The worker and the lease of its GPU, which here is the CPU."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pytest_vramfit.measuring import cuda
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.measuring.driver import Visible
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.worker import server
from pytest_vramfit.worker.lease import Lease, Party
from pytest_vramfit.worker.protocol import Measured, Message, NotMeasured, Progress, Request

GPU = Visible(index=0, uuid="01234567", name="CPU")
KIN = Party(family=os.getppid(), name="the other worker of this pytest")
FOREIGN = Party(family=1, name="process 1 (pytest --gpu)")


class Waiting:
    """Somebody who waits for the GPU until it is his."""

    def __init__(self, folder: Path, party: Party) -> None:
        self.lease = Lease(GPU.uuid, party, folder)
        self._thread = threading.Thread(target=self.lease.take, args=(lambda _: None, 60))
        self._thread.start()
        time.sleep(0.3)

    def has_it(self) -> bool:
        self._thread.join(1)
        return self.lease.held

    def end(self) -> None:
        self._thread.join()
        self.lease.give_back()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def said() -> list[Message]:
    return []


@pytest.fixture
def it(
    folder: Path, said: list[Message], monkeypatch: pytest.MonkeyPatch
) -> Iterator[server._Worker]:
    """A worker that takes the CPU for a GPU."""
    monkeypatch.setattr(cuda, "choose", lambda _: GPU)
    monkeypatch.setattr(cuda, "CudaBench", lambda _, after_others: CpuBench())
    one = server._Worker("gpu", said.append)
    yield one
    if one._lease is not None:
        one._lease.give_back()


@pytest.fixture
def request_(spec_of: Callable[..., TrainSpec]) -> Request:
    return Request(spec=spec_of(), schedule=Schedule(warmup=2, steps=1))


def test_keeps_the_gpu_while_nobody_wants_it(it: server._Worker, request_: Request) -> None:
    for _ in range(2):
        reply = it.answer(request_)
        assert isinstance(reply, Measured)
        assert reply.clean
        assert "waiting" not in reply.measurement.stages_ns
    assert it._lease is not None
    assert it._lease.held
    assert not it.in_the_way()


def test_ends_after_the_case_where_another_pytest_waits(
    it: server._Worker, request_: Request, folder: Path
) -> None:
    """Its context must leave the GPU with it, so it has the GPU until then."""
    it.answer(request_)
    other = Waiting(folder, FOREIGN)
    reply = it.answer(request_)
    assert isinstance(reply, Measured)
    assert not reply.clean
    assert it.in_the_way()
    assert not other.has_it()
    assert it._lease is not None
    it._lease.give_back()
    other.end()


def test_passes_the_gpu_on_to_the_other_worker_of_its_pytest(
    it: server._Worker, request_: Request, folder: Path
) -> None:
    it.answer(request_)
    other = Waiting(folder, KIN)
    assert not it.in_the_way()
    assert other.has_it()
    assert not it.in_the_way()
    threading.Timer(0.5, other.end).start()
    reply = it.answer(request_)
    assert isinstance(reply, Measured)
    assert reply.clean
    assert reply.measurement.stages_ns["waiting"] > 0


def test_ends_where_another_pytest_has_what_it_passed_on(
    it: server._Worker, request_: Request, folder: Path
) -> None:
    it.answer(request_)
    kin = Waiting(folder, KIN)
    it.in_the_way()
    assert kin.has_it()
    other = Waiting(folder, FOREIGN)
    kin.end()
    assert other.has_it()
    assert it.in_the_way()
    other.end()


def test_says_whom_it_waits_for_before_the_case_begins(
    it: server._Worker, request_: Request, said: list[Message], folder: Path
) -> None:
    other = Waiting(folder, FOREIGN)
    threading.Timer(0.5, other.end).start()
    assert isinstance(it.answer(request_), Measured)
    first, second, *_ = said
    assert first == Progress(stage="waiting for the GPU", done=0, of=1, holder=FOREIGN.name)
    assert second == Progress(stage="open", done=0, of=1)


def test_a_gpu_that_does_not_get_free_is_a_timeout(
    it: server._Worker, request_: Request, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease.take, "__defaults__", (0.2,))
    other = Waiting(folder, FOREIGN)
    assert it.answer(request_) == NotMeasured(
        outcome="timeout",
        says="waited 0 s for the GPU, which process 1 (pytest --gpu) holds",
        clean=True,
    )
    assert not it.in_the_way()
    other.end()


@pytest.mark.parametrize(
    ("name", "number"), [(None, 0), ("gw0", 0), ("gw13", 13), ("popen", 0), ("a2", 2)]
)
def test_number_among_the_workers_of_xdist(
    name: str | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if name is not None:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", name)
    assert server._number_among_workers() == number


@pytest.mark.parametrize("keywords", [{"liger": True}, {"targets": ["wobble"]}], ids=str)
def test_a_refused_case_may_have_left_patched_libraries(
    it: server._Worker,
    request_: Request,
    spec_of: Callable[..., TrainSpec],
    keywords: dict[str, object],
) -> None:
    reply = it.answer(replace(request_, spec=spec_of(**keywords)))
    assert isinstance(reply, NotMeasured)
    assert (reply.outcome, reply.clean) == ("refused", "liger" not in keywords)


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "paged_adamw", "paged_adamw_8bit"])
def test_managed_memory_is_freed_with_its_process_only(
    it: server._Worker,
    request_: Request,
    spec_of: Callable[..., TrainSpec],
    monkeypatch: pytest.MonkeyPatch,
    optimizer: str,
) -> None:
    """Found on an H200: 3.8 GiB of a paged AdamW counted as outside in all cases after it."""
    run_case = it._case_run
    # paged states need a GPU, so the step that is measured has others
    monkeypatch.setattr(it, "_case_run", lambda _spec, *rest: run_case(request_.spec, *rest))
    reply = it.answer(replace(request_, spec=spec_of(optimizer=optimizer)))
    assert isinstance(reply, Measured)
    assert reply.clean == (optimizer == "adamw_8bit")


def test_is_known_by_the_pytest_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    parent = psutil.Process().parent()
    assert parent is not None
    me = server._me()
    assert me.family == parent.pid
    assert me.name.startswith(f"process {parent.pid} (")


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["/usr/bin/pytest", "--gpu"], "pytest --gpu"),
        (["/usr/bin/python3.12", "/usr/bin/pytest", "--gpu", "a b"], "pytest --gpu a b"),
        (["python", "-m", "pytest", "-n", "4"], "pytest -n 4"),
        (["python"], "python"),
        (["pytest", "x" * 80], f"pytest {'x' * 72}…"),
    ],
)
def test_command_as_the_user_knows_it(command: list[str], shown: str) -> None:
    assert server._short(command) == shown


@pytest.mark.parametrize(
    ("number", "index"), [(0, 0), (1, 2), (2, 0), (5, 2)], ids=["gw0", "gw1", "gw2", "gw5"]
)
def test_workers_take_gpus_of_one_model_in_turn(
    number: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["H200", "T4", "H200"]
    gpus = [Visible(index=i, uuid=f"{i}", name=name) for i, name in enumerate(names)]
    monkeypatch.setattr(cuda.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda.driver, "visible", lambda: gpus)
    assert cuda.choose(number) == gpus[index]
