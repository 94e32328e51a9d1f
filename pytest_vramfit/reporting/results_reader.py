"""``results.json`` read back: the judged cases of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_vramfit.baseline import Entry
from pytest_vramfit.baseline.entry import read_processes, read_spec
from pytest_vramfit.baseline.json_reader import Value
from pytest_vramfit.measurement import Conditions
from pytest_vramfit.reporting.results import SCHEMA

_AGAINST_A_BASELINE = {"step_time", "gpu_time", "peak_baseline"}
_OUTCOMES_OF_THESE = {"fits", "slower", "heavier"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One judged case, as far as others can be compared with it."""

    nodeid: str
    engine: str
    device: str | None
    """None where the whole run could not measure."""
    digest: str
    spec: Mapping[str, Any]
    outcome: str
    test: str | None
    """How its test went: passed, failed or skipped; None in the files of older versions."""
    failed: tuple[str, ...]
    """The names of its failed checks."""
    not_made: tuple[str, ...]
    """Those among them that failed only because they had to be made and were not."""
    throttled: tuple[str, ...]
    """Why the GPU's clocks were held down from outside while it was measured."""
    conditions: tuple[Conditions, ...]
    """What it ran under, as far as it can excuse a slow step."""
    entry: Entry | None
    """Its figures; None where it did not get through."""

    @classmethod
    def of(cls, entry: Entry) -> Result:
        """What a baseline says of its case: only sound ones are recorded."""
        return cls(
            nodeid=entry.nodeid,
            engine=entry.engine,
            device=entry.device,
            digest=entry.digest,
            spec=entry.spec,
            outcome="fits",
            test=None,
            failed=(),
            not_made=(),
            throttled=(),
            conditions=(),
            entry=entry,
        )

    @property
    def sound(self) -> bool:
        """Whether nothing but a check against an earlier baseline failed, and that was made."""
        only_these = _AGAINST_A_BASELINE.issuperset(self.failed)
        return self.outcome in _OUTCOMES_OF_THESE and only_these and not self.not_made


def read(file: Path) -> list[Result]:
    """The judged cases of a results file, of each nodeid the last. Raises BaselineError."""
    document = Value.of_file(file)
    document.expect_schema(SCHEMA)
    rows = list(document["results"])
    shared = document.get("environment")
    environments = [one for one in (shared, *(row.get("environment") for row in rows)) if one]
    # a run is on one device, so a case that was not measured shares it
    device = environments[0]["device"].text() if environments else None
    results = [_result(row, shared, device) for row in rows if row["judged"].boolean()]
    return list({(one.nodeid, one.engine): one for one in results}.values())


def _result(row: Value, shared: Value | None, device: str | None) -> Result:
    environment = row.get("environment") or shared
    device = environment["device"].text() if environment else device
    throttled, test = row.get("throttled"), row.get("test")
    digest, spec = read_spec(row)
    failed = [check for check in row["checks"] if check["status"].text() == "fail"]
    return Result(
        nodeid=row["nodeid"].text(),
        engine=row["engine"].text(),
        device=device,
        digest=digest,
        spec=spec,
        outcome=row["outcome"].text(),
        test=test.text() if test else None,
        failed=tuple(check["name"].text() for check in failed),
        not_made=tuple(check["name"].text() for check in failed if _required(check)),
        throttled=tuple(one.text() for one in throttled) if throttled else (),
        conditions=tuple(_conditions(row)),
        entry=_entry(row, environment, digest, spec),
    )


def _required(check: Value) -> bool:
    findings = check.get("findings")
    return any(one.text() == "required" for one in findings) if findings else False


def _conditions(row: Value) -> Iterator[Conditions]:
    given = row.get("conditions")
    if given is not None:
        share, clock = given.get("others_cpu_share"), given.get("sm_clock_mhz")
        held = given.get("throttled_ns")
        yield Conditions(
            others_cpu_share=share.number() if share else None,
            sm_clock_mhz=clock.positive() if clock else None,
            throttled_ns={name: int(held[name].number()) for name in held.object()}
            if held
            else None,
        )


def _entry(
    row: Value, environment: Value | None, digest: str, spec: Mapping[str, Any]
) -> Entry | None:
    """The figures of a row that has them."""
    memory, time = row.get("memory"), row.get("time")
    if memory is None or time is None:
        return None
    if environment is None:
        raise row.error("a row with an environment")
    return Entry(
        nodeid=row["nodeid"].text(),
        engine=row["engine"].text(),
        device=environment["device"].text(),
        digest=digest,
        spec=spec,
        peak_allocated_bytes=memory["peak_allocated_bytes"].positive(),
        processes=read_processes(time),
        environment=environment.texts(),
    )
