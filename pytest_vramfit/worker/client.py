"""Pytest's side of the worker: starts it, asks it, times it out, replaces it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_vramfit.marker.checkpoint import is_hub_id
from pytest_vramfit.measurement import Engine, UnsupportedError
from pytest_vramfit.virtual_card import library
from pytest_vramfit.worker import process
from pytest_vramfit.worker.protocol import (
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
_SECONDS_TO_READ = 1.0
_THE_CASE = "the case"
_BROKEN = ("crashed", "timeout")
"""Outcomes in which it matters what the libraries printed."""
_OUTPUT_BYTES = 4000
_CHUNK_BYTES = 2**16
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
from pytest_vramfit.worker.process import end_with_parent
end_with_parent()
from pytest_vramfit.worker.server import main
main(engine)
"""
"""Another environment needs the training libraries only: this package and NVML's one module come
from here, by their files, so that nothing else of this environment gets in.
"""

# -P: the current folder may hold modules named like the libraries; faulthandler: they may crash
_OPTIONS = ("-P", "-X", "faulthandler")

_ENVIRONMENT: dict[Engine, dict[str, str]] = {
    "estimate": {},
    # CUPTI stays loaded: every case runs under the same conditions. Unloaded after each case, it
    # left the driver's addresses in another order, and peaks differed by up to 5 MiB in 5,700
    "gpu": {"TEARDOWN_CUPTI": "0"},
    # threads that wait must sleep: on a machine with other work, five steps of the tiny model took
    # 4.4 s with spinning threads and 0.4 s with sleeping ones
    "cpu": {"OMP_WAIT_POLICY": "PASSIVE"},
}
"""What the worker's environment has unless the user's says otherwise."""

OnProgress = Callable[[Progress], None]


def _environment(engine: Engine, request: Request | None) -> dict[str, str]:
    """What the case needs to be in the environment when the libraries are imported.

    Raises UnsupportedError where a card cannot be emulated.
    """
    spec = request.spec if request else None
    of_hub = spec is not None and is_hub_id(spec.checkpoint)
    # else nothing is fetched, and an unreachable hub must not cost its timeouts
    found = {} if of_hub else {"HF_HUB_OFFLINE": "1"}
    if engine == "gpu" and spec is not None and spec.alloc_conf is not None:
        # the second is what PyTorch read before 2.9
        found |= dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), spec.alloc_conf)
    if engine == "gpu" and request and request.card and request.card.overflow == "spill":
        found["LD_PRELOAD"] = library.preloading(os.environ.get("LD_PRELOAD"))
    return found


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
    a crash or a timeout, and by one with another environment where a case needs that. ``python`` is
    the interpreter whose libraries train.
    """

    def __init__(self, engine: Engine, python: str = sys.executable) -> None:
        self._engine = engine
        self._python = python
        self._process: _Process | None = None

    def start(self) -> None:
        """Start importing in the background, if no process is there."""
        # what cannot be started now is said by the case that needs it
        with contextlib.suppress(_NotStartedError):
            self._living_process(None)

    def stop(self) -> None:
        """End the process and all that it started."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def renew(self) -> None:
        """End the process, start a fresh one."""
        self.stop()
        self.start()

    def measure(self, request: Request, on_progress: OnProgress) -> Measured | NotMeasured:
        """Measure one case, in at most its timeout from the moment it has the device."""
        try:
            reply = self._ask(request, on_progress)
        except _NotStartedError as error:
            return NotMeasured(outcome="crashed", says=f"the worker could not be started: {error}")
        except UnsupportedError as error:
            return NotMeasured(outcome="unsupported", says=str(error))
        except BaseException:
            # interrupted from elsewhere: its reply must not be taken for that of the next request
            self.stop()
            raise
        if reply.clean:
            return reply
        asked = self._process
        self.renew()  # imports while pytest reports
        if asked and isinstance(reply, NotMeasured) and reply.outcome in _BROKEN:
            # all of it is there now that the process was ended
            return replace(reply, output=asked.output())
        return reply

    def _ask(self, request: Request, on_progress: OnProgress) -> Measured | NotMeasured:
        try:
            return self._living_process(request).ask(request, on_progress)
        except _GoneBeforeError:
            # it ended between two cases, which is no fault of this one
            self.stop()
            return self._living_process(request).ask(request, on_progress)

    def _living_process(self, request: Request | None) -> _Process:
        """A process for the case, or for any that asks for nothing special."""
        environment = _environment(self._engine, request)
        if self._process is not None and self._process.environment != environment:
            self.stop()
        if self._process is None:
            try:
                self._process = _Process(self._engine, self._python, environment)
            except OSError as error:
                raise _NotStartedError(error) from error
        return self._process


class _NotStartedError(Exception):
    """The operating system did not start the process."""


class _GoneBeforeError(Exception):
    """A process that had been ready was gone before it took the request."""


class _Process:
    """One process, from its start to its end."""

    def __init__(self, engine: Engine, python: str, environment: dict[str, str]) -> None:
        self.environment = environment
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._printed = bytearray()
        self._popen = process.start(
            [python, *_OPTIONS, "-c", _PROGRAM, engine, str(_PACKAGE), _nvml_file()],
            {**_ENVIRONMENT[engine], **_inherited(python), **environment},
        )
        self._ready = False
        self._readers = [
            threading.Thread(target=one, daemon=True) for one in (self._listen, self._keep_printed)
        ]
        for one in self._readers:
            one.start()

    def ask(self, request: Request, on_progress: OnProgress) -> Measured | NotMeasured:
        """Send the request and wait for its reply. Raises _GoneBeforeError."""
        was_ready = self._ready
        if was_ready:  # what it printed before was in other cases
            self._printed.clear()
        waiting_for, seconds = "importing the training libraries", STARTUP_SECONDS
        try:
            waited_ns = -time.monotonic_ns()
            self._wait_until_ready(time.monotonic() + seconds)
            waited_ns += time.monotonic_ns()
            self._send(request.line())
            waiting_for, deadline = "opening the device", time.monotonic() + seconds
            while isinstance(message := self._next(deadline), Ready | Progress):
                if isinstance(message, Progress):
                    if waiting_for != _THE_CASE:
                        if not message.holder:  # else the case's time does not run yet
                            waiting_for, seconds = _THE_CASE, request.schedule.timeout_s
                        deadline = time.monotonic() + seconds
                    on_progress(message)
        except TimeoutError:
            says = f"{waiting_for} took more than {seconds:g} s"
            return NotMeasured(outcome="timeout", says=says)
        except EOFError:
            if was_ready and waiting_for != _THE_CASE:
                raise _GoneBeforeError from None
            return NotMeasured(outcome="crashed", says=f"the worker {self._ending()}")
        if isinstance(message, NotMeasured):
            return message
        stages = {"worker start": waited_ns, **message.measurement.stages_ns}
        return replace(message, measurement=replace(message.measurement, stages_ns=stages))

    def end(self) -> None:
        """End the process and its children now."""
        process.end(self._popen)
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # a request that nobody took
            self._popen.stdin.close()
        # a child that left the group may still have a pipe open: not to be waited for
        for reader in self._readers:
            reader.join(_SECONDS_TO_READ)

    def output(self) -> str:
        """The end of what the process printed in this case."""
        return self._printed.decode(errors="replace").strip()

    def _wait_until_ready(self, deadline: float) -> None:
        """Raises as :meth:`_next`."""
        while not self._ready:
            self._ready = isinstance(self._next(deadline), Ready)

    def _send(self, line: str) -> None:
        """Raises EOFError where nobody takes it."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(line.encode())
            self._popen.stdin.flush()
        except OSError as error:
            raise EOFError from error

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:
            try:
                for line in lines:
                    self._messages.put(read(line.decode()))
            except ValueError:  # cut off where the process was killed
                pass
            finally:
                self._messages.put(None)

    def _keep_printed(self) -> None:
        """Take what the process prints, without end if need be, and keep the end of it."""
        assert self._popen.stderr is not None
        with self._popen.stderr as printed:
            while chunk := os.read(printed.fileno(), _CHUNK_BYTES):
                self._printed += chunk
                del self._printed[:-_OUTPUT_BYTES]

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
        return process.ending(code)
