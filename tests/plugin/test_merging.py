"""Markers refine each other key by key, from the module inwards."""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce

CONFTEST = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        if item.name == "test_added":
            item.add_marker(pytest.mark.fits_vram(rank=5, batch=2))
        if item.name == "test_added_to_class":
            item.parent.add_marker(pytest.mark.fits_vram(rank=5, batch=2))
        if item.name.startswith("test_from_nothing"):
            item.add_marker(pytest.mark.fits_vram(model="tiny", rank=5, seq=16, steps=1, warmup=2))
"""
SUITE = (
    HEAD
    + """
pytestmark = pytest.mark.fits_vram(**TINY)

def seen(vramfit):
    spec = vramfit.spec
    return spec.model, spec.rank, spec.seq, spec.batch

def test_module(vramfit):
    assert seen(vramfit) == ("tiny", 4, 16, 1)

@pytest.mark.fits_vram(seq=32)
def test_function_over_module(vramfit):
    assert seen(vramfit) == ("tiny", 4, 32, 1)

@pytest.mark.fits_vram(rank=1, seq=32, batch=1)
class Base:
    def test_inherited(self, vramfit):
        assert seen(vramfit) == self.expected

    @pytest.mark.fits_vram(rank=3)
    def test_method_over_class(self, vramfit):
        assert vramfit.spec.rank == 3

class TestBase(Base):
    expected = ("tiny", 1, 32, 1)

@pytest.mark.fits_vram(rank=2, batch=2)
class TestDerived(Base):
    expected = ("tiny", 2, 32, 2)

@pytest.mark.parametrize("rank", [3, pytest.param(6, marks=pytest.mark.fits_vram(rank=6))])
@pytest.mark.fits_vram(rank=3)
def test_param_over_function(vramfit, rank):
    assert vramfit.spec.rank == rank

@pytest.mark.parametrize("vramfit", [{"rank": 7}], indirect=True)
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.fits_vram(rank=6, batch=2))])
@pytest.mark.fits_vram(rank=5, seq=32)
def test_indirect_over_all(vramfit, x):
    assert seen(vramfit) == ("tiny", 7, 32, 2)

@pytest.mark.fits_vram(rank=3, seq=32)
def test_added(vramfit):
    assert seen(vramfit) == ("tiny", 5, 32, 2)

@pytest.mark.fits_vram(rank=3, seq=32)
class TestAdded:
    def test_added_to_class(self, vramfit):
        assert seen(vramfit) == ("tiny", 5, 32, 2)

@pytest.mark.fits_vram(model={"model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64})
def test_model_displaces_model(vramfit):
    assert (vramfit.spec.config["hidden_size"], vramfit.spec.rank) == (64, 4)

@pytest.mark.fits_vram(rank=5)
@pytest.mark.fits_vram(rank=6)
def test_twice_on_a_function(): pass

@pytest.mark.fits_vram(rank=5)
@pytest.mark.fits_vram(seq=32)
class TestTwice:
    def test_method(self): pass
"""
)
UNMARKED = """
def test_from_nothing(vramfit):
    assert vramfit.spec.rank == 5

def test_from_nothing_without_fixture(): pass

def test_unmarked(): pass
"""


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", test_it=SUITE, test_other=UNMARKED, conftest=CONFTEST)


@pytest.mark.parametrize(
    "test",
    [
        "test_module",
        "test_function_over_module",
        "TestBase::test_inherited",
        "TestBase::test_method_over_class",
        "TestDerived::test_inherited",
        "TestDerived::test_method_over_class",
        "test_param_over_function[3]",
        "test_param_over_function[6]",
        "test_indirect_over_all[1-rank=7]",
        "test_added",
        "TestAdded::test_added_to_class",
        "test_model_displaces_model",
    ],
)
def test_inner_one_wins(ran: Ran, test: str) -> None:
    """Each inner test compares its own spec with what its markers add up to."""
    assert ran.word(test) == "PASSED", ran.text(test)


@pytest.mark.parametrize(
    ("test", "owner"),
    [
        ("test_twice_on_a_function", "test_twice_on_a_function"),
        ("TestTwice::test_method", "TestTwice"),
    ],
)
def test_twice_on_one_object(ran: Ran, test: str, owner: str) -> None:
    sentence = f"fits_vram stands 2 times on {owner}; write one marker with all keywords"
    assert (ran.word(test), ran.text(test)) == ("ERROR", sentence)


def test_marker_that_only_a_conftest_wrote(ran: Ran) -> None:
    """After the tests were collected, and to tests without any marker in their source."""
    words = [
        ran.word(test)
        for test in ("test_from_nothing", "test_from_nothing_without_fixture", "test_unmarked")
    ]
    assert words == ["PASSED", "PASSED", "PASSED"]


def test_marker_that_only_a_conftest_wrote_is_measured(ran: Ran) -> None:
    measured = {test: outcome for test, outcome in ran.cases.items() if "nothing" in test}
    assert measured == {"test_from_nothing": "fits", "test_from_nothing_without_fixture": "fits"}
