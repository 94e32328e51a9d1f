"""One pytest run: measures in set-up, judges around the call, reports."""

from __future__ import annotations

import functools
import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_vramfit.plugin import items
from pytest_vramfit.plugin.errors import CouldNotMeasureError
from pytest_vramfit.plugin.options import Settings

if TYPE_CHECKING:
    from pytest_vramfit.plugin.cases import Cases
    from pytest_vramfit.plugin.fixture import Vramfit
    from pytest_vramfit.reporting.results import Row
    from pytest_vramfit.spec import Claim
    from pytest_vramfit.verdict import Case


_claim: pytest.StashKey[Claim] = pytest.StashKey()
_case: pytest.StashKey[Case | None] = pytest.StashKey()
"""The judged case, from set-up until the test is torn down."""


class Run:
    """The run's settings, its cases, its rows, and pytest's hooks that need them."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._setup_plan: bool = config.getoption("setupplan", default=False)
        self._ran = False
        """Whether any test was run: a run that only collects leaves an earlier results file."""
        self._rows_of: dict[str, list[str]] = {}
        """The rows of each test by its nodeid, as JSON: a run may have thousands of them."""
        self._tests: dict[str, str] = {}
        """How each test went, over all its phases: passed, failed or skipped; none of a test whose
        call was never reached, as under ``--setup-only`` or when the run was interrupted.
        """
        self._collected: list[str] = []
        """Every test that was collected, under an engine."""
        self._last_lines: list[str] = []

    @functools.cached_property
    def _cases(self) -> Cases:
        # a run without cases must not pay for the import
        from pytest_vramfit.plugin.cases import Cases

        return Cases(self._config, self._settings)

    def pytest_report_header(self) -> list[str]:
        """Say what will be measured on and what is wrong with it, or that results which were asked
        for will not come.
        """
        settings = self._settings
        if settings.engine is None and settings.json is None:
            return []
        from pytest_vramfit.reporting import header

        if settings.engine is None:
            return [header.without_engine(settings.gpu_option)]
        ailments = header.ailments() if settings.engine == "gpu" else []
        return [header.line(settings.engine, settings.card), *ailments]

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Start the worker while the rest is collected."""
        if self._settings.engine is None:
            return
        self._collected.append(item.nodeid)
        if self._config.option.collectonly or self._setup_plan:
            return
        if items.may_measure(item):
            self._cases.start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the cases, to say what remains; end the worker where all were deselected."""
        if self._settings.engine is None:
            return
        self._cases.expect(sum(items.is_case(item) for item in session.items))
        if not any(items.may_measure(item) for item in session.items):
            self._cases.stop()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn what a worker of xdist collected."""
        if collected := getattr(node, "workeroutput", {}).get("vramfit_collected"):
            self._collected += collected

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a marked test the fixture, read its marker; skip where no engine was asked for."""
        if not items.is_case(item):
            return
        if (reason := items.skip_of_unittest(item)) is not None:
            pytest.skip(reason)
        items.add_fixture(item)
        if self._setup_plan:
            return
        item.stash[_claim] = self._cases.claim(item, {})
        self._cases.skip_without_engine(item)

    def ensure_measured(self, item: pytest.Item) -> None:
        """Raise where a marked test got past its set-up without a case."""
        measured = _case in item.stash or not items.is_case(item)
        if measured or self._setup_plan or self._settings.engine is None:
            return
        if _claim not in item.stash:
            says = "the marker came too late for set-up; add it while pytest collects"
        elif not hasattr(item, "fixturenames"):
            says = "this kind of test takes no fixtures, so it cannot be a case"
        else:
            says = (
                f"the fixture {items.FIXTURE!r} was replaced, so nothing was measured; parametrize "
                "it with indirect=True, and give no other fixture this name"
            )
        raise CouldNotMeasureError(f"fits_vram: {says}")

    def fixture(self, item: pytest.Item) -> Vramfit:
        """Measure the item's case, if it has one."""
        from pytest_vramfit.plugin.fixture import Vramfit

        cases = self._cases
        cases.skip_without_engine(item)
        case = None
        if _claim in item.stash:
            case = cases.measure(item, item.stash[_claim], judged=True)
            item.stash[_case] = case

        def measure(keywords: dict[str, Any]) -> Case:
            return cases.measure(item, cases.claim(item, keywords), judged=False)

        return Vramfit(case, measure, cases.ratios)

    def case_of(self, item: pytest.Item) -> Case | None:
        """The item's judged case, once it was measured."""
        return item.stash.get(_case, None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Raise the verdict, before the test's own body."""
        case = self.case_of(item)
        if case is not None and case.outcome != "fits":
            from pytest_vramfit.reporting import failure

            pytest.fail(failure.text(case), pytrace=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep errors errors; pass the rows on, to xdist's controller too."""
        report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, CouldNotMeasureError):
            report.outcome = "failed"
            vars(report).pop("wasxfail", None)
            vars(report)["vramfit_could_not_measure"] = True
        rows = self._cases.take_rows(item) if "_cases" in vars(self) else []
        if rows:
            # as text: xdist refuses subclasses of str and int, and a model's config may hold some
            vars(report)["vramfit_rows"] = json.dumps(rows)
        if call.when == "teardown":
            item.stash[_case] = None
        return report

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """An ERROR also where ``vramfit.measure`` could not measure in the body of a test."""
        could_not = report.when == "call" and hasattr(report, "vramfit_could_not_measure")
        return ("error", "E", "ERROR") if could_not else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the rows of this process or of xdist's workers."""
        self._ran = not self._setup_plan
        if report.when == "setup":
            # where it is run again, this time counts
            self._rows_of.pop(report.nodeid, None)
            self._tests.pop(report.nodeid, None)
        if report.failed or report.when == "call" or (report.when == "setup" and report.skipped):
            self._note(report)
        if hasattr(self._config, "workerinput"):
            return  # xdist has still to send it
        if text := vars(report).pop("vramfit_rows", None):
            self._rows_of.setdefault(report.nodeid, []).append(text)

    def _note(self, report: pytest.TestReport) -> None:
        """Keep how the test went: a failure in any phase or subtest is one of the test."""
        if self._tests.get(report.nodeid) == "failed":
            return
        excused = report.skipped or hasattr(report, "wasxfail")
        self._tests[report.nodeid] = "skipped" if excused else report.outcome

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        rows = [
            {**row, "nodeid": items.as_argument(row["nodeid"], self._config)} for row in self._rows
        ]
        if rows:
            from pytest_vramfit.reporting import summary

            settings = self._settings
            terminalreporter.write_sep("=", "vramfit")
            lines = summary.lines(rows, command=settings.command, gpu_command=settings.gpu_command)
            for line in (*lines, *self._last_lines):
                terminalreporter.write_line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Record baselines, end the worker, write the results."""
        if hasattr(self._config, "workerinput"):
            vars(self._config)["workeroutput"]["vramfit_collected"] = self._collected
        elif self._settings.engine is not None and self._ran:
            for row in self._rows:
                row["test"] = self._tests.get(row["nodeid"])
            self._finish_baselines(session)
            self._write_results(session)
        self.pytest_unconfigure()

    def _finish_baselines(self, session: pytest.Session) -> None:
        from pytest_vramfit.plugin import recording

        config, settings, rows = self._config, self._settings, self._rows
        if settings.update is not None and rows:
            if session.exitstatus != pytest.ExitCode.INTERRUPTED:
                try:
                    lines, complete = recording.record(config, settings, self._cases.start(), rows)
                    self._last_lines += lines
                    if not complete and session.exitstatus == pytest.ExitCode.OK:
                        session.exitstatus = pytest.ExitCode.TESTS_FAILED
                except KeyboardInterrupt:
                    session.exitstatus = pytest.ExitCode.INTERRUPTED
            if session.exitstatus == pytest.ExitCode.INTERRUPTED:
                self._last_lines.append("no baseline was recorded: the run was interrupted")
        self._last_lines += recording.stale(config, settings, rows, self._collected)

    def _write_results(self, session: pytest.Session) -> None:
        path = self._settings.json
        if path is None:
            return
        from pytest_vramfit.reporting import results

        try:
            results.write(path, self._rows)
        except OSError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print(f"\n--vramfit-json={path} could not be written: {error}")  # noqa: T201

    def pytest_unconfigure(self) -> None:
        """End the worker, also where the session did not come to its end."""
        if "_cases" in vars(self):
            self._cases.stop()

    @functools.cached_property
    def _rows(self) -> list[Row]:
        """Every row, once all tests have run."""
        return [row for texts in self._rows_of.values() for one in texts for row in json.loads(one)]
