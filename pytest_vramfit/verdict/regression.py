"""The checks against a baseline: step time, GPU time, peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pytest_vramfit.baseline import Entry, Process
from pytest_vramfit.measurement import Conditions
from pytest_vramfit.spec import Limits
from pytest_vramfit.verdict.case import Check, Finding
from pytest_vramfit.verdict.ratio import (
    GPU,
    Ratio,
    Samples,
    ratio,
    ratio_of_pairs,
    wall_clock,
)

LOADED_SHARE = 0.3
"""With other processes on more of the processors than this the wall clock tells about them."""
_MOST_BY_LOAD = 2
"""By how much more than its share other work may slow a step down: caches, memory, clocks."""
_MOST_BELIEVED_SHARE = 0.95
_THROTTLED_SHARE = 0.01
"""Of the measured time; less is no explanation of a ratio worth judging."""
_EXTERNAL = ("software thermal", "hardware thermal", "power brake", "sync boost")
"""Reasons for lower clocks that do not come from the step itself, as a power cap does."""


def regressions(
    limits: Limits,
    now: Entry,
    before: Entry,
    conditions: Sequence[Conditions] = (),
    *,
    in_turn: bool = False,
) -> Iterator[Check]:
    """The checks that ``limits`` do not switch off.

    ``in_turn``: the processes of both were measured in turn, so that pairs of them can be judged.
    """
    seen = _Seen(now, before, conditions, in_turn=in_turn)
    if limits.step_ratio is not None:
        yield seen.step_time(limits.step_ratio)
    if limits.gpu_ratio is not None:
        yield seen.gpu_time(limits.gpu_ratio)
    if limits.peak_ratio is not None:
        yield seen.peak(limits.peak_ratio)


class _Seen:
    """Both sides of the comparison, and what explains a difference."""

    def __init__(
        self,
        now: Entry,
        before: Entry,
        conditions: Sequence[Conditions],
        *,
        in_turn: bool,
    ) -> None:
        compare = ratio_of_pairs if in_turn else ratio
        self._now, self._before, self._conditions = now, before, conditions
        self._step = compare(
            [one.step_ns for one in now.processes],
            [one.step_ns for one in before.processes],
            wall_clock(max(_host_share(now), _host_share(before))),
        )
        gpu = _gpu_samples(now, before, in_turn=in_turn)
        self._gpu = compare(*gpu, GPU) if all(gpu) else None

    def step_time(self, limit: float) -> Check:
        """Wall time."""
        check = self._time(
            "step_time", self._step, self._now.median_step_ns, self._before.median_step_ns, limit
        )
        others = max((one.others_cpu_share or 0.0 for one in self._conditions), default=0.0)
        explained = limit * _MOST_BY_LOAD / (1 - min(others, _MOST_BELIEVED_SHARE))
        if check.status != "pass" and others > LOADED_SHARE and self._step.low <= explained:
            return _unchecked(check, Finding(kind="host_loaded", names=(f"{others:.0%}",)))
        return check

    def gpu_time(self, limit: float) -> Check:
        """Time in kernels and copies."""
        now, before = self._now.median_gpu_ns, self._before.median_gpu_ns
        if self._now.engine != "gpu":
            kind = "no_gpu"
        elif now is not None and before is None:
            kind = "no_gpu_time_before"
        else:
            kind = "no_gpu_time"
        if self._gpu is None or now is None or before is None:
            return Check(name="gpu_time", status="unchecked", findings=(Finding(kind=kind),))
        return self._time("gpu_time", self._gpu, now, before, limit)

    def peak(self, limit: float) -> Check:
        """Peak allocated."""
        now, before = self._now.peak_allocated_bytes, self._before.peak_allocated_bytes
        value = now / before
        return Check(
            name="peak_baseline",
            status="pass" if value <= limit else "fail",
            value=now,
            limit=int(before * limit),
            unit="bytes",
            ratio=value,
            findings=tuple(self._explanations(value, improved=value < 1 / limit, limit=limit)),
        )

    def _time(self, name: str, seen: Ratio, now: int, before: int, limit: float) -> Check:
        check = Check(
            name=name,
            status="fail" if seen.low > limit else "pass",
            value=now,
            limit=int(before * limit),
            unit="ns",
            ratio=seen.value,
            interval=(seen.low, seen.high),
            findings=tuple(
                self._explanations(
                    seen.value, improved=seen.high < 1 / limit, limit=limit, name=name
                )
            ),
        )
        if seen.low <= limit < seen.high:
            check = _unchecked(check, Finding(kind="too_noisy"))
        reasons = throttled(self._now.processes, self._conditions)
        if check.status != "pass" and reasons:
            return _unchecked(check, Finding(kind="throttled", names=reasons))
        return check

    def _explanations(
        self,
        value: float,
        improved: bool,  # noqa: FBT001
        limit: float,
        name: str = "",
    ) -> Iterator[Finding]:
        """What goes with a ratio that is beyond its limit, near it, or much better."""
        now, before = self._now, self._before
        if name and now.environment.get("gpu") != before.environment.get("gpu"):
            yield Finding(kind="other_gpu")
        if improved:
            yield Finding(kind="improved")
        if improved or value > 1 + (limit - 1) / 2:
            yield from self._host_side(name)
            if name and now.kernels != before.kernels and now.kernels and before.kernels:
                yield Finding(kind="kernels", names=(f"{before.kernels:,}", f"{now.kernels:,}"))
            changes = environment_changes(before, now)
            if changes:
                yield Finding(kind="environment_changed", names=tuple(chain(*changes)))
            clocks = [one.sm_clock_mhz for one in self._conditions if one.sm_clock_mhz]
            if name == "gpu_time" and clocks:
                yield Finding(kind="sm_clock", names=(str(min(clocks)),))

    def _host_side(self, name: str) -> Iterator[Finding]:
        """Whether a step is slower although the GPU is not, or faster although the GPU is not."""
        gpu, change = self._gpu, self._step.value - 1
        if name != "step_time" or gpu is None:
            return
        of_gpu = gpu.value - 1 if change > 0 else 1 - gpu.value
        if of_gpu < abs(change) / 4:
            yield Finding(kind="host_side", names=(f"{gpu.value:.3f}",))


def _gpu_samples(
    now: Entry, before: Entry, *, in_turn: bool
) -> tuple[Sequence[Samples], Sequence[Samples]]:
    """Of the processes that have them; in turn, of the pairs in which both have them.

    The profiler may fail in one process: the others still tell.
    """
    if in_turn:
        pairs = [
            (one.gpu_ns, other.gpu_ns)
            for one, other in zip(now.processes, before.processes, strict=True)
            if one.gpu_ns and other.gpu_ns
        ]
        return [one for one, _ in pairs], [other for _, other in pairs]
    return (
        [one.gpu_ns for one in now.processes if one.gpu_ns],
        [one.gpu_ns for one in before.processes if one.gpu_ns],
    )


def _host_share(entry: Entry) -> float:
    """The part of the step in which the GPU does not work; where nothing is known, a quarter."""
    gpu_ns = entry.median_gpu_ns
    return 0.25 if gpu_ns is None else max(0.0, 1 - gpu_ns / entry.median_step_ns)


def throttled(processes: Sequence[Process], conditions: Sequence[Conditions]) -> tuple[str, ...]:
    """The external reasons that held the clocks down for a part of the time that matters."""
    total_ns = sum(sum(one.step_ns) + sum(one.gpu_ns or ()) for one in processes)
    held = {
        name: sum((one.throttled_ns or {}).get(name, 0) for one in conditions) for name in _EXTERNAL
    }
    return tuple(name for name, ns in held.items() if ns > _THROTTLED_SHARE * total_ns)


def environment_changes(before: Entry, now: Entry) -> list[tuple[str, str, str]]:
    """Name, old and new value of all that differs, but for which GPU of a model it is."""
    names = [
        *before.environment,
        *(name for name in now.environment if name not in before.environment),
    ]
    return [
        (name, before.environment.get(name, "none"), now.environment.get(name, "none"))
        for name in names
        if name != "gpu" and before.environment.get(name) != now.environment.get(name)
    ]


def _unchecked(check: Check, reason: Finding) -> Check:
    """The same figures, not judged; the reason first."""
    return replace(check, status="unchecked", findings=(reason, *check.findings))
