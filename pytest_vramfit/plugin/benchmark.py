"""Each case that fits as a result of pytest-benchmark, which saves and compares it by its options.

The samples are replayed: by a clock that stands still, but for the benchmarked function, which
moves it by the next of them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_vramfit.plugin import items

if TYPE_CHECKING:
    from pytest_vramfit.verdict import Case

_FIXTURE = "benchmark"
_CODSPEED = "codspeed_benchmark"
"""The other name under which pytest-codspeed knows a benchmark, and nobody else does."""

_request = pytest.StashKey[pytest.FixtureRequest]()
_report = pytest.StashKey[pytest.TestReport]()


def keep(request: pytest.FixtureRequest) -> None:
    """Keep a case's request, to request the benchmark by it when the test has passed.

    Not before: pytest-benchmark warns of a fixture that was not used, as a failed case's would be.
    """
    request.node.stash[_request] = request


class Replay:
    """Pytest's hooks that hand the cases over."""

    def __init__(self, case_of: Callable[[pytest.Item], Case | None]) -> None:
        self._case_of = case_of
        self._had_cases = False

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Let cases pass for benchmarks where others are skipped or deselected."""
        names = [_CODSPEED]
        if config.getoption("benchmark_only", default=False):
            names.append(_FIXTURE)
        lent = {item: _lend(item, names) for item in items}
        try:
            return (yield)
        finally:
            for item, theirs in lent.items():
                _take_back(item, theirs)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep the report: a body may have failed without raising, as unittest's do."""
        report = yield
        item.stash[_report] = report
        self._had_cases |= self._case_of(item) is not None
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Replay the case of a test that passed, while its fixtures are there."""
        report = item.stash.get(_report, None)
        try:
            if report is not None and report.when == "call" and report.passed:
                self._replay(item)
        finally:
            result = yield
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """Keep the failures on the screen where no case fits and warnings are errors.

        For pytest-benchmark warns when nothing is left to save, and raised here that would end
        pytest before its summary.
        """
        with warnings.catch_warnings():
            if self._had_cases:
                warnings.filterwarnings("default", message="Not saving anything")
            return (yield)

    def _replay(self, item: pytest.Item) -> None:
        case, request = self._case_of(item), item.stash.get(_request, None)
        if case is None or request is None:
            return
        if _FIXTURE in request.fixturenames or not _is_of_pytest_benchmark(item):
            return  # the test has a benchmark of its own
        clock = _Clock(case.measurement.step_ns)
        theirs = item.get_closest_marker(_FIXTURE)
        options = {"group": _group(case), **(theirs.kwargs if theirs else {})}
        options["timer"] = clock.replayed
        item.add_marker(pytest.mark.benchmark(**options), append=False)
        with contextlib.suppress(pytest.skip.Exception):  # --benchmark-skip
            benchmark = request.getfixturevalue(_FIXTURE)
            benchmark.extra_info.update(_extra_info(case))
            benchmark.pedantic(clock.step, rounds=len(case.measurement.step_ns))


class _Clock:
    """Moves by the next sample at each step."""

    def __init__(self, samples_ns: Iterable[int]) -> None:
        self._samples_ns = iter(samples_ns)
        self._now_ns = 0

    def replayed(self) -> float:
        """The time in seconds; results show this name as their timer's."""
        return self._now_ns / 1e9

    def step(self) -> None:
        """Be the benchmarked function; a profiler runs it once more, when no sample is left."""
        self._now_ns += next(self._samples_ns, 0)


def _lend(item: pytest.Item, names: Iterable[str]) -> list[str]:
    """Add those of the names that a case does not have, and return them."""
    known = getattr(item, "fixturenames", None)
    if known is None or not items.is_case(item):
        return []
    lent = [name for name in names if name not in known]
    # a list of its own: pytest shares one among all parameters of a function
    vars(item)["fixturenames"] = [*known, *lent]
    return lent


def _take_back(item: pytest.Item, lent: Iterable[str]) -> None:
    """Remove them, so that set-up does not request them; others may have added some meanwhile."""
    if lent:
        names = vars(item)["fixturenames"]
        vars(item)["fixturenames"] = [name for name in names if name not in lent]


def _is_of_pytest_benchmark(item: pytest.Item) -> bool:
    """Whether the test would get that plugin's fixture, and not one of the same name."""
    # nothing public tells whose a fixture is without running it
    manager = item.session._fixturemanager  # noqa: SLF001
    modules = [one.func.__module__ for one in manager.getfixturedefs(_FIXTURE, item) or ()]
    return modules[-1:] == ["pytest_benchmark.plugin"]


def _group(case: Case) -> str:
    return f"vramfit {case.engine} {case.measurement.device.name}"


def _extra_info(case: Case) -> Mapping[str, Any]:
    memory = case.measurement.memory
    return {
        "outcome": case.outcome,
        "engine": case.engine,
        "device": case.measurement.device.name,
        "digest": case.claim.spec.digest,
        "peak_allocated_bytes": memory.peak_allocated_bytes if memory else None,
        "tokens_per_second": case.tokens_per_second,
    }
