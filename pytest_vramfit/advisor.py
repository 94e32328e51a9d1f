"""Advice on a case that does not fit, from predictions of a worker."""

from __future__ import annotations

import time
from dataclasses import replace

from pytest_vramfit.estimating.advice import (
    LIMIT_S,
    BrokenError,
    Predicted,
    UnpredictableError,
    advise,
)
from pytest_vramfit.estimating.target import Target, target_of
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.verdict import Case
from pytest_vramfit.worker.client import OnProgress, Worker
from pytest_vramfit.worker.protocol import NotMeasured, Progress, Request

_OF_THE_STEP = {"no_oom", "peak_within_vram", "headroom"}
"""Checks of what a prediction tells: not of what follows the training steps."""


def advised(case: Case, worker: Worker, on_progress: OnProgress) -> Case:
    """The case, with advice if its training step does not fit."""
    failed = any(one.status == "fail" and one.name in _OF_THE_STEP for one in case.checks)
    if not failed and not case.seen_off_card:
        return case
    target = _target_of(case)
    headroom = case.claim.limits.headroom.of(target.usable_bytes)
    room = target.usable_bytes - headroom - target.outside_bytes

    def predict(spec: TrainSpec) -> Predicted:
        on_progress(Progress(stage="advice", done=0, of=1))
        request = Request(
            spec=spec,
            schedule=Schedule(timeout_s=LIMIT_S),
            capacity_bytes=room,
            target=target,
        )
        reply = worker.measure(request, lambda _: None)
        if isinstance(reply, NotMeasured):
            broken = reply.outcome in {"crashed", "timeout"}
            raise (BrokenError if broken else UnpredictableError)(reply.says)
        prediction, memory = reply.measurement.prediction, reply.measurement.memory
        assert prediction is not None
        assert memory is not None
        return Predicted(
            fits=prediction.fits is True,
            peak_allocated_bytes=memory.peak_allocated_bytes,
            outside_allocator_bytes=target.outside_bytes,
        )

    begin = time.perf_counter_ns()
    advice = advise(case.claim.spec, room, predict)
    stages = {**case.measurement.stages_ns, "advice": time.perf_counter_ns() - begin}
    return replace(case, advice=advice, measurement=replace(case.measurement, stages_ns=stages))


def _target_of(case: Case) -> Target:
    """The card that the case was judged by, with what was measured of it."""
    card, memory = case.card, case.measurement.memory
    known = target_of(case.claim.limits.card or card.name, card.total_bytes)
    outside = memory.outside_allocator_bytes if memory else None
    return replace(
        known,
        name=card.name,
        total_bytes=card.total_bytes,
        reserved_bytes=card.total_bytes - card.usable_bytes,
        outside_bytes=known.outside_bytes if outside is None else outside,
        overflow="spill" if case.seen_off_card else case.claim.limits.overflow,
    )
