"""A case predicted: what measuring it would show, as far as memory goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_vramfit.estimating.allocator import falling, rising, shuffled
from pytest_vramfit.estimating.allocator_settings import AllocatorSettings, NotModelledError
from pytest_vramfit.estimating.layers import Tracer
from pytest_vramfit.estimating.replay import GotThrough, RanOut, Replay, ledger
from pytest_vramfit.estimating.target import Target, Version
from pytest_vramfit.estimating.traced import Traced, uncollected
from pytest_vramfit.measurement import (
    Device,
    Measurement,
    Memory,
    OutOfMemory,
    PhasePeak,
    Prediction,
    UnsupportedError,
)
from pytest_vramfit.spec import Phase, Schedule, TrainSpec

MARGIN = 0.005
"""Of the allocator's memory: no peak of those measured was further from its prediction."""
_SHUFFLES = 7
"""With the two plain orders nine: 118 of 122 reserved peaks measured on an H200 lay within."""


@dataclass(frozen=True, slots=True)
class _Key:
    """What a trace depends on."""

    digest: str
    phases: tuple[Phase, ...]
    eval_batch: int
    capability: tuple[int, int] | None
    torch: Version | None

    def covers(self, asked: _Key) -> bool:
        """Whether a trace of this has what is asked for; the steps are there with any phases."""
        steps = replace(self, phases=asked.phases, eval_batch=asked.eval_batch)
        return steps == asked and (not asked.phases or self == asked)


class Estimator:
    """Predicts cases, one after the other.

    The last one's trace is kept, and what comes of it without a bound, for the same case again.
    """

    def __init__(self) -> None:
        self._last: tuple[_Key, Traced, list[GotThrough]] | None = None
        self._tracer = Tracer()

    def estimate(
        self,
        spec: TrainSpec,
        target: Target,
        capacity_bytes: int | None = None,
        schedule: Schedule | None = None,
    ) -> Measurement:
        """What measuring would show on the target, whose allocator may have ``capacity_bytes``
        (None: all that is usable and not beside it). Of the schedule only what follows the steps
        matters.

        Raises UnbuildableError where the spec does not fit the model, UnsupportedError where this
        engine cannot tell.
        """
        _check_can_be_traced(spec)
        settings = _settings(spec)
        begin = time.perf_counter_ns()
        schedule = schedule or Schedule()
        traced, unbounded, traced_ns = self._traced(spec, target, settings, schedule)
        room = target.usable_bytes - target.outside_bytes
        capacity = room if capacity_bytes is None else capacity_bytes
        reserved = [one.peak_reserved_bytes for one in unbounded]
        stay: dict[Phase, bool | None] = {}
        undecided: tuple[Phase, ...] = ()
        if target.overflow == "spill":
            fits, oom = _stays(reserved, capacity), None
            for phase in schedule.phases:
                reserved_after = [one.reserved_after_phase_bytes[phase] for one in unbounded]
                stay[phase] = _stays(reserved_after, capacity)
            undecided = tuple(name for name, stays in stay.items() if stays is None)
        else:
            fits, oom = answer(traced, settings, capacity, unbounded)
            if oom is None:
                undecided = _may_run_out(schedule.phases, traced, settings, capacity, unbounded)
        return Measurement(
            device=Device(
                name=target.name,
                total_bytes=target.total_bytes,
                reserved_bytes=target.reserved_bytes,
                held_bytes=0,
            ),
            memory=_memory(traced, settings, unbounded[0], target),
            oom=oom,
            evidence=None,
            step_ns=(),
            gpu=None,
            conditions=None,
            phases={
                name: PhasePeak(
                    peak_bytes=unbounded[0].phases[name],
                    off_card_bytes=(
                        unbounded[0].reserved_after_phase_bytes[name] - capacity
                        if stay.get(name) is False
                        else None
                    ),
                )
                for name in (schedule.phases if oom is None else ())
            },
            stages_ns={"trace": traced_ns, "replay": time.perf_counter_ns() - begin - traced_ns},
            prediction=Prediction(
                fits=fits,
                margin=MARGIN,
                reserved_bytes=(min(reserved), max(reserved)),
                undecided=undecided,
            ),
            environment={},
        )

    def _traced(
        self, spec: TrainSpec, target: Target, settings: AllocatorSettings, schedule: Schedule
    ) -> tuple[Traced, list[GotThrough], int]:
        """The case's trace, what comes of it without a bound, and how many ns tracing took now."""
        phases, eval_batch = schedule.phases, schedule.eval_batch
        key = _Key(spec.digest, phases, eval_batch, target.capability, target.torch)
        begin = end = time.perf_counter_ns()
        if self._last is None or not self._last[0].covers(key):
            self._last = None  # two large ones need not be there at a time
            try:
                traced = self._tracer.trace(spec, target, phases, eval_batch)
            except NotImplementedError as error:  # such as an answer that depends on values
                raise UnsupportedError(
                    f"meta tensors do not show what it does: {_first_line(error)}"
                ) from error
            end = time.perf_counter_ns()
            self._last = (key, traced, through(traced, settings))
        return *self._last[1:], end - begin


_OPAQUE: dict[str, Callable[[TrainSpec], bool]] = {
    "Liger's kernels": lambda spec: spec.liger,
    "compiled code": lambda spec: spec.compile,
    "flash attention's own package": lambda spec: spec.attention == "flash_attention_2",
}
"""What says nothing to PyTorch of the memory that it takes."""


def _check_can_be_traced(spec: TrainSpec) -> None:
    for what, asked in _OPAQUE.items():
        if asked(spec):
            raise UnsupportedError(f"{what} cannot be predicted; run it with --gpu")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _settings(spec: TrainSpec) -> AllocatorSettings:
    """The allocator's settings of the case. Raises UnsupportedError."""
    if spec.alloc_conf is None:
        return AllocatorSettings()
    try:
        return AllocatorSettings.parse(spec.alloc_conf)
    except NotModelledError as error:
        raise UnsupportedError(f"alloc_conf={spec.alloc_conf!r}: {error}") from error


def through(traced: Traced, settings: AllocatorSettings) -> list[GotThrough]:
    """The trace without a bound, once in each order of addresses."""
    with uncollected():
        return [one for one in _replays(traced, settings) if isinstance(one, GotThrough)]


def _replays(
    traced: Traced, settings: AllocatorSettings, capacity_bytes: int | None = None
) -> Iterator[GotThrough | RanOut]:
    """The trace with segments in several orders of addresses, which decide between equal blocks and
    are the driver's affair.
    """
    orders = (rising(), falling(), *map(shuffled, range(_SHUFFLES)))
    for addresses in orders:
        yield Replay(traced, settings, capacity_bytes=capacity_bytes, addresses=addresses).run()


def answer(
    traced: Traced,
    settings: AllocatorSettings,
    capacity: int,
    unbounded: Sequence[GotThrough],
) -> tuple[bool | None, OutOfMemory | None]:
    """Whether the allocator gets through with so much, and where it runs out. ``unbounded``: what
    comes of all it wants, from :func:`through`.

    For sure where in every order it reserves a margin less without being pressed, and not where in
    every order it runs out with a margin more; how it does without is told of the first order.
    None: neither; it may get through by giving back what it holds in reserve.
    """
    less, more = int(capacity * (1 - MARGIN)), int(capacity * (1 + MARGIN))
    if all(one.peak_reserved_bytes <= less for one in unbounded):
        return True, None
    if traced.most_alive_bytes() <= more and any(
        isinstance(one, GotThrough) for one in _replays(traced, settings, more)
    ):
        return None, None
    end = next(_replays(traced, settings, capacity))
    return (None, None) if isinstance(end, GotThrough) else (False, _oom(end))


def _stays(reserved: Sequence[int], capacity: int) -> bool | None:
    """Whether all of it stays on a card that serves the rest from host memory, for what is reserved
    in each order of addresses. Such a card never makes the allocator give back its cache.
    """
    if all(one <= int(capacity * (1 - MARGIN)) for one in reserved):
        return True
    return False if all(one > int(capacity * (1 + MARGIN)) for one in reserved) else None


def _may_run_out(
    phases: Sequence[Phase],
    traced: Traced,
    settings: AllocatorSettings,
    capacity: int,
    unbounded: Sequence[GotThrough],
) -> tuple[Phase, ...]:
    """The phases that do not get through for sure with so much, less a margin, in every order."""
    less = int(capacity * (1 - MARGIN))
    if not phases or all(max(one.reserved_after_phase_bytes.values()) <= less for one in unbounded):
        return ()
    ends = [*_replays(traced, settings, less)]
    return tuple(
        phase
        for phase in phases
        if not all(isinstance(one, GotThrough) and phase in one.phases for one in ends)
    )


def _oom(end: RanOut) -> OutOfMemory:
    return OutOfMemory(
        phase=end.phase,
        step=end.step,
        requested_bytes=end.requested_bytes,
        free_bytes=end.free_bytes,
        allocated_bytes=end.allocated_bytes,
        reserved_bytes=end.reserved_bytes,
        says="predicted",
    )


def _memory(traced: Traced, settings: AllocatorSettings, ran: GotThrough, target: Target) -> Memory:
    """The figures of the steady steps, without a bound."""
    first, *steady = ran.steps
    return Memory(
        load_peak_bytes=ran.load_peak_bytes,
        first_step_peak_allocated_bytes=first.step,
        forward_peak_bytes=max(one.forward for one in steady),
        backward_peak_bytes=max(one.backward for one in steady),
        optimizer_peak_bytes=max(one.optimizer for one in steady),
        peak_reserved_bytes=ran.peak_reserved_bytes,
        allocated_after_step_bytes=ran.after_step_bytes[1:],
        reserved_after_step_bytes=None,
        outside_allocator_bytes=target.outside_bytes,
        allocator_retries=ran.retries,
        managed_bytes=traced.managed_bytes,
        ledger={**ledger(traced, settings, ran.peak_event), "managed": traced.managed_bytes},
    )
