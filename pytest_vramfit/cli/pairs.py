"""One case on both sides of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pytest_vramfit.baseline.entry import changed_fields
from pytest_vramfit.reporting.results_reader import Result
from pytest_vramfit.spec import Limits
from pytest_vramfit.verdict import Check, regressions
from pytest_vramfit.verdict.regression import environment_changes

Status = Literal["pass", "fail", "unchecked", "changed", "not_compared"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A case, old and new."""

    old: Result
    new: Result
    changed: tuple[tuple[str, Any, Any], ...]
    """Name, old and new value of what is trained otherwise; then nothing is compared."""
    checks: tuple[Check, ...]
    """Peak, GPU time, step time; none where a side has no figures."""

    @classmethod
    def of(cls, old: Result, new: Result, limits: Limits) -> Pair:
        """Compare both."""
        changed: tuple[tuple[str, Any, Any], ...] = ()
        if old.digest != new.digest:
            digests = ("digest", old.digest, new.digest)
            changed = (*(changed_fields(old.spec, new.spec) or [digests]),)
        checks = () if changed else reversed([*_checks(old, new, limits)])
        return cls(old=old, new=new, changed=changed, checks=tuple(checks))

    @property
    def worse_outcome(self) -> bool:
        """Whether what was sound is not any more, by the new run's own verdict."""
        return self.old.sound and not self.new.sound

    @property
    def status(self) -> Status:
        """How the comparison went."""
        if self.worse_outcome:
            return "fail"
        if self.changed:
            return "changed"
        statuses = {one.status for one in self.checks if not _needs_gpu(one)}
        if "fail" in statuses:
            return "fail"
        if "unchecked" in statuses:
            return "unchecked"
        return "pass" if statuses else "not_compared"

    @property
    def environment(self) -> list[tuple[str, str, str]]:
        """Name, old and new value of all that differs around the case."""
        old, new = self.old.entry, self.new.entry
        return environment_changes(old, new) if old and new else []


def _checks(old: Result, new: Result, limits: Limits) -> Iterator[Check]:
    if old.entry is not None and new.entry is not None:
        yield from regressions(limits, new.entry, old.entry, new.conditions)


def _needs_gpu(check: Check) -> bool:
    """Whether there is no such thing under this engine."""
    return any(finding.kind == "no_gpu" for finding in check.findings)
