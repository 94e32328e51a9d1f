"""Baselines: cases measured in several fresh processes, as far as no baseline has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_vramfit.baseline import Entry
from pytest_vramfit.gate import Gate, steps_of
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict import LOADED_SHARE
from pytest_vramfit.worker.client import OnProgress
from pytest_vramfit.worker.protocol import NotMeasured


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A case of which a baseline is to be recorded, as far as it was measured."""

    claim: Claim
    entry: Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """What came of recording."""

    entries: list[Entry]
    """Those that are complete."""
    refused: dict[str, str]
    """By nodeid, the outcome that kept one from being recorded."""
    loaded: dict[str, float]
    """By nodeid, the share of the processors that others took, where that says much about times."""


def record(
    gate: Gate,
    recordings: Sequence[Recording],
    processes: int,
    on_case: Callable[[str], OnProgress],
) -> Recorded:
    """Measure each case in fresh processes until it has samples of so many.

    The processes come one after the other, each for all cases: the libraries' imports are paid
    once a process, and no process lies in the memory of another.
    """
    entries = {one.entry.nodeid: one.entry for one in recordings}
    refused: dict[str, str] = {}
    loaded: dict[str, float] = {}
    measured = min((len(entry.processes) for entry in entries.values()), default=processes)
    for _ in range(processes - measured):
        gate.worker.renew()
        for one in recordings:
            nodeid = one.entry.nodeid
            if nodeid in refused:
                continue
            case = gate.measure_alone(nodeid, steps_of(one.claim), on_case(nodeid))
            if isinstance(case, NotMeasured) or case.outcome != "fits":
                refused[nodeid] = case.outcome
            elif case.throttled:
                refused[nodeid] = "throttled"
            else:
                seen = Entry.of(nodeid, gate.engine, one.claim.spec, case.measurements)
                entries[nodeid] = entries[nodeid].with_processes_of(seen)
                conditions = case.measurement.conditions
                others = (conditions and conditions.others_cpu_share) or 0.0
                if others > LOADED_SHARE:
                    loaded[nodeid] = max(others, loaded.get(nodeid, 0.0))
    return Recorded(
        entries=[entry for nodeid, entry in entries.items() if nodeid not in refused],
        refused=refused,
        loaded=loaded,
    )
