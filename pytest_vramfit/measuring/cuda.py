"""The ``gpu`` engine: bytes from the CUDA caching allocator, the card's own figures from NVML."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel

from pytest_vramfit.measurement import Device, OutOfMemory, Residency, UnsupportedError
from pytest_vramfit.measuring import driver, host, nvml, profiler, residency, wddm
from pytest_vramfit.measuring.budget import check_own_memory, emulated
from pytest_vramfit.measuring.driver import Visible
from pytest_vramfit.measuring.oom import is_out_of_memory
from pytest_vramfit.measuring.others import Others
from pytest_vramfit.measuring.watch import Watch
from pytest_vramfit.spec import Schedule, TrainSpec
from pytest_vramfit.training.model import forget_tables
from pytest_vramfit.virtual_card.card import VirtualCard

_SETTLE_S = 0.5
"""A process that ends gives back its memory in less."""


def choose(number: int) -> Visible:
    """The GPU for that worker of several, from 0: one each, as far as there are enough.

    Of those that are visible and of the same model as the first: cases of one run are compared.
    Raises UnsupportedError where there is none to use.
    """
    if not torch.cuda.is_available():
        sees = "sees no CUDA device" if torch.version.cuda else "is a build without CUDA"
        raise UnsupportedError(f"no usable GPU: torch {torch.__version__} {sees}")
    visible = driver.visible()
    alike = [one for one in visible if one.name == visible[0].name]
    return alike[number % len(alike)]


class CudaBench:
    """One GPU, which this process must have a lease of. Raises UnsupportedError."""

    def __init__(self, gpu: Visible, *, after_others: bool) -> None:
        """``after_others``: whether another process may just have ended on it."""
        self.torch_device = torch.device("cuda", gpu.index)
        self._luid = gpu.luid
        try:
            # before this process has a context, so that all that is used is used by others
            self._gpu = nvml.Gpu(gpu.uuid)
            card = self._settled() if after_others else self._gpu.card()
        except nvml.NvmlUnavailableError as error:
            raise UnsupportedError(f"no usable GPU: {error}") from error
        self.device = self._whole = Device(
            name=card.name,
            total_bytes=card.total_bytes,
            reserved_bytes=card.reserved_bytes,
            held_bytes=card.used_bytes,
            driver=card.driver,
        )
        properties = torch.cuda.get_device_properties(self.torch_device)
        self._unified = bool(properties.is_integrated) or self._gpu.shares_host_memory()
        self._used_at_end: int | None = None
        self._process_bytes_before = 0
        self._windows_before: wddm.Usage | None = None
        self._capacity_bytes: int | None = None
        self._virtual_card: VirtualCard | None = None
        self._refused: tuple[int, int] | None = None
        self._retries_before = 0
        self._peak_reserved = 0
        torch.cuda.set_device(self.torch_device)
        torch.zeros(1, device=self.torch_device)
        self._others = Others(self._gpu, self._reserved_on_gpu_bytes)
        torch._C._cuda_attach_out_of_memory_observer(self._observe)  # type: ignore[attr-defined]

    def begin(self, capacity_bytes: int | None, card: Device | None = None) -> None:
        """Bound the allocator; its cache is empty already (a fresh or a clean worker)."""
        check_own_memory(self._whole, card, unified=self._unified)
        used_bytes = self._gpu.card().used_bytes
        if self._used_at_end is not None:  # what changed since then is others'
            held = max(0, self._whole.held_bytes + used_bytes - self._used_at_end)
            self._whole = replace(self._whole, held_bytes=held)
        windows = self._windows_before = self._windows()
        granted = None if windows is None else windows.budget_bytes
        self._whole = replace(self._whole, granted_bytes=granted)
        self.device = self._whole
        spills = card is not None and card.overflow == "spill"
        if card is not None and (spills or card.total_bytes != self.device.total_bytes):
            self.device = emulated(card, self._whole)
            room = max(0, self.device.usable_bytes - (used_bytes - self._whole.held_bytes))
            capacity_bytes = room if capacity_bytes is None else min(capacity_bytes, room)
        self._capacity_bytes = capacity_bytes
        self._virtual_card = self._overflowing(capacity_bytes) if spills else None
        self._process_bytes_before = host.process_bytes()
        self._others.begin()
        _, torch_total = torch.cuda.mem_get_info()
        bound = torch_total
        if capacity_bytes is not None and self._virtual_card is None:
            bound = min(bound, capacity_bytes)
        torch.cuda.set_per_process_memory_fraction(bound / torch_total)
        self._reset_peaks()
        self._refused = None
        self._retries_before = self._statistic("num_alloc_retries")

    def check(self, spec: TrainSpec, schedule: Schedule, outline: PreTrainedModel) -> None:
        """The device itself says what it cannot do."""
        self._others.managed = spec.paged

    def settle(self) -> None:
        """Return the allocator's cache to the device."""
        gc.collect()
        torch.cuda.empty_cache()
        self._reset_peaks()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize()

    def reset_peak(self) -> None:
        """Start the allocated peak anew. PyTorch resets both, so the reserved one is kept here."""
        self._peak_reserved = self.peak_reserved_bytes()
        torch.cuda.reset_peak_memory_stats()

    def peak_allocated_bytes(self) -> int:
        """As `torch.cuda.max_memory_allocated`."""
        return torch.cuda.max_memory_allocated()

    def allocated_bytes(self) -> int:
        """As `torch.cuda.memory_allocated`."""
        return torch.cuda.memory_allocated()

    def reserved_bytes(self) -> int:
        """As `torch.cuda.memory_reserved`."""
        return torch.cuda.memory_reserved()

    def peak_reserved_bytes(self) -> int:
        """The most bytes reserved since :meth:`settle`."""
        return max(self._peak_reserved, torch.cuda.max_memory_reserved())

    def outside_allocator_bytes(self) -> int:
        """Used on the card, less what others held and what the allocator holds."""
        self._look("in the timed steps", loading=False)
        held = self._whole.held_bytes + self._others.change_now_bytes
        return self._gpu.card().used_bytes - held - self._reserved_on_gpu_bytes()

    def host_growth_bytes(self) -> int:
        """By what the operating system has in memory for this process."""
        return host.process_bytes() - self._process_bytes_before

    def non_local_growth_bytes(self) -> int | None:
        """By Windows' account of this process."""
        before, now = self._windows_before, self._windows()
        if before is None or now is None:
            return None
        return now.non_local_bytes - before.non_local_bytes

    def local_bytes(self) -> int | None:
        """By Windows' account of this process."""
        now = self._windows()
        return None if now is None else now.local_bytes

    def served_from_host_bytes(self) -> int | None:
        """By the virtual card's own account."""
        return None if self._virtual_card is None else self._virtual_card.host_bytes

    def residency(self) -> Residency | None:
        """None also where looking did not find room."""
        try:
            return residency.look(self.torch_device)
        except torch.OutOfMemoryError:
            return None

    def allocator_retries(self) -> int:
        """Failed cudaMallocs that were followed by a flush of the cache, in this case."""
        return self._statistic("num_alloc_retries") - self._retries_before

    def out_of_memory(self, error: Exception, phase: str, step: int) -> OutOfMemory | None:
        """As :func:`is_out_of_memory` says, with what the allocator saw when it gave up."""
        if not is_out_of_memory(error):
            return None
        if self._refused is None:  # not the allocator's, so nobody has looked
            self._look("before memory ran out", loading=True)
        requested, free = self._refused or (None, None)
        return OutOfMemory(
            phase=phase,
            step=step,
            requested_bytes=requested,
            free_bytes=free,
            allocated_bytes=torch.cuda.memory_allocated(),
            reserved_bytes=torch.cuda.memory_reserved(),
            says=str(error).strip().splitlines()[0],
        )

    def watch(self) -> Watch:
        """The GPU's counters and the machine's processors."""
        self._look("before the timed steps", loading=True)
        return Watch(self._gpu)

    def gpu_work(self, run: Callable[[], object]) -> tuple[int, int] | None:
        """None also where the profiler's own buffers did not find room."""
        try:
            return profiler.gpu_work(run)
        except torch.OutOfMemoryError:
            return None

    def environment(self) -> dict[str, str]:
        """The GPU as NVML tells of it, CUDA, and the allocator's settings."""
        found = {"device": self.device.baseline_name, **self._gpu.environment()}
        if torch.version.cuda:
            found["cuda"] = torch.version.cuda
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            if name in os.environ:
                found["allocator settings"] = os.environ[name]
        return found

    def end(self) -> bool:
        """Free everything, cuBLAS workspaces and bitsandbytes' tables included; clean when no
        segment is left, so that the next case finds the allocator as in a fresh process.
        """
        forget_tables()
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        self._used_at_end = self._gpu.card().used_bytes
        return torch.cuda.memory_reserved() == 0

    def _windows(self) -> wddm.Usage | None:
        return wddm.usage(self._luid)

    def _reserved_on_gpu_bytes(self) -> int:
        """What the allocator holds, less what an emulated card has elsewhere."""
        return torch.cuda.memory_reserved() - (self.served_from_host_bytes() or 0)

    def _reset_peaks(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        self._peak_reserved = 0

    def _observe(self, device: int, requested: int, allocated: int, free: int) -> None:
        if self._capacity_bytes is not None:
            free = min(free, max(0, self._capacity_bytes - torch.cuda.memory_reserved()))
        self._refused = (requested, free)
        self._look("before memory ran out", loading=True)

    def _look(self, when: str, *, loading: bool) -> None:
        self._others.look(when, loading=loading)
        if self.device.emulated_on is None:  # of a larger GPU others may take the rest
            self.device = replace(self.device, held_change=self._others.change)

    @staticmethod
    def _overflowing(budget_bytes: int | None) -> VirtualCard:
        """What serves this process's allocations, told what it may have."""
        assert budget_bytes is not None
        try:
            card = VirtualCard()
        except OSError as error:
            raise UnsupportedError(f'overflow="spill": {error}') from error
        card.allow(budget_bytes)
        before = card.device_bytes + card.host_bytes
        asked = torch.empty(1, device="cuda")
        if card.device_bytes + card.host_bytes == before:
            raise UnsupportedError(
                'overflow="spill": PyTorch does not ask CUDA\'s runtime for its memory here, so '
                "that it cannot be served from elsewhere: it has the runtime linked in, or "
                "PYTORCH_ALLOC_CONF asks for expandable segments"
            )
        del asked
        torch.cuda.empty_cache()
        return card

    def _settled(self) -> nvml.Card:
        """What is used when no more is given back: a process's memory is freed after its locks."""
        card = self._gpu.card()
        while True:
            time.sleep(_SETTLE_S)
            before, card = card, self._gpu.card()
            if card.used_bytes >= before.used_bytes:
                return card

    def _statistic(self, name: str) -> int:
        statistics: dict[str, Any] = torch.cuda.memory_stats()
        return int(statistics[name])
