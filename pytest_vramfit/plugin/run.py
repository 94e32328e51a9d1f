"""One pytest run: measures in set-up, judges around the call, reports."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_vramfit.plugin import items
from pytest_vramfit.plugin.options import Settings

if TYPE_CHECKING:
    from pytest_vramfit.gate import Gate
    from pytest_vramfit.plugin.fixture import Vramfit
    from pytest_vramfit.reporting.results import Row
    from pytest_vramfit.spec import Claim
    from pytest_vramfit.verdict import Case


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
        self._collected: dict[str, list[Row]] = {}
        """The rows of each test by its nodeid."""

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
        if self._config.option.collectonly or self._setup_plan:
            return
        if items.is_case(item) or items.FIXTURE in getattr(item, "fixturenames", ()):
            self._ensure_gate()

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

        return Vramfit(case, measure)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Raise the verdict, before the test's own body."""
        case = item.stash.get(_case, None)
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
            self._collected.pop(report.nodeid, None)  # it is run again: this time counts
        if text := getattr(report, "vramfit_rows", None):
            self._collected.setdefault(report.nodeid, []).extend(json.loads(text))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        rows = [{**row, "nodeid": _as_argument(row["nodeid"], self._config)} for row in self._rows]
        if rows:
            from pytest_vramfit.reporting import summary

            settings = self._settings
            terminalreporter.write_sep("=", "vramfit")
            lines = summary.lines(rows, command=settings.command, gpu_command=settings.gpu_command)
            for line in lines:
                terminalreporter.write_line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the worker, write the results."""
        self.pytest_unconfigure()
        path = self._settings.json
        in_xdist_worker = hasattr(self._config, "workerinput")
        if path is None or self._settings.engine is None or in_xdist_worker or not self._ran:
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
            self._gate.worker.stop()

    @property
    def _rows(self) -> list[Row]:
        return [row for rows in self._collected.values() for row in rows]

    def _ensure_gate(self) -> Gate | None:
        engine = self._settings.engine
        if self._gate is None and engine is not None:
            from pytest_vramfit.gate import Gate
            from pytest_vramfit.measuring.client import Worker

            self._gate = Gate(engine=engine, worker=Worker(engine), isolate=self._settings.isolate)
            self._gate.worker.start()
        return self._gate

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
        return claim

    def _measure(self, item: pytest.Item, claim: Claim, *, judged: bool) -> Case:
        from pytest_vramfit.measuring.protocol import NotMeasured, Progress
        from pytest_vramfit.plugin.progress import ProgressLine
        from pytest_vramfit.reporting import failure, junit, results

        gate = self._ensure_gate()
        assert gate is not None
        progress = ProgressLine(self._config)
        progress.show(Progress(stage="worker start", done=0, of=1))
        try:
            case = gate.measure(item.nodeid, claim, progress.show)
        finally:
            progress.clear()
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
