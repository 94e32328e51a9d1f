"""The text of a case: what pytest prints under FAILURES."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_vramfit.reporting import advice, figures, words
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict import Case, Check, witnesses
from pytest_vramfit.worker.protocol import NotMeasured

_MARKS = {"pass": "pass", "fail": "FAIL"}
_NAME_WIDTH = 18
_FIGURE_WIDTH = 34


def lines(case: Case) -> Iterator[str]:
    """The case in a table: failed checks first, then the others, then where the peak was, and what
    would fit.
    """
    yield f"fits_vram: {words.title(case)}"
    for status in ("fail", "pass"):
        for check in case.checks:
            if check.status == status:
                yield _row(check, case)
    unchecked: dict[str, list[str]] = {}
    for check in case.checks:
        if check.status == "unchecked":
            names = unchecked.setdefault(words.sentence(check, case), [])
            names.append(words.check_name(check.name))
    for reason, names in unchecked.items():
        yield f"  --    {'unchecked':<{_NAME_WIDTH}} {', '.join(names)}: {reason}"
    yield from _witnesses(case)
    memory = case.measurement.memory
    if memory is not None:
        peaks = {**memory.phases, **case.phase_peaks}
        listed = ", ".join(f"{name} {figures.size(value)}" for name, value in peaks.items())
        yield f"  {'peaks':<{_NAME_WIDTH + 6}} {listed}"
        if memory.ledger is not None:
            parts = sorted(memory.ledger.items(), key=lambda one: -one[1])
            listed = ", ".join(f"{name} {figures.size(value)}" for name, value in parts if value)
            yield f"  {'of the peak':<{_NAME_WIDTH + 6}} {listed}"
    yield from _advice(case)


def _witnesses(case: Case) -> Iterator[str]:
    """What each saw, where reading or accounting says that memory is off the card."""
    seen = list(witnesses(case.claim, case.measurement, case.checks))
    judged_on = all(one.saw != "off" for one in seen if one.name in {"accounting", "residency"})
    if judged_on:
        return
    label = "memory off the card"
    for one in seen:
        mark = {"off": "yes", "on": "no", "nothing": "--"}[one.saw]
        name = f"{mark:<4} {one.name.replace('_', ' ')}"
        yield f"  {label:<{_NAME_WIDTH + 6}} {name:<{_NAME_WIDTH}} {words.witness(one)}"
        label = ""


def _advice(case: Case) -> Iterator[str]:
    if case.advice is None:
        return
    found = {advice.keywords(one.keywords): one.predicted for one in case.advice.suggestions}
    width = max((_FIGURE_WIDTH, *map(len, found)))
    label = "would fit (estimated)"
    for change, predicted in found.items():
        need = advice.need(predicted, case)
        yield f"  {label:<{_NAME_WIDTH + 6}} {change:<{width}} {need}"
        label = ""
    if note := advice.note(case.advice):
        yield f"  {'advice':<{_NAME_WIDTH + 6}} {note}"


def text(case: Case) -> str:
    """All of :func:`lines`."""
    return "\n".join(lines(case))


def _row(check: Check, case: Case) -> str:
    mark, name = _MARKS[check.status], words.check_name(check.name)
    figure, sentence = words.figure(check), words.sentence(check, case)
    if not figure:
        figure, sentence = sentence, ""
    return f"  {mark:<4}  {name:<{_NAME_WIDTH}} {figure:<{_FIGURE_WIDTH}} {sentence}".rstrip()


def not_measured(claim: Claim, reply: NotMeasured) -> str:
    """The text of a case that could not be measured, with what the worker printed."""
    output = f"\n--- the worker's output ---\n{reply.output}" if reply.output else ""
    if reply.outcome == "refused":
        return f"fits_vram: {reply.says}"
    return (
        f"fits_vram: {words.config(claim.spec)} could not be measured "
        f"({reply.outcome}): {reply.says}{output}"
    )
