"""``results.json``: one row a case, for other programs and for the summary."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_vramfit.baseline import Entry, Process
from pytest_vramfit.estimating.advice import Advice
from pytest_vramfit.measurement import Engine
from pytest_vramfit.reporting import advice, words
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict import Case, witnesses
from pytest_vramfit.worker.protocol import NotMeasured

SCHEMA = "pytest-vramfit/results/1"

Row = dict[str, Any]


def row(case: Case, *, judged: bool) -> Row:
    """A measured case. ``judged`` is False for the cases of ``vramfit.measure``."""
    measurement = case.measurement
    return {
        **_head(case.nodeid, case.engine, case.claim, judged=judged),
        "outcome": case.outcome,
        "card": asdict(case.card),
        "memory": _memory(case),
        "oom": asdict(measurement.oom) if measurement.oom else None,
        "time": {
            "step_ns": list(measurement.step_ns) or None,
            "gpu_ns": list(measurement.gpu.busy_ns) if measurement.gpu else None,
            "kernels": measurement.gpu.kernels if measurement.gpu else None,
            "tokens_per_second": case.tokens_per_second,
            "seconds_per_10k_tokens": case.seconds_per_10k_tokens,
            "joules_per_10k_tokens": case.joules_per_10k_tokens,
            "stages_ns": dict(measurement.stages_ns),
            "processes": [Process.of(one).to_json() for one in case.measurements],
        },
        "against": _against(case.against),
        "conditions": asdict(measurement.conditions) if measurement.conditions else None,
        "throttled": list(case.throttled),
        "spill": _spill(case),
        "prediction": asdict(measurement.prediction) if measurement.prediction else None,
        "evidence": asdict(measurement.evidence) if measurement.evidence else None,
        "checks": [
            {
                "name": check.name,
                "status": check.status,
                "value": check.value,
                "limit": check.limit,
                "unit": check.unit,
                "ratio": check.ratio,
                "interval": list(check.interval) if check.interval else None,
                "findings": [one.kind for one in check.findings],
                "says": words.sentence(check, case),
            }
            for check in case.checks
        ],
        "advice": _advice(case.advice),
        "advice_says": (advice.note(case.advice) or None) if case.advice else None,
        "environment": dict(measurement.environment),
    }


def not_measured_row(
    nodeid: str, engine: Engine, claim: Claim, reply: NotMeasured, *, judged: bool
) -> Row:
    """A case that could not be measured."""
    return {
        **_head(nodeid, engine, claim, judged=judged),
        "outcome": reply.outcome,
        "says": reply.says,
        "card": None,
        "memory": None,
        "time": None,
        "spill": None,
        "checks": [],
    }


def entry(row: Row) -> Entry:
    """What a row of this run says, as a baseline."""
    return Entry(
        nodeid=row["nodeid"],
        engine=row["engine"],
        device=row["environment"]["device"],
        digest=row["digest"],
        spec=row["spec"],
        peak_allocated_bytes=row["memory"]["peak_allocated_bytes"],
        processes=tuple(Process.from_json(one) for one in row["time"]["processes"]),
        environment=row["environment"],
    )


def add_processes(row: Row, recorded: Entry) -> None:
    """The samples of all processes of a baseline, in the row it was recorded from."""
    row["time"]["processes"] = [one.to_json() for one in recorded.processes]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write all rows, whole or not at all. Raises OSError."""
    listed = [dict(one) for one in rows]
    environment = next((one["environment"] for one in listed if one.get("environment")), None)
    for one in listed:
        if one.get("environment") == environment:
            one.pop("environment", None)
    document: Mapping[str, Any] = {
        "schema": SCHEMA,
        "environment": environment,
        "results": listed,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(f"{path.name}.{os.getpid()}")  # with the rights of any new file
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _head(nodeid: str, engine: Engine, claim: Claim, *, judged: bool) -> Row:
    return {
        "nodeid": nodeid,
        "judged": judged,
        "engine": engine,
        "digest": claim.spec.digest,
        "spec": claim.spec.to_json(),
        "limits": claim.limits.to_json(),
        "schedule": asdict(claim.schedule),
    }


def _against(other: Entry | None) -> Row | None:
    if other is None:
        return None
    return {
        "peak_allocated_bytes": other.peak_allocated_bytes,
        "processes": [one.to_json() for one in other.processes],
        "environment": dict(other.environment),
    }


def _advice(given: Advice | None) -> list[Row] | None:
    if given is None:
        return None
    return [
        {
            "keywords": dict(one.keywords),
            "peak_allocated_bytes": one.predicted.peak_allocated_bytes,
            "outside_allocator_bytes": one.predicted.outside_allocator_bytes,
            "says": advice.keywords(one.keywords),
        }
        for one in given.suggestions
    ]


def _spill(case: Case) -> Row | None:
    """What is known of memory off the card; None where nobody could look."""
    seen = list(witnesses(case.claim, case.measurement, case.checks))
    if not seen:
        return None
    residency, memory = case.measurement.residency, case.measurement.memory
    assert memory is not None
    return {
        "spilled_bytes": residency.off_card_bytes if residency else None,
        "uncertainty_bytes": residency.uncertainty_bytes if residency else None,
        "served_from_host_bytes": memory.served_from_host_bytes,
        "witnesses": [
            {
                "name": one.name,
                "off_card": {"off": True, "on": False, "nothing": None}[one.saw],
                "says": words.witness(one),
            }
            for one in seen
        ],
    }


def _resident_bytes(case: Case) -> int | None:
    """Of what the allocator reserves, as much as is on the card."""
    memory, residency = case.measurement.memory, case.measurement.residency
    if memory is None or memory.peak_reserved_bytes is None or residency is None:
        return None
    return memory.peak_reserved_bytes - residency.off_card_bytes


def _memory(case: Case) -> Row | None:
    memory = case.measurement.memory
    if memory is None:
        return None
    return {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "first_step_peak_allocated_bytes": memory.first_step_peak_allocated_bytes,
        "resident_bytes": _resident_bytes(case),
        "outside_allocator_bytes": memory.outside_allocator_bytes,
        "managed_bytes": memory.managed_bytes,
        "allocator_retries": memory.allocator_retries,
        "phases": {**memory.phases, **case.phase_peaks},
        "ledger": None if memory.ledger is None else dict(memory.ledger),
    }
