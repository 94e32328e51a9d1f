"""What a test gets as ``vramfit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_vramfit.spec import Limits, TrainSpec
from pytest_vramfit.verdict import Case, Check


class MeasuredCase:
    """A case, measured and judged. Figures that were not measured are None."""

    def __init__(self, case: Case | None) -> None:
        self._given = case

    @property
    def _case(self) -> Case:
        if self._given is None:
            raise LookupError(
                "this test has no fits_vram marker, so vramfit has no case of its own; "
                "vramfit.measure(model=...) returns one"
            )
        return self._given

    @property
    def spec(self) -> TrainSpec:
        """What was trained."""
        return self._case.claim.spec

    @property
    def limits(self) -> Limits:
        """What had to hold."""
        return self._case.claim.limits

    @property
    def outcome(self) -> str:
        """``fits``, or the first that failed: ``oom``, ``over_vram``, ``no_headroom``, ..."""
        return self._case.outcome

    @property
    def checks(self) -> tuple[Check, ...]:
        """Every check with its status, value and limit."""
        return self._case.checks

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The peak of the training step in steady state; None after an out-of-memory error."""
        memory = self._case.measurement.memory
        return None if memory is None else memory.peak_allocated_bytes

    @property
    def peak_reserved_bytes(self) -> int | None:
        """What the allocator held at most; None under the cpu engine."""
        memory = self._case.measurement.memory
        return None if memory is None else memory.peak_reserved_bytes

    @property
    def samples(self) -> tuple[int, ...]:
        """Wall time of each timed optimizer step in ns."""
        return self._case.measurement.step_ns

    @property
    def step_ns(self) -> int | None:
        """Median wall time of an optimizer step."""
        return self._case.measurement.median_step_ns

    @property
    def gpu_ns(self) -> int | None:
        """Median GPU time of an optimizer step; None where the profiler saw none."""
        return self._case.measurement.median_gpu_ns

    @property
    def gpu_samples(self) -> tuple[int, ...] | None:
        """GPU time of each profiled step in ns."""
        gpu = self._case.measurement.gpu
        return None if gpu is None else gpu.busy_ns

    @property
    def tokens_per_second(self) -> float | None:
        """Trained tokens in a second of wall time."""
        return self._case.tokens_per_second

    @property
    def seconds_per_10k_tokens(self) -> float | None:
        """Wall time for ten thousand tokens."""
        return self._case.seconds_per_10k_tokens

    @property
    def joules_per_10k_tokens(self) -> float | None:
        """Energy of the GPU for ten thousand tokens; None under the cpu engine."""
        return self._case.joules_per_10k_tokens

    @property
    def ledger(self) -> Mapping[str, int] | None:
        """The parts of the peak allocated, in bytes; None where they could not be followed."""
        memory = self._case.measurement.memory
        return memory.ledger if memory else None

    @property
    def environment(self) -> Mapping[str, str]:
        """The device, its driver, the versions of the training libraries, and more by name."""
        return self._case.measurement.environment


class ChangedCase(MeasuredCase):
    """A case of ``vramfit.measure``. On a marked test it also knows its ratios to the test's own.

    The first ratio that is asked for measures both cases once more, in turn. None where one of
    them did not get through.
    """

    def __init__(self, case: Case, ratios: Callable[[Case], Mapping[str, Check]]) -> None:
        super().__init__(case)
        self._measure_ratios = ratios
        self._ratios: Mapping[str, Check] | None = None

    @property
    def step_ratio(self) -> float | None:
        """Wall time of the step ÷ that of the test's own case."""
        return self._ratio("step_time")

    @property
    def gpu_ratio(self) -> float | None:
        """The same of GPU time."""
        return self._ratio("gpu_time")

    @property
    def peak_ratio(self) -> float | None:
        """The same of the peak allocated."""
        return self._ratio("peak_baseline")

    def _ratio(self, check: str) -> float | None:
        if self._ratios is None:
            self._ratios = self._measure_ratios(self._case)
        found = self._ratios.get(check)
        return None if found is None else found.ratio


class Vramfit(MeasuredCase):
    """The marked test's case, and a way to measure more."""

    def __init__(
        self,
        case: Case | None,
        measure: Callable[[dict[str, Any]], Case],
        ratios: Callable[[Case, Case], Mapping[str, Check]],
    ) -> None:
        super().__init__(case)
        self._measure = measure
        self._ratios = ratios

    def measure(self, **keywords: Any) -> ChangedCase:
        """Measure another case: changes to the marked one, or on an unmarked test a whole spec.

        Nothing is asserted, and running out of memory does not raise: look at ``outcome``.
        """
        return ChangedCase(
            self._measure(keywords), lambda changed: self._ratios(changed, self._case)
        )
