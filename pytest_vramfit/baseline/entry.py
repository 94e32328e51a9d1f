"""One baseline: what a test measured when it was recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_vramfit.baseline.json_reader import BaselineError, Value
from pytest_vramfit.measurement import Measurement, median
from pytest_vramfit.spec import TrainSpec

__all__ = ["ENOUGH_PROCESSES", "BaselineError", "Entry", "Process"]

ENOUGH_PROCESSES = 3
"""The least that tell something about the spread between processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """The samples of one process."""

    step_ns: tuple[int, ...]
    """Wall time of each timed step."""
    gpu_ns: tuple[int, ...] | None
    """GPU time of each profiled step."""
    kernels: int | None

    @classmethod
    def of(cls, measurement: Measurement) -> Process:
        """The samples of a measurement."""
        gpu = measurement.gpu
        return cls(
            step_ns=measurement.step_ns,
            gpu_ns=gpu.busy_ns if gpu else None,
            kernels=gpu.kernels if gpu else None,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "step_ns": list(self.step_ns),
            "gpu_ns": None if self.gpu_ns is None else list(self.gpu_ns),
            "kernels": self.kernels,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Process:
        """The inverse of :meth:`to_json`, of values that this program made."""
        gpu_ns = values["gpu_ns"]
        return cls(
            step_ns=tuple(values["step_ns"]),
            gpu_ns=None if gpu_ns is None else tuple(gpu_ns),
            kernels=values["kernels"],
        )

    @classmethod
    def read(cls, value: Value) -> Process:
        """The same of values from a file. Raises BaselineError."""
        gpu_ns, kernels = value.get("gpu_ns"), value.get("kernels")
        step_ns = value["step_ns"]
        samples = tuple(one.positive() for one in step_ns)
        if not samples:
            raise step_ns.error("a list of at least one sample")
        return cls(
            step_ns=samples,
            gpu_ns=None if gpu_ns is None else tuple(one.positive() for one in gpu_ns) or None,
            kernels=None if kernels is None else kernels.positive(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The baseline of one test under one engine on one device."""

    nodeid: str
    engine: str
    device: str
    digest: str
    spec: Mapping[str, Any]
    """The TrainSpec it was recorded with, as JSON, to name what changed since."""
    peak_allocated_bytes: int
    processes: tuple[Process, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(
        cls, nodeid: str, engine: str, spec: TrainSpec, measurements: Sequence[Measurement]
    ) -> Entry:
        """What these measurements of one case say; each is of a process, and got through."""
        first = measurements[0]
        return cls(
            nodeid=nodeid,
            engine=engine,
            device=first.device.baseline_name,
            digest=spec.digest,
            spec=spec.to_json(),
            # a process that ran many cases packs its blocks a little worse than a fresh one
            peak_allocated_bytes=min(
                one.memory.peak_allocated_bytes for one in measurements if one.memory is not None
            ),
            processes=tuple(Process.of(one) for one in measurements),
            environment=first.environment,
        )

    def with_processes_of(self, other: Entry) -> Entry:
        """The same test with the processes of both, and the smaller of the peaks."""
        return replace(
            self,
            processes=(*self.processes, *other.processes),
            peak_allocated_bytes=min(self.peak_allocated_bytes, other.peak_allocated_bytes),
        )

    @property
    def key(self) -> tuple[str, str]:
        """What it is found by within the file of its device."""
        return self.nodeid, self.engine

    @property
    def median_step_ns(self) -> int:
        """The middle of the medians of its processes."""
        return median([median(one.step_ns) for one in self.processes])

    @property
    def median_gpu_ns(self) -> int | None:
        """The same of GPU time; None where it was not measured."""
        known = [median(one.gpu_ns) for one in self.processes if one.gpu_ns]
        return median(known) if known else None

    @property
    def kernels(self) -> int | None:
        """Kernels in a step."""
        known = [one.kernels for one in self.processes if one.kernels is not None]
        return median(known) if known else None

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without the device, which the file names."""
        return {
            "nodeid": self.nodeid,
            "engine": self.engine,
            "digest": self.digest,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "processes": [one.to_json() for one in self.processes],
            "environment": dict(self.environment),
            "spec": dict(self.spec),
        }

    @classmethod
    def read(cls, value: Value, device: str) -> Entry:
        """The inverse of :meth:`to_json`. Raises BaselineError."""
        processes = read_processes(value)
        digest, spec = read_spec(value)
        return cls(
            nodeid=value["nodeid"].text(),
            engine=value["engine"].text(),
            device=device,
            digest=digest,
            spec=spec,
            peak_allocated_bytes=value["peak_allocated_bytes"].positive(),
            processes=processes,
            environment=value["environment"].texts(),
        )


def read_processes(value: Value) -> tuple[Process, ...]:
    """The ``processes`` of an entry or of a result's time. Raises BaselineError."""
    processes = tuple(Process.read(one) for one in value["processes"])
    if not processes:
        raise value["processes"].error("a list of at least one process")
    return processes


def read_spec(value: Value) -> tuple[str, Mapping[str, Any]]:
    """Digest and spec of an entry or a result. Raises BaselineError where they do not agree.

    The digest of a spec that a newer version wrote is believed.
    """
    digest, spec = value["digest"].text(), value["spec"].object()
    own = TrainSpec.digest_of(spec)
    if own not in {None, digest}:
        raise value["digest"].error(f"{json.dumps(own)}, the digest of its spec")
    return digest, spec


def changed_fields(
    before: Mapping[str, Any], now: Mapping[str, Any], within: str = ""
) -> Sequence[tuple[str, Any, Any]]:
    """Name, old and new value of every field of two specs that differs, but the model's name.

    Values inside of the model's config go by ``config.hidden_size``.
    """
    changes: list[tuple[str, Any, Any]] = []
    for name in sorted({*before, *now} - ({"model"} if not within else set())):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changes += changed_fields(old, new, f"{within}{name}.")
        elif old != new:
            changes.append((f"{within}{name}", old, new))
    return changes
