"""The process that holds the device: answers one request at a time until its parent is gone.

Started as ``python -c 'from pytest_vramfit.measuring.worker import main; main("gpu")'`` by
:mod:`pytest_vramfit.measuring.client`.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from dataclasses import replace
from typing import IO

from pytest_vramfit.measuring.protocol import (
    Measured,
    Message,
    NotMeasured,
    Progress,
    Ready,
    Request,
    write,
)


def main(engine: str) -> None:
    """Serve requests from standard input on what was standard output."""
    requests, replies = _own_descriptors()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, lines), daemon=True).start()

    # here and not above: libraries may print while they are imported
    from pytest_vramfit.measuring.bench import Bench, UnsupportedError
    from pytest_vramfit.measuring.case import CaseRun
    from pytest_vramfit.training.model import UnbuildableError

    def reply(message: Message) -> None:
        replies.write(write(message))
        replies.flush()

    def report(stage: str, done: int, of: int) -> None:
        reply(Progress(stage=stage, done=done, of=of))

    def open_bench() -> Bench:
        if engine == "gpu":
            from pytest_vramfit.measuring.cuda import CudaBench

            return CudaBench()
        from pytest_vramfit.measuring.cpu import CpuBench

        return CpuBench()

    def run(request: Request, bench: Bench) -> Message:
        try:
            return Measured(measurement=CaseRun(request, bench, report).measure(), clean=False)
        except UnsupportedError as error:
            return NotMeasured(outcome="unsupported", says=str(error))
        except UnbuildableError as error:
            return NotMeasured(outcome="refused", says=str(error))

    def answer(request: Request) -> Message:
        nonlocal bench
        try:
            bench = bench or open_bench()
            bench.begin(request.capacity_bytes)
            message = run(request, bench)
            # after an out-of-memory error fragments of the step may live on in the library
            broken = isinstance(message, Measured) and message.measurement.oom is not None
            return replace(message, clean=bench.end() and not broken)
        except UnsupportedError as error:
            return NotMeasured(outcome="unsupported", says=str(error))
        except Exception as error:
            traceback.print_exc()
            return NotMeasured(outcome="crashed", says=f"{type(error).__name__}: {error}")

    bench: Bench | None = None
    reply(Ready())
    while True:
        reply(answer(Request.read(lines.get())))


def _own_descriptors() -> tuple[IO[str], IO[str]]:
    """The protocol's own copies of standard input and output; what others print goes to the log."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (lives as long as the process)
    return requests, replies


def _listen(requests: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Pass requests on; when the parent is gone, so is this process, whatever it is doing."""
    for line in requests:
        lines.put(line)
    os._exit(0)
