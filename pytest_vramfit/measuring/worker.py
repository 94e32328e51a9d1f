"""The process that holds the device: answers one request at a time until its parent is gone.

Started by :mod:`pytest_vramfit.measuring.client`. Nothing heavy is imported before the protocol
has its own descriptors, because libraries print while they are imported.
"""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pytest_vramfit.measuring.protocol import (
    Measured,
    Message,
    NotMeasured,
    Progress,
    Ready,
    Request,
    write,
)

if TYPE_CHECKING:
    from pytest_vramfit.measuring.bench import Bench


def main(engine: str) -> None:
    """Serve requests from standard input on what was standard output."""
    requests, replies = _own_descriptors()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, lines), daemon=True).start()

    def reply(message: Message) -> None:
        replies.write(write(message))
        replies.flush()

    worker = _Worker(engine, reply)
    reply(Ready())
    while True:
        reply(worker.answer(Request.read(lines.get())))


class _Worker:
    """The engine's bench, opened for the first case, and the answers of all."""

    def __init__(self, engine: str, reply: Callable[[Message], None]) -> None:
        from pytest_vramfit.measuring.case import CaseRun

        # what is imported stays: collecting garbage must not walk it again in every case
        gc.freeze()
        self._case_run = CaseRun
        self._engine = engine
        self._reply = reply
        self._bench: Bench | None = None

    def answer(self, request: Request) -> Measured | NotMeasured:
        """Measure one case; any error of it is an answer."""
        from pytest_vramfit.measuring.bench import UnsupportedError
        from pytest_vramfit.training.model import UnbuildableError

        opening: dict[str, int] = {}
        clean = True  # nothing was touched yet
        try:
            if self._bench is None:
                begin = time.perf_counter_ns()
                self._bench = self._open()
                opening["open"] = time.perf_counter_ns() - begin
            clean = False
            self._bench.begin(request.capacity_bytes)
            try:
                measurement = self._case_run(request, self._bench, self._report).measure()
            finally:
                begin = time.perf_counter_ns()
                clean = self._bench.end()
        except UnsupportedError as error:
            return NotMeasured(outcome="unsupported", says=str(error), clean=clean)
        except UnbuildableError as error:
            return NotMeasured(outcome="refused", says=str(error), clean=clean)
        except Exception as error:  # noqa: BLE001 (whatever the training libraries raise)
            traceback.print_exc()
            return NotMeasured(outcome="crashed", says=f"{type(error).__name__}: {error}")
        stages = {**opening, **measurement.stages_ns, "clean-up": time.perf_counter_ns() - begin}
        return Measured(
            measurement=replace(measurement, stages_ns=stages),
            # after an out-of-memory error libraries may hold on to parts of the step
            clean=clean and measurement.oom is None,
        )

    def _open(self) -> Bench:
        if self._engine == "gpu":
            from pytest_vramfit.measuring.cuda import CudaBench

            bench = CudaBench()
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
        bench.begin(None)
        request = Request(spec=claim.spec, schedule=claim.schedule)
        self._case_run(request, bench, lambda *_: None).measure()
        bench.end()

    def _report(self, stage: str, done: int, of: int, left_ns: int | None = None) -> None:
        self._reply(Progress(stage=stage, done=done, of=of, left_ns=left_ns))


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
