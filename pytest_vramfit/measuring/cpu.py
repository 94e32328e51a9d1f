"""The ``cpu`` engine: the same step on the CPU, bytes from the recorder.

For trying the plugin and for its own tests. Times include the recorder's own work.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from bitsandbytes.nn import Int8Params, Params4bit
from transformers import PreTrainedConfig, PreTrainedModel

from pytest_vramfit.measurement import Device, OutOfMemory, UnsupportedError
from pytest_vramfit.measuring import host
from pytest_vramfit.measuring.watch import Watch
from pytest_vramfit.recorder import Recorder
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.training.model import DTYPES, forget_tables

TEN_MINUTES = 600
MOST_SECONDS = 120
"""A case that would take longer is not for the CPU."""
_SHARE_OF_AVAILABLE = 0.9
_PROBE_SIZE = 512
_SAMPLE_WEIGHTS = 2**22
_QUANTISED_BYTES = {"nf4": 0.52, "fp4": 0.52, "int8": 1.0}
"""A parameter, at the least."""
_ELSEWHERE = "run it with --gpu, or predict it with --vramfit=estimate"
_GPU_ONLY: dict[Callable[[TrainSpec], bool], str] = {
    lambda spec: spec.paged: "paged optimizer states need a GPU",
    lambda spec: spec.liger: "Liger's kernels need a GPU",
    lambda spec: spec.compile: "compiled code hides its memory from the CPU's recorder",
    lambda spec: spec.attention == "flash_attention_2": "flash attention needs a GPU",
    # on a CPU PEFT loses the scales of the base in its first step
    lambda spec: spec.dora and spec.quant == "int8": "PEFT's DoRA on an int8 base needs a GPU",
}
"""What the CPU cannot run, or not show."""


class CpuBench:
    """The CPU and the machine's memory."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.device = Device(
            name=host.processor(),
            total_bytes=host.memory_bytes(),
            reserved_bytes=0,
            held_bytes=0,
        )
        self._recorder = Recorder("cpu")

    def begin(self, capacity_bytes: int | None, card: Device | None = None) -> None:
        """Start a recorder; the step counts nothing before it."""
        self._ceiling = int(host.available_bytes() * _SHARE_OF_AVAILABLE)
        self._recorder = Recorder("cpu", ceiling_bytes=self._ceiling)
        self._recorder.__enter__()  # type: ignore[no-untyped-call]

    def check(self, spec: TrainSpec, schedule: Schedule, outline: PreTrainedModel) -> None:
        """Refuse what needs more memory than is free or more than two minutes.

        Memory at the least: the weights, and for ``full`` gradients and Adam's two states. Time:
        making the weights, then for each token 6 floating-point operations a parameter and 12 a
        layer, hidden element and other token (a third more to recompute), each at the rate of a
        small sample of it.
        """
        for asked, reason in _GPU_ONLY.items():
            if asked(spec):
                raise UnsupportedError(f"{reason}; run it with --gpu")
        parameters = sum(one.numel() for one in outline.parameters())
        attended = _attending_elements(outline.config) * spec.seq
        weight = _QUANTISED_BYTES[spec.quant] if spec.quant else DTYPES[spec.dtype].itemsize
        states = 1 if spec.optimizer == "sgd" else 3
        trained = states * DTYPES[spec.dtype].itemsize if spec.method == "full" else 0
        need = int(parameters * (weight + trained))
        if need > self._ceiling:
            raise UnsupportedError(
                f"on the CPU it needs at least {need / 2**30:.1f} GiB, and this machine has "
                f"{self._ceiling / 2**30:.1f} GiB to give; {_ELSEWHERE}"
            )
        recomputed = 4 / 3 if spec.checkpointing else 1
        operations = recomputed * (6 * parameters + 12 * attended) * spec.tokens
        steps = schedule.warmup + schedule.steps
        seconds = parameters / _weights_per_second(spec) if parameters > _SAMPLE_WEIGHTS else 0.0
        seconds += operations * steps / _operations_per_second(DTYPES[spec.precision])
        self._recorder.reset_peak()  # the samples are not the case's
        if seconds > MOST_SECONDS:
            minutes = f"{seconds / 60:.1f}" if seconds < TEN_MINUTES else f"{seconds / 60:,.0f}"
            raise UnsupportedError(
                f"on the CPU it would take about {minutes} minutes, and {MOST_SECONDS // 60} are "
                f"the limit; {_ELSEWHERE}"
            )

    def settle(self) -> None:
        """There is no cache to empty."""
        gc.collect()

    def synchronize(self) -> None:
        """The CPU has always done what was asked."""

    def reset_peak(self) -> None:
        """Start the recorder's peak anew."""
        self._recorder.reset_peak()

    def peak_allocated_bytes(self) -> int:
        """The recorder's peak."""
        return self._recorder.peak_bytes

    def allocated_bytes(self) -> int:
        """The storages alive now."""
        return self._recorder.live_bytes

    def reserved_bytes(self) -> None:
        """None: no allocator holds memory back."""

    def peak_reserved_bytes(self) -> None:
        """None, as above."""

    def outside_allocator_bytes(self) -> None:
        """None, as above."""

    def host_growth_bytes(self) -> None:
        """None: the case is in it."""

    def non_local_growth_bytes(self) -> None:
        """There is no GPU."""

    def local_bytes(self) -> None:
        """There is no GPU."""

    def served_from_host_bytes(self) -> None:
        """None, as above."""

    def residency(self) -> None:
        """None, as above."""

    def allocator_retries(self) -> None:
        """None, as above."""

    def out_of_memory(self, error: Exception, phase: str, step: int) -> OutOfMemory | None:
        """None: more than the card shows in the peak, more than the machine is unsupported."""

    def watch(self) -> Watch:
        """The machine's processors only."""
        return Watch(None)

    def gpu_work(self, run: Callable[[], object]) -> None:
        """None: there is no GPU to profile."""

    def environment(self) -> dict[str, str]:
        """The processor and how many threads compute."""
        return {"device": self.device.name, "threads": str(torch.get_num_threads())}

    def end(self) -> bool:
        """Leave the recorder; whether every storage is gone."""
        forget_tables()
        self._recorder.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        gc.collect()
        return self._recorder.live_bytes == 0


def _attending_elements(config: PreTrainedConfig) -> int:
    """The hidden elements of all layers; of a model that has none itself those of its parts."""
    text: Any = config.get_text_config()
    has_layers = hasattr(text, "num_hidden_layers")
    parts = [text] if has_layers else [getattr(text, one) for one in text.sub_configs]
    return sum(one.num_hidden_layers * one.hidden_size for one in parts)


def _weights_per_second(spec: TrainSpec) -> float:
    """The rate at which weights are drawn and, for ``qlora``, quantised."""
    begin = time.perf_counter()
    weight = torch.empty(_SAMPLE_WEIGHTS, dtype=DTYPES[spec.dtype]).normal_().view(-1, 1024)
    if spec.method == "qlora":
        kind = Int8Params if spec.quant == "int8" else Params4bit
        kind(weight, requires_grad=False).to("cpu")
    return weight.numel() / (time.perf_counter() - begin)


def _operations_per_second(dtype: torch.dtype) -> float:
    """The rate of a small matrix product in ``dtype``, the best of three."""
    one = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype)
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        one @ one
        best = min(best, time.perf_counter() - begin)
    return 2 * _PROBE_SIZE**3 / best
