"""GPUs and MIG slices by CUDA's UUID, with an NVML that has what it is told."""

# ruff: noqa: N802, N815 (NVML's names)

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
import pytest

from pytest_vramfit.measuring.nvml import Card, Gpu, NvmlUnavailableError, cards

T = TypeVar("T")
GPU_UUID, MIG_UUID = "01234567", "89abcdef"


class NVMLError(Exception):
    pass


class NotFoundError(NVMLError):
    pass


class NotSupportedError(NVMLError):
    pass


class InvalidArgumentError(NVMLError):
    pass


class Nvml:
    """One GPU of 100 bytes and one slice of it of 40, of which processes use 30 and 10."""

    NVMLError = NVMLError
    NVMLError_NotFound = NotFoundError
    NVMLError_NotSupported = NotSupportedError
    NVMLError_InvalidArgument = InvalidArgumentError
    NVML_CLOCK_SM = NVML_TEMPERATURE_GPU = NVML_SUCCESS = 0
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 197, 198
    nvmlMemory_v2 = 2

    def __init__(self, *processes: SimpleNamespace) -> None:
        self._processes = list(processes)
        self.field_values = {197: 3_000, 198: 4_000}

    def nvmlInit(self) -> None: ...

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        known = {f"GPU-{GPU_UUID}": "gpu", f"MIG-{MIG_UUID}": "slice"}
        if uuid not in known:
            raise NotFoundError("Not Found")
        return known[uuid]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        if handle != "slice":
            raise InvalidArgumentError
        return "gpu"

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> Any:
        if handle == "gpu":
            assert version is not None
            return SimpleNamespace(total=100, reserved=5, used=30)
        if version is not None:
            raise NotSupportedError
        return SimpleNamespace(total=40, used=10)

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    nvmlDeviceGetName = nvmlDeviceGetUUID

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self._only_gpu(handle, 1_000)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._only_gpu(handle, 200)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        return self._only_gpu(handle, 700_000)

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return self._only_gpu(handle, 1_980)

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return self._only_gpu(handle, 40)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        return self._only_gpu(handle, SimpleNamespace(gpu=97, memory=48))

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[Any]:
        """1 is NVML's code for what this GPU does not count."""
        known = self.field_values
        return [
            SimpleNamespace(
                nvmlReturn=0 if one in known else 1,
                value=SimpleNamespace(ullVal=known.get(one, 0)),
            )
            for one in self._only_gpu(handle, fields)
        ]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return self._processes

    @staticmethod
    def _only_gpu(handle: str, value: T) -> T:
        if handle != "gpu":
            raise NotSupportedError
        return value


def gpu(uuid: str, monkeypatch: pytest.MonkeyPatch, *processes: SimpleNamespace) -> Gpu:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(*processes))  # type: ignore[arg-type]
    return Gpu(uuid)


def test_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu(GPU_UUID, monkeypatch).card() == Card(
        uuid="gpu", name="gpu", driver="580.1", total_bytes=100, reserved_bytes=5, used_bytes=30
    )


def test_memory_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not tell the driver's reserve, that is in what is used."""
    assert gpu(MIG_UUID, monkeypatch).card() == Card(
        uuid="slice", name="slice", driver="580.1", total_bytes=40, reserved_bytes=0, used_bytes=10
    )


def test_a_slice_has_the_clocks_of_its_gpu_but_not_its_energy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others may work on the rest of it: its power limit is a bound, its counter would be none."""
    whole, part = gpu(GPU_UUID, monkeypatch), gpu(MIG_UUID, monkeypatch)
    assert whole.counters().energy_mj == 1_000
    seen = part.counters()
    assert (seen.energy_mj, seen.power_mw) == (None, None)
    assert (seen.sm_clock_mhz, seen.temperature_c) == (1_980, 40)
    assert part.power_limit_mw() == whole.power_limit_mw() == 700_000


def test_bytes_over_the_bus_and_how_busy_the_gpu_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = gpu(GPU_UUID, monkeypatch).counters()
    assert seen.pcie_bytes == {"sent": 3_000, "received": 4_000}
    assert (seen.gpu_busy_percent, seen.memory_busy_percent) == (97, 48)


def test_a_slice_does_not_tell_how_busy_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = gpu(MIG_UUID, monkeypatch).counters()
    assert (seen.gpu_busy_percent, seen.memory_busy_percent) == (None, None)
    assert seen.pcie_bytes is None


@pytest.mark.parametrize("one_way", [197, 198])
def test_bytes_over_the_bus_are_known_both_ways_or_not_at_all(
    one_way: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gpu(GPU_UUID, monkeypatch)
    del sys.modules["pynvml"].field_values[one_way]
    assert whole.counters().pcie_bytes is None


def test_bytes_over_the_bus_of_an_older_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no name for the counters."""
    for name in ("TX", "RX"):
        monkeypatch.delattr(Nvml, f"NVML_FI_DEV_PCIE_COUNT_{name}_BYTES")
    assert gpu(GPU_UUID, monkeypatch).counters().pcie_bytes is None


def test_gpu_that_nvml_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NvmlUnavailableError, match="NVML: Not Found"):
        gpu("another", monkeypatch)


class Machine(Nvml):
    """As many GPUs as are told, of which True ones answer."""

    def __init__(self, *answer: bool) -> None:
        super().__init__()
        self._answer = answer

    def nvmlDeviceGetCount(self) -> int:
        return len(self._answer)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if not self._answer[index]:
            raise NVMLError("GPU is lost")
        return "gpu"

    def nvmlShutdown(self) -> None: ...


@pytest.mark.parametrize(("answer", "count"), [((), 0), ((True, True), 2), ((False, True), 1)])
def test_gpus_that_answer_are_listed(
    answer: tuple[bool, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is lost takes none of the others with it."""
    monkeypatch.setitem(sys.modules, "pynvml", Machine(*answer))  # type: ignore[arg-type]
    assert [one.name for one in cards()] == ["gpu"] * count


def test_gpus_of_which_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Machine(False, False))  # type: ignore[arg-type]
    with pytest.raises(NvmlUnavailableError, match="NVML: GPU is lost"):
        cards()


def process(pid: int, used_bytes: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used_bytes)


@pytest.mark.parametrize(
    ("processes", "own_bytes"),
    [
        ([process(1, 7), process(os.getpid(), 20)], 20),
        ([process(os.getpid(), None)], None),  # WDDM
        ([process(1, 7)], None),  # another namespace of processes
        ([], None),
    ],
)
def test_own_memory_where_processes_are_told_apart(
    processes: list[SimpleNamespace], own_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpu(GPU_UUID, monkeypatch, *processes).own_bytes() == own_bytes


def test_a_gpu_that_tells_of_no_memory_shares_the_host_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object, **__: object) -> None:
        raise NotSupportedError("Not Supported")

    one = gpu(GPU_UUID, monkeypatch)
    monkeypatch.setattr(Nvml, "nvmlDeviceGetMemoryInfo", unsupported)
    host = SimpleNamespace(total=1_000, available=600)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: host)
    card = one.card()
    assert (card.total_bytes, card.reserved_bytes, card.used_bytes) == (1_000, 0, 400)
    assert one.shares_host_memory()


@pytest.mark.parametrize(("mode", "unified"), [(0, False), (1, False), (2, True)])
def test_only_common_page_tables_make_memory_common(
    mode: int, unified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that the kernel mirrors the host's tables (HMM, 1), which any recent GPU may have."""
    monkeypatch.setattr(Nvml, "nvmlDeviceGetAddressingMode", lambda *_: mode, raising=False)
    one = gpu(GPU_UUID, monkeypatch)
    assert (one.card().total_bytes, one.shares_host_memory()) == (100, unified)
