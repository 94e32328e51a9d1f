"""A worker whose predictions can be worked out by hand, and the command run with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from samples import MIB

from pytest_vramfit import catalog
from pytest_vramfit.cli import predictor
from pytest_vramfit.cli.command import main
from pytest_vramfit.estimating.target import Target
from pytest_vramfit.measurement import (
    Device,
    Measurement,
    Memory,
    OutOfMemory,
    PhasePeak,
    Prediction,
)
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.worker.protocol import Measured, NotMeasured, Request

MARGIN = 0.005
CACHE = 64 * MIB
"""What the allocator reserves beyond the peak, at most."""
MANAGED = 32 * MIB
"""The states of a paged optimizer."""

CASE = ("--model", "Qwen2.5-0.5B", "--card", "T4")
"""A byte a parameter are 471.1 MiB. Of the T4 14,912 MiB are usable, 141 of them outside of the
allocator, which can have 14,771: half a percent less are 14,697.1, half a percent more 14,844.9.
"""


def ledger_of(spec: TrainSpec) -> dict[str, int]:
    """A byte a parameter, 16 MiB for each of the rank, 1 MiB a token."""
    model = catalog.find(spec.model)
    assert model is not None
    return {
        "weights": model.parameters,
        "quantisation": 0,
        "adapters": 16 * MIB * (spec.rank or 0),
        "activations": MIB * spec.seq * spec.batch,
        "managed": MANAGED if spec.paged else 0,
    }


def predicted(
    spec: TrainSpec, target: Target, capacity_bytes: int | None, schedule: Schedule
) -> Measurement:
    """By the rule of `estimating.estimate`: for sure only by a margin."""
    ledger = ledger_of(spec)
    peak = sum(ledger.values()) - ledger["managed"]
    capacity = target.usable_bytes - target.outside_bytes
    capacity = capacity if capacity_bytes is None else capacity_bytes
    fits = None
    if peak + CACHE <= capacity * (1 - MARGIN):
        fits = True
    elif peak > capacity * (1 + MARGIN):
        fits = False
    oom = OutOfMemory(
        phase="backward",
        step=2,
        requested_bytes=300 * MIB,
        free_bytes=200 * MIB,
        allocated_bytes=capacity - 500 * MIB,
        reserved_bytes=capacity - 200 * MIB,
        says="predicted",
    )
    return Measurement(
        device=Device(
            name=target.name,
            total_bytes=target.total_bytes,
            reserved_bytes=target.reserved_bytes,
            held_bytes=0,
        ),
        memory=Memory(
            load_peak_bytes=ledger["weights"],
            first_step_peak_allocated_bytes=peak - 8 * MIB,
            forward_peak_bytes=peak - 4 * MIB,
            backward_peak_bytes=peak,
            optimizer_peak_bytes=ledger["weights"] + ledger["adapters"],
            peak_reserved_bytes=peak + CACHE,
            allocated_after_step_bytes=(ledger["weights"],),
            reserved_after_step_bytes=None,
            outside_allocator_bytes=target.outside_bytes,
            allocator_retries=0,
            managed_bytes=ledger["managed"],
            ledger=ledger,
        ),
        oom=oom if fits is False else None,
        evidence=None,
        step_ns=(),
        gpu=None,
        conditions=None,
        phases={
            phase: PhasePeak(
                peak_bytes=ledger["weights"]
                + (MIB * spec.seq * schedule.eval_batch if phase == "eval" else 0)
            )
            for phase in schedule.phases
        },
        stages_ns={},
        prediction=Prediction(fits=fits, margin=MARGIN, reserved_bytes=(peak, peak + CACHE)),
        environment={},
    )


@dataclass
class Worker:
    """Predicts, or gives ``reply``; keeps what it was asked."""

    reply: Callable[[Request], NotMeasured] | None = None
    asked: list[Request] = field(default_factory=list)
    alive: bool = False

    def start(self) -> None:
        self.alive = True

    def stop(self) -> None:
        self.alive = False

    def measure(self, request: Request, on_progress: object) -> Measured | NotMeasured:
        assert self.alive
        self.asked.append(request)
        if self.reply is not None:
            return self.reply(request)
        assert request.target is not None
        measurement = predicted(
            request.spec, request.target, request.capacity_bytes, request.schedule
        )
        return Measured(measurement=measurement, clean=True)

    @property
    def spec(self) -> TrainSpec:
        """What it was asked last."""
        return self.asked[-1].spec


@dataclass(frozen=True)
class Command:
    """``pytest-vramfit``, with a worker of the test's own."""

    worker: Worker
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Its status and its output. It says nothing else, and its worker has ended."""
        status = main(arguments)
        captured = self.capsys.readouterr()
        assert captured.err == ""
        assert not self.worker.alive
        return status, captured.out

    def lines(self, *arguments: str) -> list[str]:
        return self(*arguments)[1].splitlines()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json")[1])

    def refusal(self, *arguments: str) -> str:
        """What it says in place of an answer."""
        assert main(arguments) == 2
        captured = self.capsys.readouterr()
        assert captured.out == ""
        assert not self.worker.alive
        return captured.err.strip().removeprefix("pytest-vramfit: ")


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    worker = Worker()

    def of_engine(engine: str) -> Worker:
        assert engine == "estimate"
        return worker

    monkeypatch.setattr(predictor, "Worker", of_engine)
    return Command(worker, capsys)
