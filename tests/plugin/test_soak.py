"""A run of many cases costs no more memory and time a case at its end."""

from __future__ import annotations

from soak import growth, run

CASES = 48
KIB = 1024


def test_soak(pytester, monkeypatch) -> None:
    """As `python tests/soak.py 1000`, in short. A row of results is about 5 KiB."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    seen = run(pytester.path, CASES)
    assert len(seen) == CASES
    grown = growth(seen)
    assert grown["parent"] < 16 * KIB
    assert grown["worker"] < 64 * KIB
    assert grown["time"] < 2
