"""Pytest's side of the worker: starts it, asks it, times it out, replaces it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

from pytest_vramfit.measurement import Engine
from pytest_vramfit.measuring.protocol import (
    Measured,
    Message,
    NotMeasured,
    Progress,
    Ready,
    Request,
    read,
)

STARTUP_SECONDS = 300.0
"""For importing the libraries: 13 to 20 s were seen on a GPU machine with a cold disk cache."""
_SECONDS_TO_END = 10.0
_THE_CASE = "the case"
_OUTPUT_CHARACTERS = 4000
_PACKAGE = Path(__file__).parents[1]
_PROGRAM = """\
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location

def load(name, file, folders=None):
    spec = spec_from_file_location(name, file, submodule_search_locations=folders)
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])

_, engine, package, nvml = sys.argv
load("pytest_vramfit", package + "/__init__.py", [package])
if nvml and find_spec("pynvml") is None:
    load("pynvml", nvml)
from pytest_vramfit.measuring.worker import main
main(engine)
"""
"""Another environment needs the training libraries only: this package and NVML's one module come
from here, by their files, so that nothing else of this environment gets in.
"""

# nothing is fetched, and an unreachable hub must not cost its timeouts
_ALWAYS = {"HF_HUB_OFFLINE": "1"}
_ENVIRONMENT: dict[Engine, dict[str, str]] = {
    # CUPTI stays loaded: every case runs under the same conditions. Unloaded after each case, it
    # left the driver's addresses in another order, and peaks differed by up to 5 MiB in 5,700
    "gpu": {"TEARDOWN_CUPTI": "0", **_ALWAYS},
    # threads that wait must sleep: on a machine with other work, five steps of the tiny model took
    # 4.4 s with spinning threads and 0.4 s with sleeping ones
    "cpu": {"OMP_WAIT_POLICY": "PASSIVE", **_ALWAYS},
}
"""What the worker's environment has unless the user's says otherwise."""

OnProgress = Callable[[Progress], None]


def _inherited(python: str) -> dict[str, str]:
    """The user's environment, but for what makes errors of the libraries' own warnings, and for
    another interpreter what tells this one where its libraries are.
    """
    dropped = {"PYTHONWARNINGS"}
    if python != sys.executable:
        dropped |= {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def _nvml_file() -> str:
    """Where this environment has NVML's module; empty where it has none."""
    spec = importlib.util.find_spec("pynvml")
    return (spec.origin or "") if spec else ""


class Worker:
    """A worker process that is there when needed.

    One at a time: it is used again while it proves clean, replaced after an out-of-memory error,
    a crash or a timeout. ``python`` is the interpreter whose libraries train.
    """

    def __init__(self, engine: Engine, python: str = sys.executable) -> None:
        self._engine = engine
        self._python = python
        self._process: _Process | None = None

    def start(self) -> None:
        """Start importing in the background, if no process is there."""
        # what cannot be started now is said by the case that needs it
        with contextlib.suppress(OSError):
            self._living_process()

    def stop(self) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def renew(self) -> None:
        """End the process, start a fresh one."""
        self.stop()
        self.start()

    def measure(self, request: Request, on_progress: OnProgress) -> Measured | NotMeasured:
        """Measure one case, in at most its timeout from the moment it has the device."""
        try:
            self._living_process()
        except OSError as error:
            return NotMeasured(outcome="crashed", says=f"the worker could not be started: {error}")
        try:
            reply = self._ask(request, on_progress)
        except BaseException:
            # interrupted from elsewhere: its reply must not be taken for that of the next request
            self.stop()
            raise
        if not reply.clean:
            self.renew()  # imports while pytest reports
        return reply

    def _ask(self, request: Request, on_progress: OnProgress) -> Measured | NotMeasured:
        try:
            return self._living_process().ask(request, on_progress)
        except _GoneBeforeError:
            # it ended between two cases, which is no fault of this one
            self.stop()
            return self._living_process().ask(request, on_progress)

    def _living_process(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._engine, self._python)
        return self._process


class _GoneBeforeError(Exception):
    """A process that had been ready was gone before it took the request."""


class _Process:
    """One process, from its start to its end."""

    def __init__(self, engine: Engine, python: str) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in kill)
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._popen = subprocess.Popen(  # noqa: S603 (our own program)
            # -P: the current folder may hold modules named like the libraries
            [python, "-P", "-c", _PROGRAM, engine, str(_PACKAGE), _nvml_file()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env={**_ENVIRONMENT[engine], **_inherited(python)},
            # its own group: Ctrl-C reaches pytest only, and killing it reaches its children
            start_new_session=True,
        )
        self._ready = False
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, request: Request, on_progress: OnProgress) -> Measured | NotMeasured:
        """Send the request and wait for its reply. Raises _GoneBeforeError."""
        begin = self._log_size()
        was_ready = self._ready
        waiting_for, seconds = "importing the training libraries", STARTUP_SECONDS
        try:
            waited_ns = -time.monotonic_ns()
            deadline = time.monotonic() + seconds
            while not self._ready:
                self._ready = isinstance(self._next(deadline), Ready)
            waited_ns += time.monotonic_ns()
            assert self._popen.stdin is not None
            self._popen.stdin.write(request.line())
            self._popen.stdin.flush()
            waiting_for, deadline = "opening the device", time.monotonic() + seconds
            while isinstance(message := self._next(deadline), Ready | Progress):
                if isinstance(message, Progress):
                    if waiting_for != _THE_CASE:
                        waiting_for, seconds = _THE_CASE, request.schedule.timeout_s
                        deadline = time.monotonic() + seconds
                    on_progress(message)
        except TimeoutError:
            says = f"{waiting_for} took more than {seconds:g} s"
            return NotMeasured(outcome="timeout", says=says, output=self._output(begin))
        except (EOFError, BrokenPipeError):
            if was_ready and waiting_for != _THE_CASE:
                raise _GoneBeforeError from None
            says = f"the worker {self._ending()}"
            return NotMeasured(outcome="crashed", says=says, output=self._output(begin))
        if isinstance(message, NotMeasured):
            # what the libraries say matters only where something broke
            output = self._output(begin) if message.outcome == "crashed" else ""
            return replace(message, output=output)
        stages = {"worker start": waited_ns, **message.measurement.stages_ns}
        return replace(message, measurement=replace(message.measurement, stages_ns=stages))

    def kill(self) -> None:
        """End the process and its children now."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        else:
            self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        try:
            for line in self._popen.stdout:
                self._messages.put(read(line))
        except ValueError:  # the pipe was closed under us: we are being killed
            pass
        finally:
            self._messages.put(None)

    def _next(self, deadline: float) -> Message:
        """The next message; TimeoutError past the deadline, EOFError when the process is gone."""
        try:
            message = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            raise EOFError
        return message

    def _ending(self) -> str:
        try:
            code = self._popen.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return "closed its end of the conversation"
        if code >= 0:
            return f"exited with status {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def _log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def _output(self, begin: int) -> str:
        """What the process printed since ``begin``, the end of it if long."""
        self._log.seek(max(begin, self._log_size() - _OUTPUT_CHARACTERS))
        return self._log.read().decode(errors="replace").strip()
