"""A marker that comes when set-up has begun is an ERROR: nothing was measured for it."""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce

SUITE = (
    HEAD
    + """
@pytest.fixture
def late(request):
    request.node.add_marker(pytest.mark.fits_vram(**TINY))

def test_from_a_fixture(late): pass

def test_from_its_body(request):
    request.node.add_marker(pytest.mark.fits_vram(**TINY))

def test_other(): pass
"""
)
SAYS = "fits_vram: the marker came too late for set-up; add it while pytest collects"


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", test_it=SUITE)


@pytest.mark.parametrize("test", ["test_from_a_fixture", "test_from_its_body"])
def test_late_marker_is_an_error(ran: Ran, test: str) -> None:
    assert (ran.word(test), ran.text(test).splitlines()[0]) == ("ERROR", SAYS)


def test_other_tests_run(ran: Ran) -> None:
    assert ran.word("test_other") == "PASSED"
