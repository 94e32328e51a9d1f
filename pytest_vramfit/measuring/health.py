"""What is wrong with a GPU before anything runs on it, as NVML tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pytest_vramfit.measuring import nvml as readings

Fault = Literal[
    "lost", "reset", "reboot", "drain", "pages pending", "rows pending", "rows failed", "ecc", "hot"
]

_FIELDS: dict[Fault, str] = {
    "pages pending": "NVML_FI_DEV_RETIRED_PENDING",
    "rows pending": "NVML_FI_DEV_REMAPPED_PENDING",
    "rows failed": "NVML_FI_DEV_REMAPPED_FAILURE",
    "ecc": "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
}
"""Counts and flags, which say that nothing is wrong by 0."""
_RECOVERY: Mapping[int, Fault] = {1: "reset", 2: "reboot", 3: "drain", 4: "reset"}
"""The values of NVML's nvmlDeviceGpuRecoveryAction_t, without that nothing is to be done."""
_HEAT = 0x20 | 0x40
"""Of NVML's reasons to hold the clocks down: software's and hardware's thermal slowdown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """What is wrong with one GPU."""

    number: int
    """In NVML's order."""
    name: str | None
    """None where it does not answer."""
    faults: tuple[Fault, ...]


def ailing() -> list[Health]:
    """The GPUs of the machine with which something is wrong. Raises NvmlUnavailableError."""
    with readings.session() as nvml:
        all_ = [_health(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    return [one for one in all_ if one.faults]


def _health(nvml: Any, number: int) -> Health:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError:
        return Health(number=number, name=None, faults=("lost",))
    seen = readings.fields(nvml, _FIELDS, handle)
    faults = [fault for fault in _FIELDS if seen.get(fault)]
    action = readings.fields(nvml, {"action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"}, handle)
    if action.get("action") in _RECOVERY:
        faults.append(_RECOVERY[action["action"]])
    held_down = readings.tried(
        nvml, lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    )
    if (held_down or 0) & _HEAT:
        faults.append("hot")
    return Health(number=number, name=name, faults=tuple(faults))
