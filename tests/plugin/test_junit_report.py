"""JUnit: what pytest always writes, and the main figures as properties."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from inner import HEAD, RunOnce

SUITE = (
    HEAD
    + """
@pytest.mark.fits_vram(**TINY)
def test_fits(record_property):
    record_property("mine", 1)

@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_does_not_fit(): pass

@pytest.mark.fits_vram(**TINY, targets=["foo"])
def test_refused(): pass

@pytest.mark.fits_vram(wrong=True)
def test_wrong(): pass

@pytest.mark.fits_vram(model="Qwen2.5-72B", method="full")
def test_unsupported(): pass

def test_only_measures(vramfit):
    vramfit.measure(**TINY)

@pytest.mark.xfail
def test_only_measures_refused(vramfit):
    vramfit.measure(**TINY, targets=["foo"])

@pytest.mark.fits_vram(**TINY)
def test_that_is_run_again(): pass
"""
)
AGAIN = """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    if item.name == "test_that_is_run_again":
        runtestprotocol(item, log=False, nextitem=nextitem)
"""


@pytest.fixture
def suite(run_once: RunOnce) -> ET.Element:
    ran = run_once("--vramfit=cpu", "--junitxml=junit.xml", test_it=SUITE, conftest=AGAIN)
    found = ET.parse(ran.folder / "junit.xml").find("testsuite")
    assert found is not None
    return found


def properties(suite: ET.Element, test: str) -> list[tuple[str, str]]:
    elements = suite.findall(f"testcase[@name='{test}']/properties/property")
    return [(one.attrib["name"], one.attrib["value"]) for one in elements]


def test_counts(suite: ET.Element) -> None:
    """A verdict is a failure, what could not be measured an error, unsupported a skip."""
    names = ("tests", "failures", "errors", "skipped")
    assert [suite.attrib[name] for name in names] == ["8", "2", "2", "1"]


@pytest.mark.parametrize(
    ("test", "kind"),
    [
        ("test_does_not_fit", "failure"),
        ("test_refused", "error"),
        ("test_wrong", "error"),
        ("test_unsupported", "skipped"),
        # not an error: JUnit knows errors of set-up and tear-down only; nor an xfail
        ("test_only_measures_refused", "failure"),
    ],
)
def test_kind(suite: ET.Element, test: str, kind: str) -> None:
    assert len(suite.findall(f"testcase[@name='{test}']/{kind}")) == 1


def test_figures(suite: ET.Element) -> None:
    found = dict(properties(suite, "test_fits"))
    assert (found["vramfit_outcome"], found["vramfit_engine"]) == ("fits", "cpu")
    assert int(found["vramfit_peak_allocated_bytes"]) > 2**20
    assert float(found["vramfit_tokens_per_second"]) > 0


def test_property_of_the_test_itself_stays(suite: ET.Element) -> None:
    assert ("mine", "1") in properties(suite, "test_fits")


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_does_not_fit", "over_vram"),
        ("test_refused", "refused"),
        ("test_unsupported", "unsupported"),
    ],
)
def test_outcome_of_its_own_test(suite: ET.Element, test: str, outcome: str) -> None:
    assert dict(properties(suite, test))["vramfit_outcome"] == outcome


def test_not_measured_has_no_figure(suite: ET.Element) -> None:
    names = [name for name, _ in properties(suite, "test_refused")]
    assert names == ["vramfit_outcome", "vramfit_engine", "vramfit_digest"]


@pytest.mark.parametrize("test", ["test_wrong", "test_only_measures"])
def test_unjudged_has_no_properties(suite: ET.Element, test: str) -> None:
    assert properties(suite, test) == []


def test_run_again_has_each_property_once(suite: ET.Element) -> None:
    names = [name for name, _ in properties(suite, "test_that_is_run_again")]
    assert len(names) == len(set(names)) > 3
