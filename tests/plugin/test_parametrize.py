"""pytest's own ways of making many tests of one."""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce

SUITE = (
    HEAD
    + """
import unittest
from pathlib import Path

@pytest.mark.parametrize("vramfit", [{"seq": 16}, {"seq": 32, "rank": 2}, {}], indirect=True)
@pytest.mark.fits_vram(**TINY)
def test_indirect(vramfit, request):
    expected = {"seq=16": (16, 4), "seq=32,rank=2": (32, 2), "vramfit2": (16, 4)}
    assert (vramfit.spec.seq, vramfit.spec.rank) == expected[request.node.callspec.id]

@pytest.mark.parametrize("vramfit", [{"seq": 16}, {"seq": 32}], indirect=True)
@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_not_named(): pass

@pytest.mark.parametrize("vramfit", [TINY], indirect=True, ids=["mine"])
def test_unmarked(vramfit):
    assert vramfit.outcome == "fits"

@pytest.mark.parametrize(["x", "vramfit"], [(1, {"seq": 32})], indirect=["vramfit"])
@pytest.mark.fits_vram(**TINY)
def test_among_others(x): pass

@pytest.mark.parametrize(argnames="x, vramfit", argvalues=[(1, {"seq": 32})], indirect=["vramfit"])
@pytest.mark.fits_vram(**TINY)
def test_by_keywords(x, vramfit):
    assert (x, vramfit.spec.seq) == (1, 32)

@pytest.mark.parametrize("vramfit", [{"double_quant": False, "targets": ["q_proj"]}], indirect=True)
@pytest.mark.fits_vram(**TINY)
class TestClass:
    def test_method(self, vramfit):
        assert vramfit.spec.targets == ("q_proj",)

    def test_other_method(self): pass

@pytest.mark.parametrize("seq", [16, 32])
@pytest.mark.fits_vram(**TINY)
def test_of_another_name(seq, vramfit):
    assert vramfit.spec.seq == 16

@pytest.mark.parametrize("vramfit", [{"seq": 16}])
@pytest.mark.fits_vram(**TINY)
def test_not_indirect(vramfit): pass

@pytest.mark.parametrize("vramfit", [{"seq": 16}])
@pytest.mark.fits_vram(**TINY)
def test_not_indirect_nor_named(): pass

@pytest.mark.parametrize("vramfit", [5, "tiny", [("seq", 16)], None], indirect=True)
@pytest.mark.fits_vram(**TINY)
def test_no_dict(vramfit): pass

@pytest.mark.parametrize("vramfit", [{"sqe": 16}, {1: 2}], indirect=True)
@pytest.mark.fits_vram(**TINY)
def test_wrong_key(vramfit): pass

@pytest.mark.parametrize("vramfit", [{"model": Path("there")}], indirect=True)
def test_odd_values(vramfit): pass

class TestReplaced:
    @pytest.fixture
    def vramfit(self):
        return 1

    @pytest.mark.fits_vram(**TINY)
    def test_named(self, vramfit): pass

    @pytest.mark.fits_vram(**TINY)
    def test_not_named(self): pass

    def test_unmarked(self, vramfit):
        assert vramfit == 1

class TestExtended:
    @pytest.fixture
    def vramfit(self, vramfit):
        return vramfit.outcome

    @pytest.mark.fits_vram(**TINY)
    def test_it(self, vramfit):
        assert vramfit == "fits"

class TestUnittest(unittest.TestCase):
    def setUp(self):
        self.ready = True

    @pytest.mark.fits_vram(**TINY)
    def test_fits(self):
        assert self.ready

    @pytest.mark.fits_vram(**TINY, card="1MiB")
    def test_does_not_fit(self): pass

    @pytest.mark.fits_vram(**TINY, wobble=1)
    def test_wrong(self): pass

    def test_unmarked(self): pass

@pytest.mark.fits_vram(**TINY, card="1MiB")
class TestMarkedUnittest(unittest.TestCase):
    def test_does_not_fit(self): pass
"""
)


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", test_it=SUITE)


@pytest.mark.parametrize(
    "test",
    [
        "test_indirect[seq=16]",
        "test_indirect[seq=32,rank=2]",
        "test_indirect[vramfit2]",
        "test_unmarked[mine]",
        "test_among_others[1-seq=32]",
        "test_by_keywords[1-seq=32]",
        "TestClass::test_method[double_quant=False,targets=list]",
        "TestClass::test_other_method[double_quant=False,targets=list]",
        "test_of_another_name[16]",
        "test_of_another_name[32]",
        "TestReplaced::test_unmarked",
        "TestExtended::test_it",
        "TestUnittest::test_fits",
        "TestUnittest::test_unmarked",
    ],
)
def test_works(ran: Ran, test: str) -> None:
    """The claim is in the inner test of this name; the ids say what differs."""
    assert ran.word(test) == "PASSED", ran.text(test)


@pytest.mark.parametrize(
    "test",
    [
        "test_not_named[seq=16]",
        "test_not_named[seq=32]",
        "TestUnittest::test_does_not_fit",
        "TestMarkedUnittest::test_does_not_fit",
    ],
)
def test_judged_without_naming_the_fixture(ran: Ran, test: str) -> None:
    """These do not fit, and say so."""
    assert (ran.word(test), ran.cases[test]) == ("FAILED", "over_vram")


REPLACED = (
    "fits_vram: the fixture 'vramfit' was replaced, so nothing was measured; parametrize it with "
    "indirect=True, and give no other fixture this name"
)
CONFIG = "a config.json ({folder}/there/config.json)"
NO_DICT = "vramfit: a parameter must be a dict of fits_vram's keywords, not "


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        ("test_not_indirect[seq=16]", REPLACED),
        ("test_not_indirect_nor_named[seq=16]", REPLACED),
        ("TestReplaced::test_named", REPLACED),
        ("TestReplaced::test_not_named", REPLACED),
        ("test_no_dict[5]", f"{NO_DICT}5"),
        ("test_no_dict[tiny]", f"{NO_DICT}'tiny'"),
        ("test_no_dict[vramfit2]", f"{NO_DICT}[('seq', 16)]"),
        ("test_no_dict[None]", f"{NO_DICT}None"),
        ("test_wrong_key[sqe=16]", "fits_vram has no keyword 'sqe'; did you mean 'seq'?"),
        (
            "test_odd_values[model=PosixPath]",
            f"fits_vram: model=PosixPath('there') is no folder with {CONFIG}",
        ),
    ],
)
def test_error(ran: Ran, test: str, sentence: str) -> None:
    assert (ran.word(test), ran.text(test)) == (
        "ERROR",
        sentence.replace("{folder}", str(ran.folder)),
    )


@pytest.mark.parametrize("test", ["test_wrong_key[1=2]", "TestUnittest::test_wrong"])
def test_wrong_keyword_is_an_error(ran: Ran, test: str) -> None:
    assert ran.word(test) == "ERROR"
