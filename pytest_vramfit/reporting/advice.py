"""What would make a case fit, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_vramfit.estimating.advice import LIMIT_S, Advice, Predicted
from pytest_vramfit.reporting import figures
from pytest_vramfit.verdict import Case

_NOTES = {
    "out_of_time": f"not all was tried: predictions for one case end after {LIMIT_S:g} s",
    "fits_already": "none: predicted to fit as it is, against what was measured",
    "broken": "ended, as a prediction failed: {reason}",
}
_NOTHING = "no single change and no two of those tried would make it fit (estimated)"


def keywords(changed: Mapping[str, Any]) -> str:
    """``batch=1, targets="attention"``: as they are written in a marker."""
    return ", ".join(
        f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"
        for name, value in changed.items()
    )


def need(predicted: Predicted, case: Case) -> str:
    """``13.9 GiB, 90 % of the card``: all that would be on it."""
    needed = predicted.peak_allocated_bytes + predicted.outside_allocator_bytes
    share = figures.percent(needed, case.card.usable_bytes)
    return f"{figures.size(needed)}, {share} of the card"


def note(advice: Advice) -> str:
    """What is to be said beside the suggestions; empty where they are all there is to say."""
    if advice.ended != "complete":
        return _NOTES[advice.ended].format(reason=advice.reason.partition("\n")[0])
    return "" if advice.suggestions else _NOTHING
