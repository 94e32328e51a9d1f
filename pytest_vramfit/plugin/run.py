"""One pytest run: measures in set-up, judges around the call, reports."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_vramfit.plugin import items, recording
from pytest_vramfit.plugin.options import Settings
from pytest_vramfit.plugin.progress import ProgressLine

if TYPE_CHECKING:
    from pytest_vramfit.gate import Gate
    from pytest_vramfit.measuring.client import OnProgress
    from pytest_vramfit.plugin.fixture import Vramfit
    from pytest_vramfit.reporting.results import Row
    from pytest_vramfit.spec import Claim
    from pytest_vramfit.verdict import Case, Check


class CouldNotMeasureError(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """Not a verdict: stays an ERROR, also under ``xfail`` and in the body of a test."""

    __module__ = "builtins"  # as pytest does, so that its one-line summary shows the message

    def __init__(self, says: str) -> None:
        super().__init__(says, pytrace=False)


_claim = pytest.StashKey["Claim"]()
_case = pytest.StashKey["Case"]()
_rows = pytest.StashKey["list[Row]"]()


class Run:
    """The run's settings, its gate, its rows, and pytest's hooks that need them."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._gate: Gate | None = None
        self._setup_plan: bool = config.getoption("setupplan", default=False)
        self._ran = False
        """Whether any test was run: a run that only collects leaves an earlier results file."""
        self._rows_of: dict[str, list[Row]] = {}
        """The rows of each test by its nodeid."""
        self._passed: set[str] = set()
        self._collected = recording.Collected()
        self._last_lines: list[str] = []
        self._cases_left = 0
        self._measured_ns: list[int] = []
        """How long each case took."""

    def pytest_report_header(self) -> str | None:
        """Say what will be measured on, or that results which were asked for will not come."""
        settings = self._settings
        if settings.engine is None and settings.json is None:
            return None
        from pytest_vramfit.reporting import header

        if settings.engine is None:
            return header.without_engine(settings.gpu_option)
        return header.line(settings.engine, settings.card)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Start the worker while the rest is collected."""
        self._collected.add(item.nodeid, is_case=items.is_case(item))
        if self._config.option.collectonly or self._setup_plan:
            return
        if items.is_case(item) or items.FIXTURE in getattr(item, "fixturenames", ()):
            self._ensure_gate()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the cases, to say what remains."""
        self._cases_left = sum(items.is_case(item) for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn what a worker of xdist collected."""
        if collected := getattr(node, "workeroutput", {}).get("vramfit_collected"):
            self._collected.add_json(collected)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a marked test the fixture, read its marker; skip where no engine was asked for."""
        if not items.is_case(item):
            return
        items.add_fixture(item)
        if self._setup_plan:
            return
        item.stash[_claim] = self._read(item, {})
        self._skip_without_engine(item)

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

        self._skip_without_engine(item)
        case = None
        if _claim in item.stash:
            case = self._measure(item, item.stash[_claim], judged=True)
            item.stash[_case] = case

        def measure(keywords: dict[str, Any]) -> Case:
            return self._measure(item, self._read(item, keywords), judged=False)

        def ratios(changed: Case, own: Case) -> Mapping[str, Check]:
            gate = self._ensure_gate()
            assert gate is not None
            with self._progress() as on_progress:
                return gate.ratios(changed, own, on_progress)

        return Vramfit(case, measure, ratios)

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
        if rows := item.stash.get(_rows, []):
            # as text: xdist refuses subclasses of str and int, and a model's config may hold some
            vars(report)["vramfit_rows"] = json.dumps(rows)
            rows.clear()
        return report

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """An ERROR also where ``vramfit.measure`` could not measure in the body of a test."""
        could_not = report.when == "call" and hasattr(report, "vramfit_could_not_measure")
        return ("error", "E", "ERROR") if could_not else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the rows of this process or of xdist's workers."""
        self._ran = not self._setup_plan
        if report.when == "setup":
            self._rows_of.pop(report.nodeid, None)  # it is run again: this time counts
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._passed.add(report.nodeid)
        if text := getattr(report, "vramfit_rows", None):
            self._rows_of.setdefault(report.nodeid, []).extend(json.loads(text))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        rows = [{**row, "nodeid": _as_argument(row["nodeid"], self._config)} for row in self._rows]
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
            vars(self._config)["workeroutput"]["vramfit_collected"] = self._collected.to_json()
        elif self._settings.engine is not None and self._ran:
            self._finish_baselines(session)
            self._write_results(session)
        self.pytest_unconfigure()

    def _finish_baselines(self, session: pytest.Session) -> None:
        settings, rows = self._settings, self._rows
        if settings.update is not None and rows:
            if session.exitstatus == pytest.ExitCode.INTERRUPTED:
                self._last_lines.append("no baseline was recorded: the run was interrupted")
            else:
                gate = self._ensure_gate()
                assert gate is not None
                lines, complete = recording.record(self._config, settings, gate, rows, self._passed)
                self._last_lines += lines
                if not complete and session.exitstatus == pytest.ExitCode.OK:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._last_lines += recording.stale(self._config, settings, rows, self._collected)

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
        if self._gate is not None:
            self._gate.stop()

    @property
    def _rows(self) -> list[Row]:
        return [row for rows in self._rows_of.values() for row in rows]

    def _ensure_gate(self) -> Gate | None:
        engine = self._settings.engine
        if self._gate is None and engine is not None:
            from pytest_vramfit.gate import Gate
            from pytest_vramfit.measuring.client import Worker

            settings = self._settings
            other = settings.against
            self._gate = Gate(
                engine=engine,
                worker=Worker(engine),
                isolate=settings.isolate,
                baselines=settings.baselines,
                update=settings.update,
                against=None if other is None else Worker(engine, other),
            )
            self._gate.start()
        return self._gate

    @contextlib.contextmanager
    def _progress(self) -> Iterator[OnProgress]:
        """What is shown while a case is measured, gone afterwards."""
        from pytest_vramfit.measuring.protocol import Progress

        line = ProgressLine(self._config, self._cases_after())
        line.show(Progress(stage="worker start", done=0, of=1))
        try:
            yield line.show
        finally:
            line.clear()

    def _cases_after(self) -> str:
        """``, 3 more cases in 25 s``, at the pace of those that were measured."""
        if self._cases_left < 1:
            return ""
        cases = f", {self._cases_left} more case" + ("s" if self._cases_left > 1 else "")
        if not self._measured_ns:
            return cases
        seconds = sum(self._measured_ns) / len(self._measured_ns) * self._cases_left / 1e9
        return f"{cases} in {seconds:.0f} s"

    def _skip_without_engine(self, item: pytest.Item) -> None:
        if self._settings.engine is None:
            option = self._settings.gpu_option
            _skip(item, f"runs with {option}, small cases also with --vramfit=cpu")

    def _read(self, item: pytest.Item, keywords: Mapping[str, object]) -> Claim:
        from pytest_vramfit.marker.claim import read_claim
        from pytest_vramfit.marker.keywords import MarkerError
        from pytest_vramfit.plugin import layers

        default = {} if self._settings.card is None else {"card": self._settings.card}
        try:
            claim = read_claim([default, *layers.of(item), keywords], rootdir=self._config.rootpath)
        except MarkerError as error:
            raise CouldNotMeasureError(str(error)) from None
        if claim.limits.card_bytes is not None and self._settings.engine == "gpu":
            raise CouldNotMeasureError(
                "fits_vram: card with --gpu asks for the emulation of a card, which is not built "
                "yet"
            )
        required = claim.limits.require | self._settings.require
        return replace(claim, limits=replace(claim.limits, require=required))

    def _measure(self, item: pytest.Item, claim: Claim, *, judged: bool) -> Case:
        from pytest_vramfit.measuring.protocol import NotMeasured
        from pytest_vramfit.reporting import failure, junit, results

        gate = self._ensure_gate()
        assert gate is not None
        measure = gate.measure if judged else gate.measure_alone
        self._cases_left -= judged
        begin = time.monotonic_ns()
        with self._progress() as on_progress:
            case = measure(item.nodeid, claim, on_progress)
        self._measured_ns += [time.monotonic_ns() - begin] if judged else []
        if isinstance(case, NotMeasured):
            row = results.not_measured_row(item.nodeid, gate.engine, claim, case, judged=judged)
        else:
            row = results.row(case, judged=judged)
        item.stash.setdefault(_rows, []).append(row)
        if judged:
            # not those of an earlier attempt, where the test is run again
            others = [one for one in item.user_properties if not one[0].startswith("vramfit_")]
            item.user_properties = [*others, *junit.properties(row)]
        if not isinstance(case, NotMeasured):
            return case
        if case.outcome == "unsupported" and gate.engine != "gpu":
            _skip(item, case.says)
        raise CouldNotMeasureError(failure.not_measured(claim, case))


def _skip(item: pytest.Item, reason: str) -> NoReturn:
    """Skip at the test's own line; a test made of a data file has none, and pytest asserts it."""
    has_line = item.location[1] is not None
    raise pytest.skip.Exception(reason, _use_item_location=has_line)


def _as_argument(nodeid: str, config: pytest.Config) -> str:
    """The nodeid, whose path is the rootdir's, as an argument from where pytest was called."""
    called_in = config.invocation_params.dir
    path, *names = nodeid.split("::")
    if called_in != config.rootpath:
        with contextlib.suppress(ValueError):  # on another drive
            path = os.path.relpath(config.rootpath / path, called_in)
    return "::".join([path, *names])
