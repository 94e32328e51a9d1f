"""One case from spec to measurement, on whatever bench it is given."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from typing import Protocol

import torch

from pytest_vramfit.measurement import (
    Conditions,
    Evidence,
    GpuTime,
    Measurement,
    Memory,
    Peaks,
    PhasePeak,
    Residency,
    UnsupportedError,
    median,
)
from pytest_vramfit.measuring.bench import Bench
from pytest_vramfit.measuring.ledger import take_ledger
from pytest_vramfit.measuring.watch import Watch
from pytest_vramfit.recorder import CeilingReachedError
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.training import adapters, model, phases
from pytest_vramfit.training.proof import Proof
from pytest_vramfit.training.step import FULL_LENGTH, VARIED_LENGTHS, Step

MOST_SKIPPED_STEPS = 20
"""The gradient scaler starts at 2^16 and halves: 16 skips bring it to 1."""

MOST_PROFILED_STEPS = 3
"""They vary by 0.04 % within a process."""


class Report(Protocol):
    """Told as the case moves on; ``left_ns`` is what its remaining steps will take."""

    def __call__(self, stage: str, done: int, of: int, left_ns: int | None = None, /) -> None:
        """The stage, how many of its steps are done, of how many."""


class CaseRun:
    """The state of one case while it runs. :meth:`measure` is all there is to call."""

    def __init__(self, spec: TrainSpec, schedule: Schedule, bench: Bench, report: Report) -> None:
        self._spec = spec
        self._schedule = schedule
        self._bench = bench
        self._report = report
        self._profiled_steps = min(MOST_PROFILED_STEPS, schedule.steps)
        self._stages_ns: dict[str, int] = {}
        self._step_number = 0
        self._step_begin_ns = 0
        self._step: Step | None = None
        self._step_ns: list[int] = []
        self._gpu: GpuTime | None = None
        self._conditions: Conditions | None = None
        self._residency: Residency | None = None
        self._phases: dict[str, PhasePeak] = {}

    def measure(self) -> Measurement:
        """Build, warm up, time, prove, profile. Running out of memory is a measurement, too.

        Raises UnbuildableError where the spec does not fit the model, UnsupportedError where the
        engine cannot run the case here.
        """
        memory: Memory | None = None
        evidence: Evidence | None = None
        oom = None
        try:
            memory, evidence = self._run()
        except CeilingReachedError as error:
            raise UnsupportedError(
                f"it needs more than the {error.ceiling_bytes / 2**30:.1f} GiB that this machine "
                "has to give; run it with --gpu"
            ) from None
        except Exception as error:
            phase = self._step.phase if self._step and self._step_number else "load"
            oom = self._bench.out_of_memory(error, phase, self._step_number)
            if oom is None:
                raise
        return Measurement(
            device=self._bench.device,
            memory=memory,
            oom=oom,
            evidence=evidence,
            step_ns=tuple(self._step_ns),
            gpu=self._gpu,
            conditions=self._conditions,
            residency=self._residency,
            phases=self._phases,
            stages_ns=self._stages_ns,
            environment={**self._bench.environment(), **versions()},
        )

    def _run(self) -> tuple[Memory, Evidence]:
        bench, spec, schedule = self._bench, self._spec, self._schedule
        with self._stage("build", 1):
            outline = model.outline(spec)
            adapted = adapters.targets(outline, spec)
            bench.check(spec, schedule, outline)
            base = model.build(outline, spec, bench.torch_device)
            trained = adapters.prepare(base, spec, adapted)
            load_peak = bench.peak_allocated_bytes()
            bench.settle()
            step = self._step = Step(trained, spec, bench.torch_device)
            proof = Proof(step, spec, adapted)
        with self._stage("warm-up", schedule.warmup):
            first = self._warm_up(step, proof)
        with self._stage("timed", schedule.steps):
            watch = bench.watch()
            step.vary_lengths(VARIED_LENGTHS if spec.lengths == "varied" else FULL_LENGTH)
            peaks, allocated, reserved = self._time(step, watch)
            step.vary_lengths(FULL_LENGTH)
        memory = Memory(
            load_peak_bytes=load_peak,
            first_step_peak_allocated_bytes=first.step,
            forward_peak_bytes=max(one.forward for one in peaks),
            backward_peak_bytes=max(one.backward for one in peaks),
            optimizer_peak_bytes=max(one.optimizer for one in peaks),
            peak_reserved_bytes=bench.peak_reserved_bytes(),
            allocated_after_step_bytes=tuple(allocated),
            reserved_after_step_bytes=tuple(one for one in reserved if one is not None) or None,
            outside_allocator_bytes=bench.outside_allocator_bytes(),
            allocator_retries=bench.allocator_retries(),
            managed_bytes=step.managed_bytes,
            host_growth_bytes=bench.host_growth_bytes(),
            non_local_growth_bytes=bench.non_local_growth_bytes(),
            local_bytes=bench.local_bytes(),
            served_from_host_bytes=bench.served_from_host_bytes(),
        )
        with self._stage("residency", 1):
            self._residency = bench.residency()
        with self._stage("proof", 1):
            evidence = proof.evidence()
        with self._stage("profiled", self._profiled_steps):
            self._gpu = self._profile(step, self._profiled_steps)
        self._conditions = watch.conditions()
        # after all that is timed: it may need more memory than the step
        with self._stage("ledger", 1):
            memory = replace(memory, ledger=self._ledger(step, memory))
        if schedule.phases:
            with self._stage("phases", len(schedule.phases)):
                self._run_phases(step)
        return memory, evidence

    def _ledger(self, step: Step, memory: Memory) -> dict[str, int] | None:
        """The parts of the peak; None where they cannot be followed: compiled code does not take a
        dispatch mode, and there may be no room for a step that is looked at.
        """
        if self._spec.compile:
            return None
        step.vary_lengths(VARIED_LENGTHS if self._spec.lengths == "varied" else FULL_LENGTH)
        try:
            parts = take_ledger(step, self._bench.torch_device, memory)
        except Exception as error:
            if self._bench.out_of_memory(error, step.phase, self._step_number) is None:
                raise
            step.model.zero_grad()
            return None
        finally:
            step.vary_lengths(FULL_LENGTH)
        return {**parts, "managed": step.managed_bytes}

    def _run_phases(self, step: Step) -> None:
        """Each asked phase with its own peak; one that runs out of memory is the last."""
        bench, schedule = self._bench, self._schedule
        for done, phase in enumerate(schedule.phases):
            self._report("phases", done, len(schedule.phases))
            bench.reset_peak()
            try:
                phases.run(phase, step, schedule.eval_batch)
                bench.synchronize()
            except Exception as error:
                oom = bench.out_of_memory(error, phase, self._step_number)
                if oom is None:
                    raise
                self._phases[phase] = PhasePeak(peak_bytes=None, oom=oom)
                return
            peak = bench.peak_allocated_bytes()
            residency = bench.residency()
            self._phases[phase] = PhasePeak(
                peak_bytes=peak,
                off_card_bytes=None if residency is None else residency.off_card_bytes,
                served_from_host_bytes=bench.served_from_host_bytes(),
            )

    def _warm_up(self, step: Step, proof: Proof) -> Peaks:
        """Steps until the asked number was applied, the last of them watched; the first's peaks."""
        warmup = self._schedule.warmup
        first: Peaks | None = None
        while step.applied < warmup and step.skipped <= MOST_SKIPPED_STEPS:
            self._begin_step("warm-up", step.applied, warmup)
            last = step.applied == warmup - 1
            peaks = proof.watched_step(self._bench) if last else step.run(self._bench)
            first = first or peaks
        assert first is not None
        return first

    def _time(self, step: Step, watch: Watch) -> tuple[list[Peaks], list[int], list[int | None]]:
        """The timed steps: their peaks, and the bytes allocated and reserved after each."""
        bench, steps = self._bench, self._schedule.steps
        peaks: list[Peaks] = []
        allocated: list[int] = []
        reserved: list[int | None] = []
        for done in range(steps):
            self._begin_step("timed", done, steps)
            bench.synchronize()
            begin = time.perf_counter_ns()
            peaks.append(step.run(bench))
            bench.synchronize()
            self._step_ns.append(time.perf_counter_ns() - begin)
            watch.sample()
            allocated.append(bench.allocated_bytes())
            reserved.append(bench.reserved_bytes())
        return peaks, allocated, reserved

    def _profile(self, step: Step, steps: int) -> GpuTime | None:
        """The GPU time of some more steps; None where there is none."""
        seen: list[tuple[int, int]] = []
        for done in range(steps):
            self._begin_step("profiled", done, steps)
            work = self._bench.gpu_work(lambda: step.run(self._bench))
            if work is None:
                return None
            seen.append(work)
        if not seen:
            return None
        return GpuTime(
            busy_ns=tuple(busy_ns for busy_ns, _ in seen),
            kernels=median([kernels for _, kernels in seen]),
        )

    def _begin_step(self, stage: str, done: int, of: int) -> None:
        now = time.perf_counter_ns()
        left_ns = None
        if self._step_number:
            schedule = self._schedule
            steps = schedule.warmup + schedule.steps + self._profiled_steps
            left_ns = max(0, steps - self._step_number) * (now - self._step_begin_ns)
        self._report(stage, done, of, left_ns)
        self._step_number += 1
        self._step_begin_ns = now

    @contextlib.contextmanager
    def _stage(self, name: str, of: int) -> Iterator[None]:
        self._report(name, 0, of)
        self._bench.synchronize()
        begin = time.perf_counter_ns()
        try:
            yield
            self._bench.synchronize()
        finally:
            self._stages_ns[name] = time.perf_counter_ns() - begin


def versions() -> dict[str, str]:
    """Of what the figures depend on beside the device."""
    found = {
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for name in ("transformers", "peft", "bitsandbytes", "accelerate"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
