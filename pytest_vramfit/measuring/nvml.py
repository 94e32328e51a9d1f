"""NVML readings: what a card physically has, whoever uses it, and what it counts while it works."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


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
    """What the driver keeps for itself (memory v2)."""
    used_bytes: int
    """What processes hold, without the driver's reserve (memory v2)."""


def cards() -> list[Card]:
    """Every GPU of the machine, in NVML's order. Raises NvmlUnavailableError."""
    with _session() as nvml:
        count = nvml.nvmlDeviceGetCount()
        return [_card(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


def card(uuid: str) -> Card:
    """The GPU with this UUID (``GPU-…``). Raises NvmlUnavailableError."""
    with _session() as nvml:
        return _card(nvml, nvml.nvmlDeviceGetHandleByUUID(uuid))


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


_THROTTLES = {
    "power cap": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP",
    "sync boost": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST",
    "software thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hardware thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "power brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}


class Gpu:
    """One GPU, kept open for readings that are taken often. Raises NvmlUnavailableError."""

    def __init__(self, uuid: str) -> None:
        self._nvml = _opened()
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            raise NvmlUnavailableError(f"NVML: {error}") from error

    def counters(self) -> Counters:
        """Read all counters now; takes about a millisecond."""
        nvml, handle = self._nvml, self._handle
        return Counters(
            energy_mj=self._try(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            power_mw=self._try(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            sm_clock_mhz=self._try(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            temperature_c=self._try(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            throttled_ns=self._throttled(),
        )

    def power_limit_mw(self) -> int | None:
        """The limit that is enforced; None where there is none to read."""
        return self._try(lambda: self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle))

    def environment(self) -> dict[str, str]:
        """What figures of this GPU depend on, as far as NVML tells."""
        nvml, handle = self._nvml, self._handle
        limit = self.power_limit_mw()
        link = self._try(
            lambda: (
                f"gen {nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)} "
                f"x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"
            )
        )
        ecc = self._try(lambda: nvml.nvmlDeviceGetEccMode(handle)[0])
        model = self._try(lambda: nvml.nvmlDeviceGetCurrentDriverModel(handle))
        cuda = self._try(nvml.nvmlSystemGetCudaDriverVersion)
        uuid = self._try(lambda: nvml.nvmlDeviceGetUUID(handle))
        found = {
            "driver": self._try(nvml.nvmlSystemGetDriverVersion),
            "driver cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "driver model": None if model is None else {0: "WDDM", 1: "TCC"}.get(model, str(model)),
            "power limit": None if limit is None else f"{limit // 1000} W",
            "ecc": None if ecc is None else {0: "off", 1: "on"}.get(ecc, str(ecc)),
            "pcie": link,
            # tells GPUs apart without naming them
            "gpu": None if uuid is None else hashlib.sha256(uuid.encode()).hexdigest()[:12],
        }
        return {name: value for name, value in found.items() if value is not None}

    def _throttled(self) -> dict[str, int]:
        nvml = self._nvml
        ids = {name: getattr(nvml, field, None) for name, field in _THROTTLES.items()}
        known = {name: one for name, one in ids.items() if one is not None}
        read = self._try(lambda: nvml.nvmlDeviceGetFieldValues(self._handle, list(known.values())))
        return {
            name: int(value.value.ullVal)
            for name, value in zip(known, read or (), strict=False)
            if value.nvmlReturn == nvml.NVML_SUCCESS
        }

    def _try(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except self._nvml.NVMLError:
            return None


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    nvml = _opened()
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML: {error}") from error
    finally:
        nvml.nvmlShutdown()


def _opened() -> Any:
    """The library, initialised once more."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailableError("the package nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML: {error}") from error
    return pynvml


def _card(nvml: Any, handle: Any) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return Card(
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        driver=nvml.nvmlSystemGetDriverVersion(),
        total_bytes=memory.total,
        reserved_bytes=memory.reserved,
        used_bytes=memory.used,
    )
