"""Ctrl-C while baselines are recorded: everything else of the run is still told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
from inner import HEAD

SUITE = f"""{HEAD}
@pytest.mark.fits_vram(**TINY)
def test_case(): pass

def test_last(): assert not "this is still said"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_failures_summary_and_results_are_there(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_a=SUITE)
    options = ["--vramfit=cpu", "--vramfit-update", "--vramfit-json=r.json", "-v"]
    command = [sys.executable, "-u", "-m", "pytest", "-p", "vramfit", *options]
    # a job in the background of a shell ignores the signal
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        ran = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with ran:
        assert ran.stdout is not None
        said = ""
        while "test_last FAILED" not in said:
            said += ran.stdout.read(1)  # the line does not end yet
        children = psutil.Process(ran.pid).children(recursive=True)
        time.sleep(1)
        ran.send_signal(signal.SIGINT)
        said += ran.stdout.read()
    assert ran.returncode == pytest.ExitCode.INTERRUPTED, said
    assert "this is still said" in said
    assert "no baseline was recorded: the run was interrupted" in said
    assert "INTERNALERROR" not in said
    assert "Traceback" not in said
    assert len(json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))["results"]) == 1
    assert not (pytester.path / ".vramfit").exists()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
