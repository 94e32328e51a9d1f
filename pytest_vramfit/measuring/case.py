"""One case from spec to measurement, on whatever bench it is given."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from importlib import metadata

import torch

from pytest_vramfit.measurement import Evidence, Measurement, Memory
from pytest_vramfit.measuring.bench import Bench, UnsupportedError
from pytest_vramfit.measuring.protocol import Request
from pytest_vramfit.recorder import CeilingReachedError
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.proof import Proof
from pytest_vramfit.training.step import Peaks, Step

MOST_SKIPPED_STEPS = 20
"""The gradient scaler starts at 2^16 and halves: 16 skips bring it to 1."""

Report = Callable[[str, int, int], None]
"""Told (stage, done, of) as the case moves on."""


class CaseRun:
    """The state of one case while it runs. :meth:`measure` is all there is to call."""

    def __init__(self, request: Request, bench: Bench, report: Report) -> None:
        self._spec = request.spec
        self._schedule = request.schedule
        self._bench = bench
        self._report = report
        self._stages_ns: dict[str, int] = {}
        self._step_number = 0
        self._step: Step | None = None

    def measure(self) -> Measurement:
        """Build, warm up, time, prove. An out-of-memory error is a measurement like any other.

        Raises UnbuildableError where the spec does not fit the model, UnsupportedError where the
        engine cannot run the case here.
        """
        memory: Memory | None = None
        evidence: Evidence | None = None
        step_ns: list[int] = []
        oom = None
        try:
            memory, evidence = self._run(step_ns)
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
            step_ns=tuple(step_ns),
            stages_ns=self._stages_ns,
            versions=versions(),
        )

    def _run(self, step_ns: list[int]) -> tuple[Memory, Evidence]:
        bench, spec, schedule = self._bench, self._spec, self._schedule
        with self._stage("build", 1):
            outline = model.outline(spec)
            adapted = adapters.targets(outline, spec)
            bench.check(spec, schedule, outline)
            model.materialise(outline, spec, bench.torch_device)
            trained = adapters.prepare(outline, spec)
            load_peak = bench.peak_allocated_bytes()
            bench.settle()
            step = self._step = Step(trained, spec, bench.torch_device)
            proof = Proof(step, spec, adapted)
        with self._stage("warm-up", schedule.warmup):
            first = self._warm_up(step, proof)
        with self._stage("timed", schedule.steps):
            peaks, allocated, reserved = self._time(step, step_ns)
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
        )
        with self._stage("proof", 1):
            evidence = proof.evidence()
        return memory, evidence

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

    def _time(
        self, step: Step, step_ns: list[int]
    ) -> tuple[list[Peaks], list[int], list[int | None]]:
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
            step_ns.append(time.perf_counter_ns() - begin)
            allocated.append(bench.allocated_bytes())
            reserved.append(bench.reserved_bytes())
        return peaks, allocated, reserved

    def _begin_step(self, stage: str, done: int, of: int) -> None:
        self._report(stage, done, of)
        self._step_number += 1

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
    """What the figures depend on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    for name in ("transformers", "peft", "bitsandbytes", "accelerate"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
