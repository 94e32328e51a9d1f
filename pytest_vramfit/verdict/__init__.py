"""From claim and measurement to named checks: pass, fail or unchecked. No prose, no pytest."""

from pytest_vramfit.verdict.case import Card, Case, Check, Finding
from pytest_vramfit.verdict.checks import (
    Reference,
    in_doubt,
    judge,
    to_confirm,
)
from pytest_vramfit.verdict.memory import capacity_to_try, contamination
from pytest_vramfit.verdict.regression import LOADED_SHARE, regressions
from pytest_vramfit.verdict.witnesses import Witness, witnesses

__all__ = [
    "LOADED_SHARE",
    "Card",
    "Case",
    "Check",
    "Finding",
    "Reference",
    "Witness",
    "capacity_to_try",
    "contamination",
    "in_doubt",
    "judge",
    "regressions",
    "to_confirm",
    "witnesses",
]
