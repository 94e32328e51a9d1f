"""Without an engine marked tests are skipped, loudly, and at no cost."""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce, run

SUITE = (
    HEAD
    + """
@pytest.mark.fits_vram(**TINY)
def test_marked(): raise AssertionError("its body ran")

@pytest.mark.fits_vram(model="Qwen2.5-72B")
class TestMarked:
    def test_method(self): raise AssertionError("its body ran")

@pytest.fixture
def costly():
    raise AssertionError("a fixture of a skipped test ran")

@pytest.mark.fits_vram(**TINY)
def test_with_fixtures(costly, vramfit): pass

@pytest.mark.parametrize("vramfit", [TINY], indirect=True)
def test_indirect(vramfit): pass

def test_unmarked_with_the_fixture(vramfit): pass

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.fits_vram(**TINY)), 3])
def test_one_of_three(x): pass

@pytest.fixture
def vramfit_like(request):
    return request.param

@pytest.mark.parametrize("vramfit_like", [1], indirect=True)
def test_of_a_similar_name(vramfit_like): pass

@pytest.mark.skip(reason="mine")
@pytest.mark.fits_vram(**TINY)
def test_skipped_by_its_author(): pass

@pytest.mark.skip(reason="mine")
@pytest.mark.fits_vram(wrong=True)
def test_wrong_and_skipped_by_its_author(): pass

def test_plain(): pass
"""
)
CONFTEST = """
import pytest
import sys

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    heavy = sorted({"torch", "transformers", "peft", "bitsandbytes", "psutil"} & set(sys.modules))
    print("imported:", heavy)
    import psutil
    print("processes:", len(psutil.Process().children()))
"""
DATA_FILE = """
import pytest

class Item(pytest.Item):
    def runtest(self): raise AssertionError("it ran")

class File(pytest.File):
    def collect(self):
        item = Item.from_parent(self, name="item")
        item.add_marker(pytest.mark.fits_vram(model="tiny"))
        yield item

def pytest_collect_file(file_path, parent):
    if file_path.suffix == ".yaml":
        return File.from_parent(parent, path=file_path)
"""
REASON = "runs with --gpu, small cases also with --vramfit=cpu; --vramfit=estimate predicts it"
SKIPPED = [
    "test_marked",
    "TestMarked::test_method",
    "test_with_fixtures",
    "test_indirect[model=tiny,rank=4,seq=16,steps=1,warmup=2]",
    "test_unmarked_with_the_fixture",
    "test_one_of_three[2]",
]


@pytest.fixture(params=[(), ("--vramfit=off",)], ids=["no-option", "off"])
def ran(request: pytest.FixtureRequest, run_once: RunOnce) -> Ran:
    return run_once("-rs", *request.param, test_it=SUITE, conftest=CONFTEST)


@pytest.mark.parametrize("test", SKIPPED)
def test_skipped(ran: Ran, test: str) -> None:
    assert ran.word(test) == "SKIPPED"


def test_reason_names_the_options_that_run_them(ran: Ran) -> None:
    """On every skip but the author's own two."""
    skips = [one for one in ran.output.splitlines() if one.startswith("SKIPPED [")]
    ours = [one for one in skips if one.endswith(f": {REASON}")]
    assert len(ours) == len(SKIPPED)
    assert [one.rpartition(": ")[2] for one in skips if one not in ours] == ["mine", "mine"]


@pytest.mark.parametrize(
    "test",
    [
        "test_one_of_three[1]",
        "test_one_of_three[3]",
        "test_of_a_similar_name[1]",
        "test_plain",
    ],
)
def test_unmarked_runs(ran: Ran, test: str) -> None:
    """Also beside a marked one of the same function."""
    assert ran.word(test) == "PASSED"


@pytest.mark.parametrize(
    "test", ["test_skipped_by_its_author", "test_wrong_and_skipped_by_its_author"]
)
def test_skip_of_its_author_comes_first(ran: Ran, test: str) -> None:
    assert ran.word(test) == "SKIPPED"


def test_nothing_heavy_imported(ran: Ran) -> None:
    assert "imported: []" in ran.output


def test_no_process_started(ran: Ran) -> None:
    assert "processes: 0" in ran.output


def test_item_without_a_line_is_skipped(pytester: pytest.Pytester) -> None:
    """One that a conftest makes of a data file."""
    pytester.makeconftest(DATA_FILE)
    pytester.makefile(".yaml", data="")
    ran = run(pytester)
    assert (ran.status, " 1 skipped in " in ran.output) == (0, True)


def test_no_summary(ran: Ran) -> None:
    assert "= vramfit =" not in ran.output


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan"])
def test_only_looking_starts_no_process(run_once: RunOnce, option: str) -> None:
    """Also where an engine was asked for."""
    ran = run_once("--vramfit=cpu", option, test_it=SUITE, conftest=CONFTEST)
    assert (ran.status, "processes: 0" in ran.output) == (0, True)


def test_engine_without_marked_tests_starts_no_process(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it="def test_plain(): pass", conftest=CONFTEST)
    ran = run(pytester, "--vramfit=cpu")
    assert (ran.status, "processes: 0" in ran.output) == (0, True)


def test_marker_is_described(pytester: pytest.Pytester) -> None:
    assert (
        run(pytester, "--markers")
        .line("@pytest.mark.fits_vram")
        .startswith("@pytest.mark.fits_vram(*, model, ")
    )
