"""Every kind of test that pytest collects is measured, skipped or expected to fail as any other.

Under warnings as errors, strict markers and strict configuration: nothing of ours is in their way.
"""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce

SUITE = (
    HEAD
    + '''
import unittest

fits = pytest.mark.fits_vram(**TINY)
over = pytest.mark.fits_vram(**TINY, card="1MiB")

@pytest.mark.skip(reason="today")
@over
def test_skip(): pass

@pytest.mark.skipif(True, reason="today")
@over
def test_skipif(): pass

@pytest.mark.skipif(False, reason="today")
@over
def test_not_skipif(): pass

@pytest.mark.parametrize("x", [
    pytest.param("fits", marks=fits),
    pytest.param("over", marks=over),
    pytest.param("skip", marks=[fits, pytest.mark.skip(reason="today")]),
    pytest.param("over_xfail", marks=[over, pytest.mark.xfail(strict=True)]),
    pytest.param("fits_xfail", marks=[fits, pytest.mark.xfail(strict=True)]),
    pytest.param("plain"),
])
def test_param(x): pass

def pytest_generate_tests(metafunc):
    if "generated" in metafunc.fixturenames:
        metafunc.parametrize("generated", [1, 2])
    if metafunc.definition.name == "test_generated_vramfit":
        metafunc.parametrize("vramfit", [{"seq": 8}, {"seq": 16}], indirect=True)

@fits
def test_generated(generated): pass

@fits
def test_generated_vramfit(vramfit, request):
    assert request.node.callspec.params["vramfit"] == {"seq": vramfit.spec.seq}

@fits
def test_getfixturevalue(request):
    assert request.getfixturevalue("vramfit").outcome == "fits"

def test_getfixturevalue_unmarked(request):
    assert request.getfixturevalue("vramfit").measure(**TINY).outcome == "fits"

@pytest.fixture(scope="module")
def of_the_module(vramfit): return vramfit

@fits
def test_wider_scope(of_the_module): pass

class TestOverriding:
    @pytest.fixture
    def vramfit(self, vramfit): return vramfit.peak_allocated_bytes

    @fits
    def test_it(self, vramfit): assert vramfit > 0

class TestReplacing:
    @pytest.fixture
    def vramfit(self): return "their own"

    @fits
    def test_marked(self, vramfit): pass

    def test_unmarked(self, vramfit): assert vramfit == "their own"

@fits
class TestUnit(unittest.TestCase):
    def test_it(self): pass

    def test_body_fails(self): self.fail()

    @unittest.expectedFailure
    def test_expected(self): self.fail()

    @unittest.skip("today")
    def test_skip(self): pass

    @unittest.skip("today")
    @pytest.mark.fits_vram(wrong=True)
    def test_skip_wrong(self): pass

@fits
@unittest.skip("today")
class TestUnitSkipped(unittest.TestCase):
    def test_it(self): pass

@over
class TestUnitOver(unittest.TestCase):
    def test_it(self): raise AssertionError("its body ran")

    @unittest.expectedFailure
    def test_expected(self): raise AssertionError("its body ran")

@fits
class TestUnitAsync(unittest.IsolatedAsyncioTestCase):
    async def test_it(self): pass

@over
async def test_async(): pass

@fits
def doctested():
    """
    >>> 1 + 1
    2
    """
'''
)
CONFTEST = """
import pytest

def pytest_itemcollected(item):
    if isinstance(item, pytest.DoctestItem):
        item.add_marker(pytest.mark.fits_vram(model="tiny", rank=4, seq=16, steps=1, warmup=2))
"""
MEASURED = {
    "test_not_skipif": ("FAILED", "over_vram"),
    "test_param[fits]": ("PASSED", "fits"),
    "test_param[over]": ("FAILED", "over_vram"),
    "test_param[over_xfail]": ("XFAIL", "over_vram"),
    "test_param[fits_xfail]": ("FAILED", "fits"),
    "test_generated[1]": ("PASSED", "fits"),
    "test_generated[2]": ("PASSED", "fits"),
    "test_generated_vramfit[seq=8]": ("PASSED", "fits"),
    "test_generated_vramfit[seq=16]": ("PASSED", "fits"),
    "test_getfixturevalue": ("PASSED", "fits"),
    "test_getfixturevalue_unmarked": ("PASSED", "fits"),
    "TestOverriding::test_it": ("PASSED", "fits"),
    "TestUnit::test_it": ("PASSED", "fits"),
    "TestUnit::test_body_fails": ("FAILED", "fits"),
    "TestUnit::test_expected": ("XFAIL", "fits"),
    "TestUnitOver::test_it": ("FAILED", "over_vram"),
    "TestUnitOver::test_expected": ("FAILED", "over_vram"),
    "TestUnitAsync::test_it": ("PASSED", "fits"),
    "test_async": ("FAILED", "over_vram"),
    "test_it.doctested": ("PASSED", "fits"),
}
NOT_MEASURED = {
    "test_skip": "SKIPPED",
    "test_skipif": "SKIPPED",
    "test_param[skip]": "SKIPPED",
    "test_param[plain]": "PASSED",
    "test_wider_scope": "ERROR",
    "TestReplacing::test_marked": "ERROR",
    "TestReplacing::test_unmarked": "PASSED",
    "TestUnit::test_skip": "SKIPPED",
    "TestUnit::test_skip_wrong": "SKIPPED",
    "TestUnitSkipped::test_it": "SKIPPED",
}


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    options = ("-W", "error", "--strict-markers", "--strict-config", "--doctest-modules")
    return run_once("--vramfit=cpu", *options, test_it=SUITE, conftest=CONFTEST)


@pytest.mark.parametrize("test", MEASURED)
def test_measured(ran: Ran, test: str) -> None:
    assert (ran.word(test), ran.cases[test]) == MEASURED[test]


@pytest.mark.parametrize("test", NOT_MEASURED)
def test_not_measured(ran: Ran, test: str) -> None:
    assert (ran.word(test), ran.cases.get(test)) == (NOT_MEASURED[test], None)


def test_nothing_else_ran(ran: Ran) -> None:
    assert "INTERNALERROR" not in ran.output
    assert "its body ran" not in ran.output
    assert f"collected {len(MEASURED) + len(NOT_MEASURED)} items" in ran.output


def test_wider_scope_is_pytest_s_own_error(ran: Ran) -> None:
    assert ran.text("test_wider_scope").startswith("ScopeMismatch: ")


@pytest.mark.parametrize("test", ["TestUnitOver::test_it", "test_async"])
def test_verdict_comes_before_the_body_of_any_kind(ran: Ran, test: str) -> None:
    assert ran.text(test).startswith("fits_vram: tiny, QLoRA rank 4, seq 16, batch 1 for a card of")
