"""One run's gate: measures claims in the worker, judges them, keeps the rows of the results."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_vramfit.measurement import Engine
from pytest_vramfit.measuring.client import OnProgress, Worker
from pytest_vramfit.measuring.protocol import Measured, NotMeasured, Request
from pytest_vramfit.spec import Claim
from pytest_vramfit.verdict import Case, capacity_to_try, judge


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What turns a claim into a judged case under one engine."""

    engine: Engine
    worker: Worker
    isolate: bool
    """Whether every case gets a fresh worker."""

    def measure(self, nodeid: str, claim: Claim, on_progress: OnProgress) -> Case | NotMeasured:
        """Measure and judge one claim."""
        reply = self._ask(claim, None, on_progress)
        if isinstance(reply, NotMeasured):
            return reply
        capped = None
        capacity = capacity_to_try(claim, reply.measurement)
        if capacity is not None:
            again = self._ask(claim, capacity, on_progress)
            if isinstance(again, NotMeasured):
                return again
            capped = again.measurement
        return judge(nodeid, self.engine, claim, reply.measurement, capped)

    def _ask(
        self, claim: Claim, capacity_bytes: int | None, on_progress: OnProgress
    ) -> Measured | NotMeasured:
        request = Request(spec=claim.spec, schedule=claim.schedule, capacity_bytes=capacity_bytes)
        reply = self.worker.measure(request, on_progress)
        if self.isolate:
            self.worker.stop()
            self.worker.start()
        return reply
