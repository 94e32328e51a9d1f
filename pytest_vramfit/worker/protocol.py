"""What pytest and its worker say to each other: one JSON object a line.

The worker keeps the descriptors for itself (libraries print to stdout). Requests are answered one
at a time: some ``progress``, then one of the replies below.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_vramfit.estimating.target import Target
from pytest_vramfit.measurement import Device, Measurement
from pytest_vramfit.spec import Schedule, TrainSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Measure this case."""

    spec: TrainSpec
    schedule: Schedule
    capacity_bytes: int | None = None
    """A bound on what the allocator may reserve; None for the whole device."""
    target: Target | None = None
    """The device that an estimate is for."""
    card: Device | None = None
    """What the GPU is to pass for."""

    def line(self) -> str:
        """The request as a line of text."""
        values = {
            "spec": self.spec.to_json(),
            "schedule": asdict(self.schedule),
            "capacity_bytes": self.capacity_bytes,
            "target": self.target.to_json() if self.target else None,
            "card": asdict(self.card) if self.card else None,
        }
        return json.dumps(values) + "\n"

    @classmethod
    def read(cls, line: str) -> Request:
        """The inverse of :meth:`line`."""
        values = json.loads(line)
        schedule = values["schedule"]
        return cls(
            spec=TrainSpec.from_json(values["spec"]),
            schedule=Schedule(**{**schedule, "phases": tuple(schedule["phases"])}),
            capacity_bytes=values["capacity_bytes"],
            target=Target.from_json(values["target"]) if values["target"] else None,
            card=Device(**values["card"]) if values["card"] else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The worker has imported its libraries and waits for requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A stage of the case began or moved on; the first one without a ``holder`` says that the case
    has the device.
    """

    stage: str
    done: int
    of: int
    left_ns: int | None = None
    """What the case's remaining steps will take, at the pace of the last one."""
    holder: str = ""
    """Who has the GPU that the case still waits for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The case was measured."""

    measurement: Measurement
    clean: bool
    """Whether the worker's device is as it was before the case, so that it can be used again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotMeasured:
    """The case could not be measured."""

    outcome: Literal["unsupported", "refused", "crashed", "timeout", "contaminated"]
    """``unsupported``: not by this engine here; ``refused``: the spec does not fit the model;
    ``contaminated``: others used the GPU so that memory could not be judged.
    """
    says: str
    clean: bool = False
    output: str = ""
    """What the worker printed during the case."""


Message = Ready | Progress | Measured | NotMeasured
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Ready, Progress, Measured, NotMeasured)
}


def write(message: Message) -> str:
    """A message of the worker as a line of text."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}) + "\n"


def read(line: str) -> Message:
    """The inverse of :func:`write`."""
    values: Mapping[str, Any] = json.loads(line)
    kind = _KINDS[values["kind"]]
    fields = {name: value for name, value in values.items() if name != "kind"}
    if kind is Measured:
        fields["measurement"] = Measurement.from_json(fields["measurement"])
    return kind(**fields)
