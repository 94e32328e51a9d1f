"""The cases of a run: what each item claims, measured in the gate's worker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from pytest_vramfit.plugin.errors import CouldNotMeasureError
from pytest_vramfit.plugin.options import Settings
from pytest_vramfit.plugin.progress import ProgressLine

if TYPE_CHECKING:
    from pytest_vramfit.gate import Gate
    from pytest_vramfit.reporting.results import Row
    from pytest_vramfit.spec import Claim
    from pytest_vramfit.verdict import Case, Check
    from pytest_vramfit.worker.client import OnProgress


_rows = pytest.StashKey["list[Row]"]()


class Cases:
    """Reads markers, measures, shows progress; the gate starts with the first need of it."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self._config = config
        self._settings = settings
        self._gate: Gate | None = None
        self._left = 0
        self._measured_ns: list[int] = []
        """How long each case took."""

    def expect(self, cases: int) -> None:
        """So many cases are to come."""
        self._left = cases

    def start(self) -> Gate:
        """Start importing, if that has not begun. There must be an engine."""
        if self._gate is None:
            from pytest_vramfit.gate import Gate
            from pytest_vramfit.worker.client import Worker

            settings = self._settings
            engine, other = settings.engine, settings.against
            assert engine is not None
            worker = Worker(engine)
            self._gate = Gate(
                engine=engine,
                worker=worker,
                isolate=settings.isolate,
                baselines=settings.baselines,
                update=settings.update,
                against=None if other is None else Worker(engine, other),
                predicting={"estimate": worker, "gpu": Worker("estimate"), "cpu": None}[engine],
            )
            self._gate.start()
        return self._gate

    def stop(self) -> None:
        """End the workers, if there are any."""
        if self._gate is not None:
            self._gate.stop()

    def skip_without_engine(self, item: pytest.Item) -> None:
        """Skip where nothing is to be measured, and say what would."""
        if self._settings.engine is None:
            option = self._settings.gpu_option
            _skip(
                item,
                f"runs with {option}, small cases also with --vramfit=cpu; --vramfit=estimate "
                "predicts it",
            )

    def claim(self, item: pytest.Item, keywords: Mapping[str, object]) -> Claim:
        """What the item's markers claim, refined by these keywords."""
        from pytest_vramfit.marker.claim import read_claim
        from pytest_vramfit.marker.keywords import MarkerError
        from pytest_vramfit.plugin import layers

        default = {} if self._settings.card is None else {"card": self._settings.card}
        try:
            claim = read_claim([default, *layers.of(item), keywords], rootdir=self._config.rootpath)
        except MarkerError as error:
            raise CouldNotMeasureError(str(error)) from None
        if claim.limits.card_bytes is None and self._settings.engine == "estimate":
            raise CouldNotMeasureError(
                "fits_vram: an estimate needs a card: card='RTX 5070 Ti' in the marker, or "
                "--vramfit-card"
            )
        required = claim.limits.require | self._settings.require
        return replace(claim, limits=replace(claim.limits, require=required))

    def measure(self, item: pytest.Item, claim: Claim, *, judged: bool) -> Case:
        """Measure a claim; keep its row. Skips, or raises CouldNotMeasureError."""
        from pytest_vramfit.reporting import failure, junit, results
        from pytest_vramfit.worker.protocol import NotMeasured

        gate = self.start()
        measure = gate.measure if judged else gate.measure_alone
        self._left -= judged
        begin = time.monotonic_ns()
        with self._progress() as on_progress:
            case = measure(item.nodeid, claim, on_progress)
            # nobody looks for a way out of a failure that is expected
            expected = item.get_closest_marker("xfail") is not None
            if judged and not expected and not isinstance(case, NotMeasured):
                case = gate.advised(case, on_progress)
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

    def ratios(self, changed: Case, own: Case) -> Mapping[str, Check]:
        """One case against another, both measured once more, in turn."""
        gate = self.start()
        with self._progress() as on_progress:
            return gate.ratios(changed, own, on_progress)

    def take_rows(self, item: pytest.Item) -> list[Row]:
        """The rows of what was measured for an item since they were last taken."""
        rows = item.stash.get(_rows, [])
        item.stash[_rows] = []
        return rows

    @contextlib.contextmanager
    def _progress(self) -> Iterator[OnProgress]:
        """What is shown while a case is measured, gone afterwards."""
        from pytest_vramfit.worker.protocol import Progress

        line = ProgressLine(self._config, self._cases_after())
        line.show(Progress(stage="worker start", done=0, of=1))
        try:
            yield line.show
        finally:
            line.clear()

    def _cases_after(self) -> str:
        """``, 3 more cases in 25 s``, at the pace of those that were measured."""
        if self._left < 1:
            return ""
        cases = f", {self._left} more case" + ("s" if self._left > 1 else "")
        if not self._measured_ns:
            return cases
        seconds = sum(self._measured_ns) / len(self._measured_ns) * self._left / 1e9
        return f"{cases} in {seconds:.0f} s"


def _skip(item: pytest.Item, reason: str) -> NoReturn:
    """Skip at the test's own line; a test made of a data file has none, and pytest asserts it."""
    has_line = item.location[1] is not None
    raise pytest.skip.Exception(reason, _use_item_location=has_line)
