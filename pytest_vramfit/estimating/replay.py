"""The events of a trace through the allocator's model: peaks by phase, and whose bytes they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_vramfit.estimating.allocator import CachingAllocator, OutOfMemoryError
from pytest_vramfit.estimating.allocator_settings import AllocatorSettings
from pytest_vramfit.estimating.traced import Traced
from pytest_vramfit.events import LEDGER, Action, block_bytes, part_of
from pytest_vramfit.measurement import Peaks

STEP = ("load", "forward", "backward", "optimizer")
"""What a trace's phases are up to the last step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GotThrough:
    """What the allocator had over all of the trace, in bytes."""

    weights_bytes: int
    """Allocated when the base was there."""
    load_peak_bytes: int
    resident_bytes: int
    """Allocated before the first step."""
    steps: tuple[Peaks, ...]
    phases: Mapping[str, int]
    """The peaks of what followed the steps, as far as there was room for it."""
    reserved_after_phase_bytes: Mapping[str, int]
    """The most that was reserved from when the model was loaded to the end of each of them."""
    after_step_bytes: tuple[int, ...]
    peak_reserved_bytes: int
    """From when the model was loaded to the last step."""
    retries: int
    peak_event: int
    """The event that made the last step's peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanOut:
    """Where the allocator could not meet a request."""

    phase: str
    step: int
    """From 1; 0 while loading."""
    requested_bytes: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int


class Replay:
    """One pass of a trace's events; :meth:`run` is all there is to call."""

    def __init__(
        self,
        traced: Traced,
        settings: AllocatorSettings,
        *,
        capacity_bytes: int | None = None,
        addresses: Iterable[int] | None = None,
    ) -> None:
        self._traced = traced
        self._allocator = CachingAllocator(
            settings, capacity_bytes=capacity_bytes, addresses=addresses
        )
        self._reserved = 0
        self._weights = self._load_peak = self._resident = 0
        self._phase, self._begin = "load", 0
        self._peaks: dict[str, int] = {}
        self._peak_event = 0
        self._steps: list[Peaks] = []
        self._phases: dict[str, int] = {}
        self._reserved_after_phase: dict[str, int] = {}
        self._after: list[int] = []

    def run(self) -> GotThrough | RanOut:
        """Let the allocator serve every event."""
        allocator = self._allocator
        for index, (action, number, size_bytes) in enumerate(self._traced.events):
            if action is Action.ALLOCATE:
                try:
                    allocator.allocate(number, size_bytes)
                except OutOfMemoryError as error:
                    if self._phase not in STEP:  # after the steps, which did get through
                        break
                    return self._ran_out(error)
            elif action is Action.FREE:
                allocator.free(number)
            elif action is Action.EMPTY_CACHE:
                allocator.empty_cache()
            else:
                self._mark(self._traced.marks[number], index)
        return GotThrough(
            weights_bytes=self._weights,
            load_peak_bytes=self._load_peak,
            resident_bytes=self._resident,
            steps=tuple(self._steps),
            phases=self._phases,
            reserved_after_phase_bytes=self._reserved_after_phase,
            after_step_bytes=tuple(self._after),
            peak_reserved_bytes=self._reserved,
            retries=allocator.retries,
            peak_event=self._peak_event,
        )

    def _mark(self, mark: str, index: int) -> None:
        allocator = self._allocator
        phase, _, moment = mark.partition(" ")
        if mark == "weights":
            self._weights = allocator.allocated_bytes
        elif mark == "loaded":
            self._load_peak = allocator.peak_allocated_bytes
            self._resident = allocator.allocated_bytes
        elif mark == "settled":
            allocator.reset_peaks()
        elif moment == "begins":
            self._phase, self._begin = phase, index
            if phase in STEP:
                self._keep_reserved()
            allocator.reset_peaks()
        elif phase in STEP:
            self._keep_reserved()
            self._end_phase_of_step(phase)
        else:
            self._phases[phase] = allocator.peak_allocated_bytes
            self._reserved_after_phase[phase] = max(
                self._reserved,
                allocator.peak_reserved_bytes,
                *self._reserved_after_phase.values(),
            )

    def _end_phase_of_step(self, phase: str) -> None:
        peak = self._allocator.peak_allocated_bytes
        if peak > max(self._peaks.values(), default=0):
            self._peak_event = self._event_of(self._allocator.peak_key)
        self._peaks[phase] = max(peak, self._peaks.get(phase, 0))
        if phase == "optimizer":
            self._steps.append(Peaks(**self._peaks))
            self._after.append(self._allocator.allocated_bytes)
            self._peaks = {}

    def _event_of(self, block: int | None) -> int:
        """The event that allocated a block; where the phase began without one."""
        events = self._traced.events
        return next(
            (
                index
                for index in range(self._begin, len(events))
                if events[index][:2] == (Action.ALLOCATE, block)
            ),
            self._begin,
        )

    def _keep_reserved(self) -> None:
        self._reserved = max(self._reserved, self._allocator.peak_reserved_bytes)

    def _ran_out(self, error: OutOfMemoryError) -> RanOut:
        return RanOut(
            phase=self._phase,
            step=len(self._steps) + 1 if self._phase != "load" else 0,
            requested_bytes=error.requested_bytes,
            free_bytes=error.free_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=error.reserved_bytes,
        )


def ledger(traced: Traced, settings: AllocatorSettings, event: int) -> dict[str, int]:
    """The allocated bytes right after an event, by part; what the allocator's blocks have beyond
    their tensors, where they were not worth splitting, counts as workspace.
    """
    allocator = CachingAllocator(settings)
    living: dict[int, int] = {}
    for action, number, size_bytes in traced.events[: event + 1]:
        if action is Action.ALLOCATE:
            allocator.allocate(number, size_bytes)
            living[number] = block_bytes(size_bytes)
        elif action is Action.FREE:
            allocator.free(number)
            del living[number]
        elif action is Action.EMPTY_CACHE:
            allocator.empty_cache()
    parts: Counter[str] = Counter()
    for number, size_bytes in living.items():
        parts[part_of(traced.blocks[number], traced.vocabulary)] += size_bytes
    parts["workspace"] += allocator.allocated_bytes - parts.total()
    return {name: parts[name] for name in LEDGER}
