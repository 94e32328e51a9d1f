"""From claim and measurement to named checks: pass, fail or unchecked. No prose, no pytest."""

from pytest_vramfit.verdict.case import Card, Case, Check, Finding
from pytest_vramfit.verdict.checks import capacity_to_try, judge

__all__ = ["Card", "Case", "Check", "Finding", "capacity_to_try", "judge"]
