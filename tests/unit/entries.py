"""Baselines and results files, each as little as a comparison needs; tests change a part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_vramfit.baseline import Entry, Process
from pytest_vramfit.spec import TrainSpec

GIB, MS = 2**30, 10**6
H200 = "NVIDIA H200"
ENVIRONMENT = {"device": H200, "driver": "580.1", "torch": "2.11.0"}
SPREAD = (0.99, 1.0, 1.01)
"""Of three samples around their median, and of three processes around theirs."""


def process(
    step_ms: float = 250, gpu_ms: float | None = 225, kernels: int | None = 2_000
) -> Process:
    """Its medians are the arguments."""
    return Process(
        step_ns=tuple(int(step_ms * MS * one) for one in SPREAD),
        gpu_ns=None if gpu_ms is None else tuple(int(gpu_ms * MS) + one for one in (-9, 0, 9)),
        kernels=kernels,
    )


def three(step_ms: float = 250, gpu_ms: float | None = 225) -> tuple[Process, ...]:
    """The middle one's medians are the arguments."""
    return tuple(
        process(step_ms * one, gpu_ms and gpu_ms + 0.01 * index)
        for index, one in enumerate(SPREAD, -1)
    )


def digest(spec: Mapping[str, Any]) -> str:
    """Any text for a spec of a newer version."""
    return TrainSpec.digest_of(spec) or "newer"


def entry(nodeid: str = "test_a.py::test_b", **changes: Any) -> Entry:
    spec = changes.get("spec", {"model": "Small", "seq": 512})
    values: dict[str, Any] = {
        "nodeid": nodeid,
        "engine": "gpu",
        "device": H200,
        "digest": digest(spec),
        "spec": spec,
        "peak_allocated_bytes": 10 * GIB,
        "processes": three(),
        "environment": ENVIRONMENT,
    }
    return Entry(**{**values, **changes})


def row(nodeid: str = "test_a.py::test_b", **changes: Any) -> dict[str, Any]:
    """A row of a results file: one process, unless ``processes`` says otherwise."""
    processes: Sequence[Process] = changes.pop("processes", (process(),))
    peak = changes.pop("peak", 10 * GIB)
    seq = changes.pop("seq", 512)
    spec = changes.pop("spec", {"model": "Small", "seq": seq})
    failed = changes.pop("failed", ())
    required = changes.pop("required", ())
    return {
        "nodeid": nodeid,
        "judged": True,
        "engine": "gpu",
        "digest": digest(spec),
        "spec": spec,
        "limits": {},
        "outcome": "fits",
        "card": {"name": H200},
        "memory": {"peak_allocated_bytes": peak} if processes else None,
        "time": {"processes": [one.to_json() for one in processes]} if processes else None,
        "checks": [
            {"name": "trained", "status": "pass"},
            *({"name": name, "status": "fail"} for name in failed),
            *(
                {"name": name, "status": "fail", "findings": ["required", "no_baseline"]}
                for name in required
            ),
        ],
        **changes,
    }


def results(path: Path, *rows: dict[str, Any], **environment: Any) -> str:
    """Write a results file whose rows share their environment; its name."""
    return document(path, rows, {**ENVIRONMENT, **environment})


def document(path: Path, rows: Sequence[dict[str, Any]], environment: Any) -> str:
    path.write_text(
        json.dumps(
            {
                "schema": "pytest-vramfit/results/1",
                "environment": environment,
                "results": list(rows),
            }
        ),
        encoding="utf-8",
    )
    return str(path)
