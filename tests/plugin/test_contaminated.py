"""A case that cannot be judged because others used the device is an ERROR, as any of its kind."""

from __future__ import annotations

import json

import pytest
from inner import HEAD, Ran, RunOnce

OTHERS_TAKE_IT_ALL = """
from dataclasses import replace

from pytest_vramfit.measurement import HeldChange
from pytest_vramfit.worker.client import Worker

measure = Worker.measure

def disturbed(self, request, on_progress):
    reply = measure(self, request, on_progress)
    device = reply.measurement.device
    change = HeldChange(bytes=device.total_bytes, when="in the timed steps")
    seen = replace(reply.measurement, device=replace(device, held_change=change))
    return replace(reply, measurement=seen)

Worker.measure = disturbed
"""
SUITE = (
    HEAD
    + """
@pytest.mark.fits_vram(**TINY)
def test_plain():
    assert False, "not reached"

@pytest.mark.xfail(strict=True)
@pytest.mark.fits_vram(**TINY)
def test_xfail(): pass
"""
)


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once(
        "--vramfit=cpu", "--vramfit-json=out.json", conftest=OTHERS_TAKE_IT_ALL, test_it=SUITE
    )


@pytest.mark.parametrize("test", ["test_plain", "test_xfail"])
def test_is_an_error(ran: Ran, test: str) -> None:
    assert ran.word(test) == "ERROR"
    assert ran.text(test).startswith(
        "fits_vram: tiny, QLoRA rank 4, seq 16, batch 1 could not be measured (contaminated): "
        "others took "
    )


def test_is_in_the_results(ran: Ran) -> None:
    rows = json.loads((ran.folder / "out.json").read_text())["results"]
    assert [(row["outcome"], row["memory"]) for row in rows] == [("contaminated", None)] * 2
    assert set(ran.cases.values()) == {"contaminated"}
