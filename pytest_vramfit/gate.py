"""One run's gate: measures claims in the worker, compares them, judges them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pytest_vramfit.advisor import advised
from pytest_vramfit.baseline import Entry, Store
from pytest_vramfit.estimating.target import Target, target_of
from pytest_vramfit.measurement import Device, Engine, Measurement
from pytest_vramfit.reporting import words
from pytest_vramfit.spec import Claim, Limits
from pytest_vramfit.verdict import (
    Case,
    Check,
    Finding,
    Reference,
    capacity_to_try,
    contamination,
    in_doubt,
    judge,
    regressions,
    to_confirm,
)
from pytest_vramfit.worker.client import OnProgress, Worker
from pytest_vramfit.worker.protocol import Measured, NotMeasured, Request

_MOST_AGAIN = 2
"""How often a case is measured again because a time is in doubt."""

_NO_CARD_TO_OVERFLOW = "overflow='spill' needs a GPU that passes for the card; run it with --gpu"

Update = Literal["all", "missing"]
"""Which baselines are recorded: those of all cases, or where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """What turns a claim into a judged case under one engine."""

    engine: Engine
    worker: Worker
    isolate: bool = False
    """Whether every case gets a fresh worker."""
    baselines: Store | None = None
    update: Update | None = None
    against: Worker | None = None
    """The worker of another environment, which every case is compared with instead."""
    predicting: Worker | None = None
    """The worker that advice comes from, started with the first case that needs some."""

    def start(self) -> None:
        """Start the workers' imports."""
        self.worker.start()
        if self.against is not None:
            self.against.start()

    def stop(self) -> None:
        """End the workers."""
        for worker in (self.worker, self.against, self.predicting):
            if worker is not None:
                worker.stop()

    def measure(self, nodeid: str, claim: Claim, on_progress: OnProgress) -> Case | NotMeasured:
        """Measure a claim, compare it, judge it.

        A time in doubt is measured again, and a failure against the baseline once more in a fresh
        process before it is one.
        """
        first, capped = self._measured_with_headroom(claim, on_progress)
        if isinstance(first, NotMeasured):
            return first
        more: list[Measurement] = []
        reference = self._reference(nodeid, claim, first)
        if self.against is not None and first.memory is not None:
            in_turn = self._against(self.against, nodeid, claim, more, on_progress)
            if isinstance(in_turn, NotMeasured):
                return in_turn
            reference = in_turn

        def judged() -> Case:
            return judge(
                nodeid, self.engine, claim, first, capped, more=tuple(more), reference=reference
            )

        case = judged()
        if reference.in_turn:
            return case
        while in_doubt(case) and len(more) < _MOST_AGAIN:
            if not self._one_more(claim, more, on_progress):
                break
            case = judged()
        if to_confirm(case):
            self.worker.renew()
            self._one_more(claim, more, on_progress)
            case = judged()
        return case

    def advised(self, case: Case, on_progress: OnProgress) -> Case:
        """The case, with what would make it fit if it does not, where there is who predicts it."""
        return case if self.predicting is None else advised(case, self.predicting, on_progress)

    def measure_alone(
        self, nodeid: str, claim: Claim, on_progress: OnProgress
    ) -> Case | NotMeasured:
        """Measure a claim that is compared with nothing."""
        limits = replace(
            claim.limits, step_ratio=None, gpu_ratio=None, peak_ratio=None, require=frozenset()
        )
        first, capped = self._measured_with_headroom(replace(claim, limits=limits), on_progress)
        if isinstance(first, NotMeasured):
            return first
        return judge(nodeid, self.engine, replace(claim, limits=limits), first, capped)

    def ratios(self, case: Case, base: Case, on_progress: OnProgress) -> dict[str, Check]:
        """One case against another of the same run: both measured once more, in turn.

        The checks by their names, with the default limits; none where one did not get through.
        """
        now, before = list(case.measurements[:1]), list(base.measurements[:1])
        if not now or not before:
            return {}
        for claim, taken in ((base.claim, before), (case.claim, now)):
            if not self._one_more(claim, taken, on_progress):
                return {}
        checks = regressions(
            Limits(),
            Entry.of(case.nodeid, self.engine, case.claim.spec, now),
            Entry.of(base.nodeid, self.engine, base.claim.spec, before),
            in_turn=True,
        )
        return {check.name: check for check in checks}

    def _measured_with_headroom(
        self, claim: Claim, on_progress: OnProgress
    ) -> tuple[Measurement | NotMeasured, Measurement | None]:
        """The case, and the run with less memory where only that decides the headroom.

        Not measured where others used the GPU so that memory cannot be judged.
        """
        reply = self._ask(self.worker, claim, on_progress)
        if isinstance(reply, NotMeasured):
            return reply, None
        first, capped = reply.measurement, None
        capacity = capacity_to_try(claim, first)
        if capacity is not None and contamination(claim, first) is None:
            again = self._ask(self.worker, steps_of(claim), on_progress, capacity)
            if isinstance(again, NotMeasured):
                return again, None
            capped = again.measurement
        change = contamination(claim, first, capped)
        if change is None:
            return first, capped
        says = words.contamination(change, capped or first)
        return NotMeasured(outcome="contaminated", says=says, clean=True), None

    def _reference(self, nodeid: str, claim: Claim, measurement: Measurement) -> Reference:
        """The baseline of this case, or why it is not compared with one."""
        match = None
        if self.baselines is not None:
            match = self.baselines.find(
                device=measurement.device.baseline_name,
                engine=self.engine,
                nodeid=nodeid,
                digest=claim.spec.digest,
            )
        own = match is not None and not match.renamed
        if self.update == "all" or (self.update == "missing" and not own):
            return Reference(without=Finding(kind="recorded"))
        return Reference(entry=match.entry, renamed=match.renamed) if match else Reference()

    def _against(
        self,
        other: Worker,
        nodeid: str,
        claim: Claim,
        more: list[Measurement],
        on_progress: OnProgress,
    ) -> Reference | NotMeasured:
        """The same case in the other environment, in turn with one more here."""
        before: list[Measurement] = []
        for _ in range(2):
            if before and not self._one_more(claim, more, on_progress):
                return Reference(without=Finding(kind="not_in_turn"))
            reply = self._ask(other, steps_of(claim), on_progress)
            if isinstance(reply, NotMeasured):
                return replace(reply, says=f"in the other environment {reply.says}")
            if reply.measurement.memory is None:
                return Reference(without=Finding(kind="other_out_of_memory"))
            before.append(reply.measurement)
        entry = Entry.of(nodeid, self.engine, claim.spec, before)
        return Reference(entry=entry, in_turn=True)

    def _one_more(self, claim: Claim, taken: list[Measurement], on_progress: OnProgress) -> bool:
        """Measure the case's steps once more, if it gets through."""
        reply = self._ask(self.worker, steps_of(claim), on_progress)
        if isinstance(reply, NotMeasured) or reply.measurement.memory is None:
            return False
        taken.append(reply.measurement)
        return True

    def _ask(
        self,
        worker: Worker,
        claim: Claim,
        on_progress: OnProgress,
        capacity_bytes: int | None = None,
    ) -> Measured | NotMeasured:
        if self.engine == "cpu" and claim.limits.overflow == "spill":
            return NotMeasured(outcome="unsupported", says=_NO_CARD_TO_OVERFLOW, clean=True)
        target = _target(claim.limits)
        request = Request(
            spec=claim.spec,
            schedule=claim.schedule,
            capacity_bytes=capacity_bytes,
            target=target if self.engine == "estimate" else None,
            card=_device(target, claim.limits) if target and self.engine == "gpu" else None,
        )
        reply = worker.measure(request, on_progress)
        if self.isolate:
            worker.renew()
        return reply


def _target(limits: Limits) -> Target | None:
    """The card that the claim names."""
    if limits.card_bytes is None:
        return None
    return target_of(limits.card, limits.card_bytes, limits.overflow)


def _device(card: Target, limits: Limits) -> Device:
    """What a GPU passes for that emulates the card."""
    return Device(
        name=card.name,
        total_bytes=card.total_bytes,
        reserved_bytes=card.reserved_bytes,
        held_bytes=0,
        overflow=limits.overflow,
    )


def steps_of(claim: Claim) -> Claim:
    """The claim without what follows the training steps: measured once is enough of that."""
    return replace(claim, schedule=replace(claim.schedule, phases=()))
