"""Cases predicted in a worker of the command's own, and what a prediction answers."""

from __future__ import annotations

import sys
from typing import Any, Literal, Self

from pytest_vramfit.cli.answer import WrongUseError
from pytest_vramfit.cli.marker_arguments import in_arguments
from pytest_vramfit.estimating.target import assumed, target_of
from pytest_vramfit.gate import Gate
from pytest_vramfit.reporting import results, words
from pytest_vramfit.spec import PHASES, Claim
from pytest_vramfit.verdict import Case, Check
from pytest_vramfit.worker.client import Worker
from pytest_vramfit.worker.protocol import NotMeasured

Fit = Literal["fits", "does not fit", "undecided"]

_OF_MEMORY = ("no_oom", "peak_within_vram", "resident", "headroom", *PHASES)
"""The checks that an estimate makes; ``resident`` of a card that never refuses only."""
_UNDECIDED = ("too_close", "cache_in_the_way")
"""Findings that only the card itself can settle."""
_IN_JSON = ("digest", "spec", "limits", "card", "memory", "oom", "prediction", "checks")
"""What the answer has of a row of ``results.json``."""


class Predictor:
    """Predicts one case after the other; its worker ends with the ``with`` statement."""

    def __init__(self) -> None:
        self._gate = Gate(engine="estimate", worker=Worker("estimate"))

    def __enter__(self) -> Self:
        self._gate.start()
        return self

    def __exit__(self, *_: object) -> None:
        _show("")
        self._gate.stop()

    def predict(self, claim: Claim) -> Case:
        """The judged case. Raises WrongUseError where it cannot be predicted."""
        config = words.config(claim.spec)
        _show(f"predicting {config}")
        case = self._gate.measure("", claim, lambda _: None)
        _show("")
        if not isinstance(case, NotMeasured):
            return case
        if case.outcome in {"refused", "unsupported"}:
            raise WrongUseError(in_arguments(case.says))
        output = f"\n{case.output}" if case.output else ""
        raise WrongUseError(
            f"{config} could not be predicted ({case.outcome}): {case.says}{output}"
        )


def _show(text: str) -> None:
    """What is being done, on a terminal, until the next text."""
    if sys.stderr.isatty():
        # not wrapped at the margin: the next text begins at the start of one line
        sys.stderr.write(f"\r\x1b[?7l{text}\x1b[K\x1b[?7h")
        sys.stderr.flush()


def deciding(case: Case) -> Check | None:
    """The check of memory that the answer comes from; None where all hold."""
    checks = [one for one in case.checks if _made(one)]
    not_held = [one for one in checks if one.status == "fail" or _undecided(one)]
    return min(not_held, key=_undecided, default=None)


def fit_of(case: Case) -> Fit:
    """The answer, for sure where it is one."""
    check = deciding(case)
    if check is None:
        return "fits"
    return "undecided" if _undecided(check) else "does not fit"


def cannot_tell(case: Case) -> list[str]:
    """The checks that are required and that no estimate makes."""
    required = case.claim.limits.require
    return [
        words.check_name(one.name) for one in case.checks if one.name in required and not _made(one)
    ]


def holds(case: Case) -> bool:
    """Whether it fits for sure, and nothing is required beside that."""
    return fit_of(case) == "fits" and not cannot_tell(case)


def to_json(case: Case) -> dict[str, Any]:
    """The answer, and all that it comes from."""
    row = results.row(case, judged=False)
    limits = case.claim.limits
    assert limits.card_bytes is not None
    return {
        "answer": fit_of(case),
        "holds": holds(case),
        "target": target_of(limits.card, limits.card_bytes, limits.overflow).to_json(),
        "assumed": [*assumed(limits.card, limits.card_bytes or 0)],
        **{name: row[name] for name in _IN_JSON},
    }


def _made(check: Check) -> bool:
    nothing_ran = any(finding.kind == "nothing_ran" for finding in check.findings)
    return check.name in _OF_MEMORY and not nothing_ran


def _undecided(check: Check) -> bool:
    return any(finding.kind in _UNDECIDED for finding in check.findings)
