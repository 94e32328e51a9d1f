"""A predicted case in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pytest_vramfit.cli.answer import table
from pytest_vramfit.cli.marker_arguments import argument
from pytest_vramfit.cli.predictor import cannot_tell, deciding, fit_of
from pytest_vramfit.estimating.target import assumed
from pytest_vramfit.measurement import Memory
from pytest_vramfit.reporting import figures, words
from pytest_vramfit.spec import PHASES
from pytest_vramfit.verdict import Case

_NEED_A_RUN = (
    "step_ratio",
    "gpu_ratio",
    "peak_ratio",
    "max_step",
    "steps",
    "warmup",
)
"""Keywords about what an estimate does not do."""


def title(case: Case) -> str:
    """What is trained, for which card."""
    card = case.card
    total, usable = figures.size(card.total_bytes), figures.size(card.usable_bytes)
    return f"{words.config(case.claim.spec)} for {card.name} ({total}, {usable} of it usable)"


def answer(case: Case) -> str:
    """Whether it fits; where not, where it runs out."""
    check, fit = deciding(case), fit_of(case)
    if check is None:
        needed, usable = _needed_bytes(case), case.card.usable_bytes
        free = case.claim.limits.headroom.of(usable)
        return (
            f"{fit}: {figures.size(needed)} of {figures.size(usable)}, "
            f"{figures.percent(needed, usable)}{_in_phase(case)}"
            + (f"; {figures.size(free)} of headroom stay free" if free else "")
        )
    figure, sentence = words.figure(check), words.sentence(check, case)
    if fit == "undecided":
        return f"{fit}: {f'{check.name}: ' if check.name in PHASES else ''}{sentence}"
    if check.ran_out:
        return f"{fit}: out of memory {sentence} ({figure})"
    return f"{fit}: {words.check_name(check.name)} {figure}, {sentence}"


def lines(case: Case) -> Iterator[str]:
    """All of one case but the title and the answer."""
    memory, usable = memory_of(case), case.card.usable_bytes
    needed = _needed_bytes(case)
    peaks = {**memory.phases, **case.phase_peaks}.items()
    phases = ", ".join(f"{name} {figures.size(peak)}" for name, peak in peaks)
    share = f"{figures.percent(needed, usable)} of what is usable"
    rows = [
        ("peak allocated", figures.size(memory.peak_allocated_bytes)),
        ("peak reserved", _reserved(case)),
        ("outside of that", f"{figures.size(_outside(memory))}: context, kernels, libraries"),
        (
            "on the card",
            f"{figures.size(needed)} allocated and outside, {share}{_in_phase(case)}",
        ),
        ("peaks", phases),
    ]
    if memory.managed_bytes:
        managed = figures.size(memory.managed_bytes)
        rows.append(("managed", f"{managed}, which the driver moves between card and host"))
    yield from table(rows)
    yield ""
    yield from _ledger(memory)


def notes(given: Mapping[str, Any], case: Case) -> Iterator[str]:
    """What the answer leaves out, and what it takes for granted, behind a blank line."""
    no_part = [argument(name) for name in _NEED_A_RUN if name in given]
    said = {
        "does not hold: required, and no estimate can tell": cannot_tell(case),
        "no part in an estimate, where nothing runs": no_part,
        "not known of this card, so taken as on others": [
            f"{what} ({taken})"
            for what, taken in assumed(case.claim.limits.card, case.card.total_bytes).items()
        ],
    }
    if any(said.values()):
        yield ""
    yield from (f"{says}: {', '.join(names)}" for says, names in said.items() if names)


def memory_of(case: Case) -> Memory:
    """The figures, which a prediction always has."""
    assert case.measurement.memory is not None
    return case.measurement.memory


def room_bytes(case: Case) -> int:
    """What the allocator can have where everything beside it, and the headroom, stay untouched."""
    usable = case.card.usable_bytes
    return max(0, usable - case.claim.limits.headroom.of(usable) - _outside(memory_of(case)))


def _needed_bytes(case: Case) -> int:
    """What is allocated at the highest peak, and outside of the allocator."""
    _, peak = _highest_peak(case)
    return peak + _outside(memory_of(case))


def _in_phase(case: Case) -> str:
    """`` (eval)`` where that phase needs more than the step."""
    phase, _ = _highest_peak(case)
    return f" ({phase})" if phase else ""


def _highest_peak(case: Case) -> tuple[str, int]:
    """The phase after the step that needs most, or ``""`` for the step itself; and its bytes."""
    peaks = {"": memory_of(case).peak_allocated_bytes, **case.phase_peaks}
    return max(peaks.items(), key=lambda one: one[1])


def _outside(memory: Memory) -> int:
    assert memory.outside_allocator_bytes is not None
    return memory.outside_allocator_bytes


def _reserved(case: Case) -> str:
    assert case.measurement.prediction is not None
    least, most = map(figures.size, case.measurement.prediction.reserved_bytes)
    return least if least == most else f"{least} to {most}, by the order of the driver's addresses"


def _ledger(memory: Memory) -> Iterator[str]:
    """The parts of the peak, the largest first, in bytes that sum to it."""
    assert memory.ledger is not None
    parts = {name: size for name, size in memory.ledger.items() if size and name != "managed"}
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    peak = memory.peak_allocated_bytes
    yield from table(
        [
            ("of the peak", "MiB", "bytes", "share"),
            *(
                (
                    name,
                    figures.mib(size).removesuffix(" MiB"),
                    f"{size:,}",
                    figures.percent(size, peak),
                )
                for name, size in (*ordered, ("all", sum(parts.values())))
            ),
        ],
        right=(1, 2, 3),
    )
