"""While a worker waits for the GPU no time of the case passes; and a terminal says for whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from samples import SPEC

from pytest_vramfit.plugin.progress import ProgressLine
from pytest_vramfit.spec import Schedule
from pytest_vramfit.worker import client
from pytest_vramfit.worker.client import Worker
from pytest_vramfit.worker.protocol import NotMeasured, Progress, Request

HOLDER = "process 7 (pytest --gpu)"
PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[2] + "/..")
from pytest_vramfit.worker.protocol import *

def say(message):
    print(write(message), end="", flush=True)

say(Ready())
sys.stdin.readline()
for _ in range(8):
    say(Progress(stage="waiting for the GPU", done=0, of=1, holder="process 7 (pytest --gpu)"))
    time.sleep(0.5)
say(Progress(stage="build", done=0, of=1))
time.sleep({seconds})
say(NotMeasured(outcome="refused", says="done", clean=True))
"""


def measured(monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[NotMeasured, list[Progress]]:
    """A case with a timeout of 1 s that waits 4 s for the GPU, then takes so many seconds."""
    monkeypatch.setattr(client, "_PROGRAM", PROGRAM.format(seconds=seconds))
    monkeypatch.setattr(client, "STARTUP_SECONDS", 3)
    worker, said = Worker("gpu"), list[Progress]()
    try:
        reply = worker.measure(Request(spec=SPEC, schedule=Schedule(timeout_s=1)), said.append)
    finally:
        worker.stop()
    assert isinstance(reply, NotMeasured)
    return reply, said


def test_waiting_is_not_the_case_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reply, said = measured(monkeypatch, seconds=0)
    assert reply.says == "done"
    assert [one.holder for one in said] == [HOLDER] * 8 + [""]


def test_the_case_s_time_begins_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reply, _ = measured(monkeypatch, seconds=9)
    assert (reply.outcome, reply.says) == ("timeout", "the case took more than 1 s")


def test_progress_line_says_for_whom(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = SimpleNamespace(isatty=True, hasmarkup=True)
    plugins = {"terminalreporter": terminal}
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=plugins.get))
    line = ProgressLine(config, ", 3 more cases")
    line.show(Progress(stage="waiting for the GPU", done=0, of=1, holder=HOLDER))
    shown = f" [waiting for the GPU, which {HOLDER} holds, 3 more cases]"
    assert shown in capsys.readouterr().out
