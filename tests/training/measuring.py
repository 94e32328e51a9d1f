"""One case on the CPU bench, in this process."""

from __future__ import annotations

from pytest_vramfit.measuring.case import CaseRun
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.spec import Claim, Limits, Schedule
from pytest_vramfit.verdict import judge

SCHEDULE = Schedule(warmup=2, steps=2)
LEAST = Schedule(warmup=2, steps=1)
"""In which everything that is trained has moved."""


def measured(spec, schedule=SCHEDULE, bench=None):
    """The measurement; nothing of the case is left behind."""
    bench = bench or CpuBench()
    bench.begin(None)
    try:
        result = CaseRun(spec, schedule, bench, lambda *_: None).measure()
    finally:
        clean = bench.end()
    assert clean
    return result


def judged(spec, schedule=LEAST):
    """The case as the plugin judges it."""
    claim = Claim(spec=spec, limits=Limits(), schedule=schedule)
    return judge("test_a.py::test_b", "cpu", claim, measured(spec, schedule))


def objections(spec, schedule=LEAST):
    """What speaks against it, or is said beside it."""
    (trained,) = (one for one in judged(spec, schedule).checks if one.name == "trained")
    return [(one.kind, *one.names) for one in trained.findings]
