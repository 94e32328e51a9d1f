"""Pytest's hooks: each hands over to the part that does the work."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_vramfit.plugin import layers, options

if TYPE_CHECKING:
    from pytest_vramfit.gate import Gate
    from pytest_vramfit.plugin.fixture import Vramfit
    from pytest_vramfit.reporting.results import Row
    from pytest_vramfit.spec import Claim
    from pytest_vramfit.verdict import Case


class CouldNotMeasureError(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """Not a verdict: stays an ERROR, also under ``xfail``."""

    __module__ = "builtins"  # as pytest does, so that its one-line summary shows the message

    def __init__(self, says: str) -> None:
        super().__init__(says, pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options that nobody else can have."""
    options.add(parser)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, object, object]:
    """Register ``--gpu`` when the conftests had their turn."""
    result = yield
    options.add_gpu(parser)
    return result


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, read the options."""
    config.addinivalue_line(
        "markers",
        "fits_vram(model, *, method, rank, seq, batch, ...): run this fine-tuning step and assert "
        "that it fits; see the README for every keyword",
    )
    config.pluginmanager.register(Run(config, options.read(config)), "vramfit-run")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """``seq=512`` for the fixture's parameters."""
    return layers.parameter_id(val) if argname == layers.FIXTURE else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the fixture to tests that are parametrized over it without naming it."""
    names = metafunc.fixturenames
    over_it = any(
        layers.FIXTURE in str(mark.args[:1] or mark.kwargs.get("argnames"))
        for mark in metafunc.definition.iter_markers("parametrize")
    )
    if over_it and layers.FIXTURE not in names:
        names.append(layers.FIXTURE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """When all fixtures are there, make sure that a case was measured."""
    yield
    if _claim in item.stash and _case not in item.stash:
        raise CouldNotMeasureError(
            f"fits_vram: the fixture {layers.FIXTURE!r} was replaced, so nothing was measured; "
            "parametrize it with indirect=True, and give no other fixture this name"
        )


@pytest.fixture
def vramfit(request: pytest.FixtureRequest) -> Vramfit:
    """The marked test's case, measured before the test and judged around it."""
    run: Run = request.config.pluginmanager.getplugin("vramfit-run")
    return run.fixture(request.node)


_claim = pytest.StashKey["Claim"]()
_case = pytest.StashKey["Case"]()
_rows = pytest.StashKey["list[Row]"]()


class Run:
    """One pytest run: its settings, its gate, its rows."""

    def __init__(self, config: pytest.Config, settings: options.Settings) -> None:
        self._config = config
        self._settings = settings
        self._gate: Gate | None = None
        self._collected: list[Row] = []

    def pytest_report_header(self) -> str | None:
        """Say what will be measured on."""
        if self._settings.engine is None:
            return None
        from pytest_vramfit.reporting import header

        return header.line(self._settings.engine, self._settings.card)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Give marked tests the fixture; start the worker while the rest is collected."""
        names = getattr(item, "fixturenames", None)
        if names is None or not (layers.is_case(item) or layers.FIXTURE in names):
            return
        if layers.FIXTURE not in names:
            names.append(layers.FIXTURE)
        if not self._config.option.collectonly:
            self._ensure_gate()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Read the marker; skip where no engine was asked for."""
        if not layers.is_case(item):
            return
        item.stash[_claim] = self._read(item, {})
        self._skip_without_engine()

    def fixture(self, item: pytest.Item) -> Vramfit:
        """Measure the item's case, if it has one."""
        from pytest_vramfit.plugin.fixture import Vramfit

        self._skip_without_engine()
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
        if rows := item.stash.get(_rows, []):
            vars(report)["vramfit_rows"] = list(rows)
            rows.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the rows of this process or of xdist's workers."""
        self._collected += getattr(report, "vramfit_rows", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary, write the results."""
        if self._collected:
            from pytest_vramfit.reporting import summary

            terminalreporter.section("vramfit")
            for line in summary.lines(self._collected, command=self._settings.command):
                terminalreporter.write_line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the worker, write the results."""
        if self._gate is not None:
            self._gate.worker.stop()
        path = self._settings.json
        if path is None or self._settings.engine is None or hasattr(self._config, "workerinput"):
            return
        from pytest_vramfit.reporting import results

        try:
            results.write(path, self._collected)
        except OSError as error:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            print(f"\n--vramfit-json={path} could not be written: {error}")  # noqa: T201

    def pytest_unconfigure(self) -> None:
        """End the worker where the session did not come to its end."""
        if self._gate is not None:
            self._gate.worker.stop()

    def _ensure_gate(self) -> Gate | None:
        engine = self._settings.engine
        if self._gate is None and engine is not None:
            from pytest_vramfit.gate import Gate
            from pytest_vramfit.measuring.client import Worker

            self._gate = Gate(engine=engine, worker=Worker(engine), isolate=self._settings.isolate)
            self._gate.worker.start()
        return self._gate

    def _skip_without_engine(self) -> None:
        if self._settings.engine is None:
            reason = f"runs with {self._settings.run_option}, small cases also with --vramfit=cpu"
            raise pytest.skip.Exception(reason, _use_item_location=True)

    def _read(self, item: pytest.Item, keywords: Mapping[str, object]) -> Claim:
        from pytest_vramfit.keywords import MarkerError
        from pytest_vramfit.marker import read_claim

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
        from pytest_vramfit.measuring.protocol import NotMeasured
        from pytest_vramfit.plugin.progress import ProgressLine
        from pytest_vramfit.reporting import failure, junit, results

        gate = self._ensure_gate()
        assert gate is not None
        progress = ProgressLine(self._config)
        try:
            case = gate.measure(item.nodeid, claim, progress.show)
        finally:
            progress.clear()
        rows = item.stash.setdefault(_rows, [])
        if isinstance(case, NotMeasured):
            rows.append(results.not_measured_row(item.nodeid, gate.engine, claim, case))
            if case.outcome == "unsupported" and gate.engine != "gpu":
                raise pytest.skip.Exception(case.says, _use_item_location=True)
            raise CouldNotMeasureError(failure.not_measured(claim, case))
        row = results.row(case, judged=judged)
        rows.append(row)
        if judged:
            item.user_properties += junit.properties(row)
        return case
