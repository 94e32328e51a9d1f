"""NVML readings: what a card physically has, whoever uses it, and what it counts while it works."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil  # a dependency of PEFT

_ATS = 2
"""NVML_DEVICE_ADDRESSING_MODE_ATS: GPU and host go through the same page tables."""

T = TypeVar("T")
Name = TypeVar("Name", bound=str)
_DRIVER_MODELS = {0: "WDDM", 1: "TCC", 2: "MCDM"}
"""The values of NVML's nvmlDriverModel_t."""


class NvmlUnavailableError(Exception):
    """NVML cannot be read here; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One GPU as NVML reports it."""

    uuid: str
    name: str
    driver: str
    total_bytes: int
    reserved_bytes: int
    """What the driver keeps for itself; 0 where it counts that as used (memory v1)."""
    used_bytes: int
    """What processes hold."""


def cards() -> list[Card]:
    """Every GPU of the machine that answers, in NVML's order.

    Raises NvmlUnavailableError, also where there are some and none answers.
    """
    with session() as nvml:
        found, refusal = [], None
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                found.append(_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
            except nvml.NVMLError as error:
                refusal = error
        if refusal is not None and not found:
            raise refusal
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """What a GPU counts, at one moment. None where it does not count that."""

    energy_mj: int | None
    """Millijoules since the driver was loaded."""
    power_mw: int | None
    """The draw, as NVML averages it."""
    sm_clock_mhz: int | None
    temperature_c: int | None
    throttled_ns: Mapping[str, int]
    """Time for which the clocks were held down since the driver was loaded, by reason."""
    pcie_bytes: Mapping[str, int] | None
    """Over the bus, ``sent`` and ``received``, each counted round and round in 32 bits."""
    gpu_busy_percent: int | None
    """Of NVML's last period, up to a second: the time with a kernel."""
    memory_busy_percent: int | None
    """The time in which memory was read or written."""


_THROTTLES = {
    "power cap": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP",
    "sync boost": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST",
    "software thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hardware thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "power brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}


_PCIE = {
    "sent": "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
    "received": "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
}


class Gpu:
    """One GPU or MIG slice of one, kept open for readings that are taken often.

    ``uuid`` is CUDA's, which does not say which of both it is. Raises NvmlUnavailableError.
    """

    def __init__(self, uuid: str) -> None:
        nvml = self._nvml = _opened()
        with _unavailable(nvml):
            try:
                self._handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
                self._handle = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
        handle = self._handle
        self._whole = (
            self._try(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) or handle
        )
        """What has the clocks, where the slice has its own memory only."""

    def card(self) -> Card:
        """What it has and holds now. Raises NvmlUnavailableError."""
        with _unavailable(self._nvml):
            return _card(self._nvml, self._handle)

    def shares_host_memory(self) -> bool:
        """From what NVML's documents say: no such machine was at hand."""
        nvml, handle = self._nvml, self._handle
        mode = getattr(nvml, "nvmlDeviceGetAddressingMode", None)  # not in old bindings
        if mode is not None and self._try(lambda: mode(handle)) == _ATS:
            return True
        try:
            _told_memory(nvml, handle)
        except nvml.NVMLError_NotSupported:
            return True
        return False

    def own_bytes(self) -> int | None:
        """What this process holds of it; None where the driver does not tell processes apart, as
        under WDDM and in some virtual machines and containers.
        """
        listed = self._try(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        own = (one.usedGpuMemory for one in listed or () if one.pid == os.getpid())
        return next(own, None)

    def counters(self) -> Counters:
        """Read all counters now; takes about a millisecond."""
        nvml, handle, whole = self._nvml, self._handle, self._whole
        pcie = fields(nvml, _PCIE, handle)  # not of the whole of a slice, as energy
        busy = self._try(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return Counters(
            # not of the whole of a slice: others may work on the rest
            energy_mj=self._try(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            power_mw=self._try(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            sm_clock_mhz=self._try(lambda: nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM)),
            temperature_c=self._try(
                lambda: nvml.nvmlDeviceGetTemperature(whole, nvml.NVML_TEMPERATURE_GPU)
            ),
            throttled_ns=fields(nvml, _THROTTLES, whole),
            pcie_bytes=pcie if len(pcie) == len(_PCIE) else None,
            gpu_busy_percent=busy.gpu if busy else None,
            memory_busy_percent=busy.memory if busy else None,
        )

    def power_limit_mw(self) -> int | None:
        """The limit that is enforced; None where there is none to read."""
        return self._try(lambda: self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._whole))

    def environment(self) -> dict[str, str]:
        """What figures of this GPU depend on, as far as NVML tells."""
        nvml, whole = self._nvml, self._whole
        limit = self.power_limit_mw()
        link = self._try(
            lambda: (
                f"gen {nvml.nvmlDeviceGetMaxPcieLinkGeneration(whole)} "
                f"x{nvml.nvmlDeviceGetMaxPcieLinkWidth(whole)}"
            )
        )
        ecc = self._try(lambda: nvml.nvmlDeviceGetEccMode(whole)[0])
        model = self._try(lambda: nvml.nvmlDeviceGetCurrentDriverModel(whole))
        cuda = self._try(nvml.nvmlSystemGetCudaDriverVersion)
        uuid = self._try(lambda: nvml.nvmlDeviceGetUUID(self._handle))
        found = {
            "driver": self._try(nvml.nvmlSystemGetDriverVersion),
            "driver cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "driver model": None if model is None else _DRIVER_MODELS.get(model, str(model)),
            "power limit": None if limit is None else f"{limit // 1000} W",
            "ecc": None if ecc is None else {0: "off", 1: "on"}.get(ecc, str(ecc)),
            "pcie": link,
            # tells GPUs apart without naming them
            "gpu": None if uuid is None else hashlib.sha256(uuid.encode()).hexdigest()[:12],
        }
        return {name: value for name, value in found.items() if value is not None}

    def _try(self, read: Callable[[], T]) -> T | None:
        return tried(self._nvml, read)


def tried(nvml: Any, read: Callable[[], T]) -> T | None:
    """A reading; None where NVML does not have it."""
    try:
        return read()
    except nvml.NVMLError:
        return None


def fields(nvml: Any, wanted: Mapping[Name, str], handle: Any) -> dict[Name, int]:
    """Of the fields, under their names here, those that this driver has."""
    ids = {name: getattr(nvml, field, None) for name, field in wanted.items()}
    known = {name: one for name, one in ids.items() if one is not None}
    read = tried(nvml, lambda: nvml.nvmlDeviceGetFieldValues(handle, list(known.values())))
    return {
        name: int(value.value.ullVal)
        for name, value in zip(known, read or (), strict=False)
        if value.nvmlReturn == nvml.NVML_SUCCESS
    }


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """The library, from its initialisation to its shutdown. Raises NvmlUnavailableError."""
    nvml = _opened()
    try:
        with _unavailable(nvml):
            yield nvml
    finally:
        nvml.nvmlShutdown()


@contextlib.contextmanager
def _unavailable(nvml: Any) -> Iterator[None]:
    """Make NVML's errors NvmlUnavailableError."""
    try:
        yield
    except nvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML: {error}") from error


def _opened() -> Any:
    """The library, initialised once more."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the deprecated package pynvml warns of itself
            import pynvml
    except ImportError as error:
        raise NvmlUnavailableError("the package nvidia-ml-py is not installed") from error
    if not hasattr(pynvml, "nvmlMemory_v2"):
        raise NvmlUnavailableError(
            "the module pynvml is not nvidia-ml-py's; uninstall the deprecated package pynvml, "
            "then install nvidia-ml-py again"
        )
    with _unavailable(pynvml):
        pynvml.nvmlInit()
    return pynvml


def _card(nvml: Any, handle: Any) -> Card:
    total, reserved, used = _memory(nvml, handle)
    return Card(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        driver=nvml.nvmlSystemGetDriverVersion(),
        total_bytes=total,
        reserved_bytes=reserved,
        used_bytes=used,
    )


def _memory(nvml: Any, handle: Any) -> tuple[int, int, int]:
    """The bytes in all, reserved and used: the host's where the GPU tells of none itself."""
    try:
        return _told_memory(nvml, handle)
    except nvml.NVMLError_NotSupported:
        host = psutil.virtual_memory()
        return host.total, 0, host.total - host.available


def _told_memory(nvml: Any, handle: Any) -> tuple[int, int, int]:
    detailed = tried(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
    if detailed is not None:
        return detailed.total, detailed.reserved, detailed.used
    plain = nvml.nvmlDeviceGetMemoryInfo(handle)  # of MIG slices, and by old drivers
    return plain.total, 0, plain.used
