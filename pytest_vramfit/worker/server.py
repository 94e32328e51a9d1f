"""The process that holds the device: answers one request at a time until its parent is gone.

Started by :mod:`pytest_vramfit.worker.client`. Nothing heavy is imported before the protocol
has its own descriptors, because libraries print while they are imported.
"""

from __future__ import annotations

import gc
import os
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pytest_vramfit.worker.lease import Lease, LeaseTimeoutError, Party
from pytest_vramfit.worker.protocol import (
    Measured,
    Message,
    NotMeasured,
    Progress,
    Ready,
    Request,
    write,
)

if TYPE_CHECKING:
    from pytest_vramfit.measurement import Measurement
    from pytest_vramfit.measuring.bench import Bench
    from pytest_vramfit.measuring.driver import Visible

_IDLE_S = 0.2
"""How often it is looked whether somebody waits for the GPU."""
_LONGEST_COMMAND = 80


def main(engine: str) -> None:
    """Serve requests from standard input on what was standard output."""
    requests, replies = _own_descriptors()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, lines), daemon=True).start()

    def reply(message: Message) -> None:
        replies.write(write(message))
        replies.flush()

    worker = _Estimates(reply) if engine == "estimate" else _Worker(engine, reply)
    reply(Ready())
    while True:
        try:
            line = lines.get(timeout=_IDLE_S if engine == "gpu" else None)
        except queue.Empty:
            if worker.in_the_way():
                os._exit(0)
            continue
        reply(worker.answer(Request.read(line)))


class _Estimates:
    """The answers of a worker that has no device."""

    def __init__(self, reply: Callable[[Message], None]) -> None:
        from pytest_vramfit.estimating.estimate import Estimator

        gc.freeze()  # as in the other one
        self._estimator = Estimator()
        self._reply = reply

    def answer(self, request: Request) -> Measured | NotMeasured:
        """Predict one case; any error of it is an answer."""
        assert request.target is not None
        target = request.target

        def predicted() -> Measured:
            self._reply(Progress(stage="estimate", done=0, of=1))
            measurement = self._estimator.estimate(
                request.spec, target, request.capacity_bytes, request.schedule
            )
            return Measured(measurement=measurement, clean=True)

        return _answered(predicted, clean=lambda: True)

    def in_the_way(self) -> bool:
        """Never: it holds nothing."""
        return False


def _answered(
    measured: Callable[[], Measured], clean: Callable[[], bool]
) -> Measured | NotMeasured:
    """What was measured, or the answer that an error is; ``clean`` is asked after it."""
    from pytest_vramfit.measurement import UnsupportedError
    from pytest_vramfit.training.config import UnbuildableError

    try:
        return measured()
    except UnsupportedError as error:
        return NotMeasured(outcome="unsupported", says=str(error), clean=clean())
    except UnbuildableError as error:
        return NotMeasured(outcome="refused", says=str(error), clean=clean())
    except LeaseTimeoutError as error:
        return NotMeasured(outcome="timeout", says=str(error), clean=clean())
    except Exception as error:  # noqa: BLE001 (whatever the training libraries raise)
        traceback.print_exc()
        says = f"{type(error).__name__}: {error}".removesuffix(": ")
        return NotMeasured(outcome="crashed", says=says)


class _Worker:
    """The engine's bench, opened for the first case, and the answers of all."""

    def __init__(self, engine: str, reply: Callable[[Message], None]) -> None:
        from pytest_vramfit.measuring.case import CaseRun

        # what is imported stays: collecting garbage must not walk it again in every case
        gc.freeze()
        self._case_run = CaseRun
        self._engine = engine
        self._reply = reply
        self._gpu: Visible | None = None
        self._lease: Lease | None = None
        self._bench: Bench | None = None
        self._clean = True
        """Whether the device is as it was before the last case."""

    def answer(self, request: Request) -> Measured | NotMeasured:
        """Measure one case; any error of it is an answer."""
        self._clean = True  # nothing was touched yet
        return _answered(lambda: self._measured(request), lambda: self._clean)

    def _measured(self, request: Request) -> Measured:
        opening: dict[str, int] = {}
        begin = time.perf_counter_ns()
        waited = self._engine == "gpu" and self._take_gpu()
        if waited:
            opening["waiting"] = time.perf_counter_ns() - begin
        if self._bench is None:
            begin = time.perf_counter_ns()
            self._bench = self._open(after_others=waited)
            opening["open"] = time.perf_counter_ns() - begin
        self._clean = False
        self._bench.begin(request.capacity_bytes, request.card)
        try:
            measurement = self._run_case(request, self._bench)
        finally:
            begin = time.perf_counter_ns()
            # Liger's patches of the libraries stay, also where the case was refused after them
            patched = self._engine == "gpu" and request.spec.liger
            self._clean = self._cleaned(self._bench) and not patched
        stages = {**opening, **measurement.stages_ns, "clean-up": time.perf_counter_ns() - begin}
        untouched = not _leaves_traces(request, measurement) and not self.in_the_way()
        return Measured(
            measurement=replace(measurement, stages_ns=stages), clean=self._clean and untouched
        )

    def _run_case(self, request: Request, bench: Bench) -> Measurement:
        # a name for the run outside would keep its tensors until the bench is looked at
        return self._case_run(request.spec, request.schedule, bench, self._report).measure()

    def _cleaned(self, bench: Bench) -> bool:
        """Whether the device is as it was before the case; what broke on the way is the case's."""
        try:
            return bench.end()
        except Exception:  # noqa: BLE001 (a broken context refuses every call)
            traceback.print_exc()
            return False

    def in_the_way(self) -> bool:
        """Whether another needs the GPU free of this process, whose context takes half a GiB.

        Workers of the same pytest, which work in turn, pass the GPU on between them as it is.
        """
        lease = self._lease
        if lease is None:
            return False
        other = lease.wanted_by() if lease.held else lease.holder
        if other is None:
            return False
        if self._bench is not None and other.family != lease.me.family:
            return True
        lease.give_back()
        return False

    def _take_gpu(self) -> bool:
        """Have a GPU to itself; whether it had to be waited for.

        Raises UnsupportedError where there is none, LeaseTimeoutError where it did not get free.
        """
        if self._lease is None:
            from pytest_vramfit.measuring.cuda import choose

            self._gpu = choose(_number_among_workers())
            self._lease = Lease(self._gpu.uuid, _me())
        return self._lease.take(self._report_waiting)

    def _report_waiting(self, holder: str) -> None:
        self._reply(Progress(stage="waiting for the GPU", done=0, of=1, holder=holder))

    def _open(self, *, after_others: bool) -> Bench:
        if self._gpu is not None:
            from pytest_vramfit.measuring.cuda import CudaBench

            bench = CudaBench(self._gpu, after_others=after_others)
            self._break_in(bench)
            return bench
        from pytest_vramfit.measuring.cpu import CpuBench

        return CpuBench()

    def _break_in(self, bench: Bench) -> None:
        """Run a tiny case, for what a process loads and allocates once.

        The driver puts that between the allocator's segments, and their order decides ties in the
        allocator: without this, the first case of a process could differ from its repetition by
        0.4 MiB in 5,700. It is no extra work: the first case would have to load the same.
        """
        from pytest_vramfit.marker.claim import read_claim

        claim = read_claim([{"model": "tiny", "seq": 64, "warmup": 2, "steps": 1}], rootdir=Path())
        self._report("open", 0, 1)
        bench.begin(None, bench.device)
        self._case_run(claim.spec, claim.schedule, bench, lambda *_: None).measure()
        bench.end()

    def _report(self, stage: str, done: int, of: int, left_ns: int | None = None) -> None:
        self._reply(Progress(stage=stage, done=done, of=of, left_ns=left_ns))


def _leaves_traces(request: Request, measurement: Measurement) -> bool:
    """Whether a process that measured this is no longer as new: after an out-of-memory error
    libraries may hold on to parts of the step, compiled code stays, and bitsandbytes never frees
    the managed memory of paged optimizer states.
    """
    return bool(measurement.first_oom) or request.spec.compile or request.spec.paged


def _number_among_workers() -> int:
    """Of xdist's worker ``gw3`` 3; 0 without xdist, or where it has a name without a number."""
    return int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)


def _me() -> Party:
    """The pytest that this worker is of, by the command that the user knows."""
    import psutil  # a dependency of PEFT

    pytest = psutil.Process(os.getppid())
    shown = (pytest.parent() if "PYTEST_XDIST_WORKER" in os.environ else None) or pytest
    return Party(family=pytest.pid, name=f"process {shown.pid} ({_short(shown.cmdline())})")


def _short(command: list[str]) -> str:
    """``pytest --gpu tests`` for ``/usr/bin/python3 -m pytest --gpu tests`` and the like."""
    program, *arguments = [Path(command[0]).name, *command[1:]]
    if program.startswith("python") and arguments[:1] == ["-m"]:
        arguments = arguments[1:]
    if program.startswith("python") and arguments:
        program, *arguments = arguments
    text = " ".join([Path(program).name, *arguments])
    return text if len(text) <= _LONGEST_COMMAND else f"{text[: _LONGEST_COMMAND - 1]}…"


def _own_descriptors() -> tuple[IO[str], IO[str]]:
    """Copies of standard input and output for the protocol; what others print goes to the log."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdin = os.fdopen(0, closefd=False)
    return requests, replies


def _listen(requests: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass requests on; when the parent is gone, so is this process, whatever it is doing."""
    for line in requests:
        lines.put(line)
    os._exit(0)
