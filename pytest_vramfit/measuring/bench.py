"""What the worker needs of a device: where the case runs and where its bytes are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from transformers import PreTrainedModel

from pytest_vramfit.measurement import Device, OutOfMemory, Residency
from pytest_vramfit.measuring.watch import Watch
from pytest_vramfit.spec import Schedule, TrainSpec


class Bench(Protocol):
    """A device that cases run on, one at a time. Also the step's meter."""

    torch_device: torch.device
    device: Device

    def begin(self, capacity_bytes: int | None, card: Device | None = None) -> None:
        """Get ready for a case that may take ``capacity_bytes`` (None: all there is), on a device
        that passes for ``card``. Raises UnsupportedError where it cannot.
        """

    def check(self, spec: TrainSpec, schedule: Schedule, outline: PreTrainedModel) -> None:
        """Raise UnsupportedError where the case is too large to be tried here."""

    def settle(self) -> None:
        """Give back what building left in caches, so that loading leaves no mark on the step."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""

    def reset_peak(self) -> None:
        """Start the peaks anew."""

    def peak_allocated_bytes(self) -> int:
        """The most bytes allocated since the last reset."""

    def allocated_bytes(self) -> int:
        """The bytes allocated now."""

    def reserved_bytes(self) -> int | None:
        """The bytes that the allocator holds from the device now; None without an allocator."""

    def peak_reserved_bytes(self) -> int | None:
        """The most bytes reserved since :meth:`settle`; None without an allocator."""

    def outside_allocator_bytes(self) -> int | None:
        """The bytes on the device beside the allocator's; None where it has no such thing."""

    def host_growth_bytes(self) -> int | None:
        """How much more host memory this process has than when the case began; None where that is
        where the case itself runs.
        """

    def non_local_growth_bytes(self) -> int | None:
        """How much more of this process's GPU memory Windows has in host memory than when the case
        began; None where Windows does not say.
        """

    def local_bytes(self) -> int | None:
        """How much of it Windows has on the card; None where Windows does not say."""

    def served_from_host_bytes(self) -> int | None:
        """What an emulated card has in host memory now; None where none is emulated so."""

    def residency(self) -> Residency | None:
        """How much of the allocator's memory is not on the device, if that can be told."""

    def allocator_retries(self) -> int | None:
        """How often the allocator had to flush its cache in this case."""

    def out_of_memory(self, error: Exception, phase: str, step: int) -> OutOfMemory | None:
        """The measurement that ``error`` is, or None if it is another kind of error."""

    def watch(self) -> Watch:
        """Begin to watch what the timed steps run under."""

    def gpu_work(self, run: Callable[[], object]) -> tuple[int, int] | None:
        """Profile ``run``: how many ns the device worked, on how many kernels and copies."""

    def environment(self) -> dict[str, str]:
        """What figures on this device depend on, beside the libraries."""

    def end(self) -> bool:
        """Free what the case left; whether the device is as it was before the case."""
