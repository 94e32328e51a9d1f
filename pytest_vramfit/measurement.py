"""What one engine saw of one case: integers and facts, never a judgement.

Written in the worker, read by everything behind it; crosses the process border as JSON. A figure
that was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pytest_vramfit.spec import Overflow, Phase

Engine = Literal["gpu", "cpu", "estimate"]


class UnsupportedError(Exception):
    """The engine cannot run the case here; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldChange:
    """That others took memory of the device while the case ran, or gave some back."""

    bytes: int
    """How much more they held; below zero: less."""
    when: str
    """Seen then: ``before the timed steps``, ``in the timed steps``, ``before memory ran out``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The device that was measured on."""

    name: str
    total_bytes: int
    """Its memory by NVML (``gpu``) or the operating system (``cpu``)."""
    reserved_bytes: int
    """What the driver keeps for itself."""
    held_bytes: int
    """What others held when the case began."""
    granted_bytes: int | None = None
    """What the system lets a process have, under Windows; None: all that is left."""
    held_change: HeldChange | None = None
    """The largest change of that during the case; None where none was seen."""
    driver: str | None = None
    emulated_on: str | None = None
    """The GPU that passes for this card, where it is another."""
    overflow: Overflow | None = None
    """What the emulated card does when it is full."""

    @property
    def baseline_name(self) -> str:
        """What figures of it may be compared by."""
        if self.emulated_on is None:
            return self.name
        return f"{self.name} ({self.overflow}) emulated on {self.emulated_on}"

    @property
    def usable_bytes(self) -> int:
        """What a training step can have."""
        left = self.total_bytes - self.reserved_bytes - self.held_bytes
        return left if self.granted_bytes is None else min(left, self.granted_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """The peak allocated bytes of one optimizer step by phase (the worst micro-batch of each)."""

    forward: int
    backward: int
    optimizer: int

    @property
    def step(self) -> int:
        """The peak of the whole step."""
        return max(self.forward, self.backward, self.optimizer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes, all in steady state (over the timed steps) unless the name says otherwise."""

    load_peak_bytes: int
    first_step_peak_allocated_bytes: int
    forward_peak_bytes: int
    backward_peak_bytes: int
    optimizer_peak_bytes: int
    peak_reserved_bytes: int | None
    allocated_after_step_bytes: tuple[int, ...]
    """After each timed step."""
    reserved_after_step_bytes: tuple[int, ...] | None
    outside_allocator_bytes: int | None
    """On the device but not in PyTorch's allocator: context, kernels, libraries."""
    allocator_retries: int | None
    managed_bytes: int | None = None
    """Optimizer states in managed memory, which the driver moves between host and device; not in
    any other figure here."""
    ledger: Mapping[str, int] | None = None
    """The parts of the peak allocated, which sum to it."""
    host_growth_bytes: int | None = None
    """How much more host memory the process had after the timed steps than before the case."""
    non_local_growth_bytes: int | None = None
    """How much more of the process's GPU memory Windows had in host memory then."""
    local_bytes: int | None = None
    """How much of it Windows had on the card then."""
    served_from_host_bytes: int | None = None
    """What an emulated card with ``overflow="spill"`` had in host memory, by its own account."""

    @property
    def phases(self) -> dict[str, int]:
        """The peak of each phase, loading first."""
        return {
            "load": self.load_peak_bytes,
            "forward": self.forward_peak_bytes,
            "backward": self.backward_peak_bytes,
            "optimizer": self.optimizer_peak_bytes,
        }

    @property
    def peak_allocated_bytes(self) -> int:
        """The peak of the whole step."""
        return max(self.forward_peak_bytes, self.backward_peak_bytes, self.optimizer_peak_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTime:
    """How long the GPU worked in each of some profiled optimizer steps.

    The profiler slows the host down, not the GPU: these are other steps than the ones that the
    wall clock timed.
    """

    busy_ns: tuple[int, ...]
    """The union of the step's kernel and copy intervals."""
    kernels: int
    """Kernels, copies and fills in a step, at the median."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """What the timed steps ran under."""

    energy_mj: int | None = None
    """Millijoules that the GPU took over the timed steps."""
    energy_from: Literal["counter", "samples", "power limit"] | None = None
    """The GPU's own counter, samples of the power it drew, or its power limit: an upper bound."""
    pcie_bytes: int | None = None
    """At least so many went over the bus to and from the GPU in the timed steps."""
    gpu_busy_percent: int | None = None
    """Of the time just before the end of the timed steps, as NVML counts it."""
    memory_busy_percent: int | None = None
    """The same of the card's memory."""
    sm_clock_mhz: int | None = None
    """The median right after each timed step."""
    temperature_c: int | None = None
    """After the last timed step."""
    throttled_ns: Mapping[str, int] | None = None
    """For how long the clocks were held down during the timed and profiled steps, by reason."""
    others_cpu_share: float | None = None
    """The share of the machine's processors that other processes took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Residency:
    """Where the allocator's segments were after the timed steps, by how fast they could be read."""

    off_card_bytes: int
    uncertainty_bytes: int
    card_bytes_per_s: int
    """Reading what is on the card."""
    host_bytes_per_s: int
    """Reading host memory over the bus."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """The device could not serve a request."""

    phase: str
    """``load``, ``forward``, ``backward`` or ``optimizer``."""
    step: int
    """The optimizer step it happened in, from 1; 0 while loading."""
    requested_bytes: int | None
    free_bytes: int | None
    """Free on the device at that moment."""
    allocated_bytes: int
    reserved_bytes: int | None
    says: str
    """The library's own words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What an estimate says beside the figures of memory, which it has as if it had measured."""

    fits: bool | None
    """Whether the steps get through; on a card that serves from host memory what does not fit,
    whether they stay on it. None: it is too close to the limit to tell."""
    margin: float
    """So much of the allocator's memory that it is too close within."""
    reserved_bytes: tuple[int, int]
    """The least and the most that the allocator reserves, by the order of its addresses."""
    undecided: tuple[Phase, ...] = ()
    """What follows the steps and may find no room, for what the allocator keeps in reserve; on a
    card that serves from host memory what does not fit, may leave it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhasePeak:
    """The peak allocated of what followed the training steps, or that it ran out of memory."""

    peak_bytes: int | None
    oom: OutOfMemory | None = None
    off_card_bytes: int | None = None
    """Of all that the allocator had after it; None where it could not be looked at."""
    served_from_host_bytes: int | None = None
    """As of :class:`Memory`, after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Facts that tell whether the step trained what was asked."""

    loss: float | None
    """Of the last step; None where it is not finite."""
    applied_steps: int
    """Optimizer steps that were applied by the end of the timed ones."""
    skipped_steps: int
    """Optimizer steps that the gradient scaler skipped."""
    batches: tuple[tuple[int, ...], ...]
    """The shapes of token ids that reached the input embedding in one optimizer step."""
    layer_runs: int
    """How often a layer's forward ran in one optimizer step, recomputation included."""
    not_training: tuple[str, ...]
    """Modules in evaluation mode: without dropout, without checkpointing."""
    adapters: int
    """Modules with an adapter of the asked rank, of those that must have one."""
    adapters_expected: int
    unexpected_adapters: tuple[str, ...]
    """Modules with an adapter that nobody asked for."""
    trainable_parameters: int
    total_parameters: int
    """Of the model without adapters; a quantised weight counts its original elements."""
    trainable_tensors: int
    without_gradient: tuple[str, ...]
    zero_gradient: tuple[str, ...]
    nonfinite_gradient: tuple[str, ...]
    unmoved: tuple[str, ...]
    """Trainable tensors that are bit for bit what they were before the timed steps, though their
    dtype could show it."""
    wrongly_trainable: tuple[str, ...]
    """Trainable tensors that should be frozen, and frozen ones that should be trained."""
    base_changed: tuple[str, ...]
    """Frozen tensors that changed since before the first step."""
    trainable_dtypes: Mapping[str, int]
    """Parameters by dtype, without those of ``modules_to_save``."""
    saved_dtypes: Mapping[str, int]
    """Those of ``modules_to_save``."""
    saved: tuple[str, ...]
    """Of the asked ``modules_to_save`` those that are trained."""
    base_dtypes: Mapping[str, int]
    """Parameters of the unquantised frozen base by dtype."""
    devices: Mapping[str, int]
    """Tensors by device type."""
    quantised_elements: int
    """Original elements of the base weights that are quantised, in the asked format."""
    matrix_elements: int
    """Elements of all base weights of two and more dimensions, without embeddings and head."""
    unquantised: Mapping[str, int]
    """Where a quantised base has other matrices, and their bytes, all layers together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """All of one case. ``memory`` and ``evidence`` are None where the step did not get through."""

    device: Device
    memory: Memory | None
    oom: OutOfMemory | None
    evidence: Evidence | None
    step_ns: tuple[int, ...]
    """Wall time of each timed optimizer step."""
    gpu: GpuTime | None
    """None where it could not be measured."""
    conditions: Conditions | None
    residency: Residency | None = None
    """None where it could not be looked at."""
    phases: Mapping[str, PhasePeak]
    """What followed the training steps: ``eval``, ``save``, ``merge``, as far as it was asked for
    and begun."""
    stages_ns: Mapping[str, int]
    """Where the case's time went: worker start (waiting for its imports), waiting (for a GPU that
    another process had), open (the device, in a worker's first case), build, warm-up, timed,
    residency, proof, profiled, ledger, phases, clean-up."""
    prediction: Prediction | None = None
    """Of an estimate, whose times and evidence are missing."""
    environment: Mapping[str, str]
    """What the figures depend on: device, driver, versions of the training libraries, allocator
    settings, ... Names are words, values are texts; what is not known has no entry."""

    @property
    def first_oom(self) -> OutOfMemory | None:
        """Of the training steps, or of what followed them."""
        return self.oom or next((one.oom for one in self.phases.values() if one.oom), None)

    @property
    def median_step_ns(self) -> int | None:
        """The middle of the timed steps; None where there is none."""
        return median(self.step_ns) if self.step_ns else None

    @property
    def median_gpu_ns(self) -> int | None:
        """The middle of the profiled steps; None where there is none."""
        return median(self.gpu.busy_ns) if self.gpu else None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Measurement:
        """The inverse of :meth:`to_json`, also after a pass through JSON text."""
        memory, oom, evidence = values["memory"], values["oom"], values["evidence"]
        gpu, conditions = values["gpu"], values["conditions"]
        prediction, residency = values["prediction"], values["residency"]
        return cls(
            device=_device(values["device"]),
            memory=Memory(**_tuples(memory)) if memory else None,
            oom=OutOfMemory(**oom) if oom else None,
            evidence=Evidence(**_tuples(evidence)) if evidence else None,
            step_ns=tuple(values["step_ns"]),
            gpu=GpuTime(**_tuples(gpu)) if gpu else None,
            conditions=Conditions(**conditions) if conditions else None,
            residency=Residency(**residency) if residency else None,
            phases={
                name: PhasePeak(**{**one, "oom": OutOfMemory(**one["oom"]) if one["oom"] else None})
                for name, one in values["phases"].items()
            },
            stages_ns=values["stages_ns"],
            prediction=Prediction(**_tuples(prediction)) if prediction else None,
            environment=values["environment"],
        )


def median(samples: Sequence[int]) -> int:
    """The middle sample, the lower one of two: a sample that was taken, not a mean."""
    return sorted(samples)[(len(samples) - 1) // 2]


def _device(values: Mapping[str, Any]) -> Device:
    change = values["held_change"]
    return Device(**{**values, "held_change": HeldChange(**change) if change else None})


def _tuples(values: Any) -> Any:
    """JSON's lists as the tuples they were, all the way down one object."""
    if isinstance(values, list | tuple):
        return tuple(_tuples(value) for value in values)
    if isinstance(values, dict):
        return {key: _tuples(value) for key, value in values.items()}
    return values
