"""Where the driver may serve from host memory what does not fit the card, without an error.

Then a step that fits by its bytes proves nothing unless it was seen that they lay on the card. From
what systems tell of themselves; no such machine was at hand.
"""

from __future__ import annotations

from dataclasses import replace

from pytest_vramfit.measurement import Measurement
from pytest_vramfit.spec import PHASES
from pytest_vramfit.verdict.case import Check, Finding

_OF_MEMORY = ("peak_within_vram", "headroom", *PHASES)
_DRIVER_MODELS = ("WDDM", "MCDM")
"""Under both Windows manages the GPU's memory."""


def may_leave_the_card(measurement: Measurement) -> Finding | None:
    """Under which system it may; None where an allocation that does not fit is an error."""
    environment = measurement.environment
    model = environment.get("driver model")
    if model in _DRIVER_MODELS:
        return Finding(kind="may_be_off_card", names=(model,))
    if "microsoft" in environment.get("os", "").lower():
        return Finding(kind="may_be_off_card_in_wsl", names=("WSL2",))
    return None


def doubted(check: Check, measurement: Measurement, doubt: Finding) -> Check:
    """A check of memory that passed though nobody could look, as one that could not be made."""
    phase = measurement.phases.get(check.name)
    seen = measurement.residency if phase is None else phase.off_card_bytes
    if check.name not in _OF_MEMORY or check.status != "pass" or seen is not None:
        return check
    return replace(check, status="unchecked", findings=(doubt, *check.findings))
