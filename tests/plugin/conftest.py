"""Fixtures of the plugin tests."""

from __future__ import annotations

import pytest
from inner import Ran, RunOnce, run


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is installed has no say in an inner run, and costs it no time."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture(scope="module")
def kept() -> dict[object, Ran]:
    """The runs of a module, each looked at by several tests."""
    return {}


@pytest.fixture
def run_once(pytester: pytest.Pytester, kept: dict[object, Ran]) -> RunOnce:
    """``run_once(*arguments, test_a=source, ...)``: the same run for all tests of a module."""

    def run_once(*arguments: str, **files: str) -> Ran:
        key = (arguments, *files.items())
        if key not in kept:
            pytester.makepyfile(**files)
            kept[key] = run(pytester, *arguments)
        return kept[key]

    return run_once
