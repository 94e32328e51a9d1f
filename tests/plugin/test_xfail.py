"""``xfail`` is for verdicts: a case that could not be measured stays an ERROR."""

from __future__ import annotations

import pytest
from inner import HEAD, Ran, RunOnce

SUITE = (
    HEAD
    + """
for_certain = pytest.mark.xfail(strict=True)
maybe = pytest.mark.xfail(strict=False)

@for_certain
@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_fails_strict(): pass

@maybe
@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_fails_maybe(): pass

@for_certain
@pytest.mark.fits_vram(**TINY)
def test_holds_strict(): pass

@maybe
@pytest.mark.fits_vram(**TINY)
def test_holds_maybe(): pass

@pytest.mark.xfail(raises=ZeroDivisionError)
@pytest.mark.fits_vram(**TINY, card="1MiB")
def test_fails_otherwise(): pass

@pytest.mark.xfail(run=False)
@pytest.mark.fits_vram(wrong=True)
def test_not_run(): pass

@for_certain
@pytest.mark.fits_vram(**TINY, wrong=True)
def test_wrong_strict(): pass

@maybe
@pytest.mark.fits_vram(**TINY, wrong=True)
def test_wrong_maybe(): pass

@for_certain
@pytest.mark.fits_vram(**TINY, targets=["foo"])
def test_refused_strict(): pass

@maybe
@pytest.mark.fits_vram(**TINY, targets=["foo"])
def test_refused_maybe(): pass

@for_certain
@pytest.mark.fits_vram(model="Qwen2.5-72B", method="full")
def test_unsupported_strict(): pass

@for_certain
@pytest.mark.parametrize("vramfit", [TINY])
def test_replaced_strict(vramfit): pass

@for_certain
@pytest.mark.fits_vram(**TINY, timeout=0.001)
def test_timeout_strict(): pass
"""
)


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", test_it=SUITE)


@pytest.mark.parametrize(
    ("test", "word"),
    [
        ("test_fails_strict", "XFAIL"),
        ("test_fails_maybe", "XFAIL"),
        ("test_holds_strict", "FAILED"),
        ("test_holds_maybe", "XPASS"),
        ("test_fails_otherwise", "FAILED"),
        ("test_not_run", "XFAIL"),
    ],
)
def test_verdict(ran: Ran, test: str, word: str) -> None:
    """As for any other test."""
    assert ran.word(test) == word


@pytest.mark.parametrize(
    "test",
    [
        "test_wrong_strict",
        "test_wrong_maybe",
        "test_refused_strict",
        "test_refused_maybe",
        "test_timeout_strict",
    ],
)
def test_could_not_measure(ran: Ran, test: str) -> None:
    assert ran.word(test) == "ERROR"


def test_replaced_fixture(ran: Ran) -> None:
    assert ran.word("test_replaced_strict[model=tiny,rank=4,seq=16,steps=1,warmup=2]") == "ERROR"


def test_unsupported(ran: Ran) -> None:
    assert ran.word("test_unsupported_strict") == "SKIPPED"


def test_exit_status(ran: Ran) -> None:
    assert ran.status == pytest.ExitCode.TESTS_FAILED
