"""What is wrong with GPUs, with an NVML that has what it is told."""

# ruff: noqa: N802, N815 (NVML's names)

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vramfit.measuring import health
from pytest_vramfit.measuring.health import Health

RETIRED, REMAPPED, FAILED, ECC, ACTION = 31, 144, 145, 4, 230
SW_POWER_CAP, SW_THERMAL, HW_THERMAL = 0x04, 0x20, 0x40


class NVMLError(Exception):
    pass


class Nvml:
    """GPUs given by what their fields say, and why their clocks are held down; None: it is lost."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_FI_DEV_RETIRED_PENDING = RETIRED
    NVML_FI_DEV_REMAPPED_PENDING = REMAPPED
    NVML_FI_DEV_REMAPPED_FAILURE = FAILED
    NVML_FI_DEV_ECC_DBE_VOL_TOTAL = ECC
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = ACTION
    nvmlMemory_v2 = 2

    def __init__(self, *gpus: tuple[dict[int, int], int | None] | None) -> None:
        self._gpus = gpus

    def nvmlInit(self) -> None: ...

    nvmlShutdown = nvmlInit

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if self._gpus[index] is None:
            raise NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Card"

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        gpu = self._gpus[handle]
        assert gpu is not None
        return [
            SimpleNamespace(
                nvmlReturn=0 if one in gpu[0] else 3,
                value=SimpleNamespace(ullVal=gpu[0].get(one, 0)),
            )
            for one in fields
        ]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        gpu = self._gpus[handle]
        assert gpu is not None
        if gpu[1] is None:
            raise NVMLError("Not Supported")
        return gpu[1]


SOUND = {RETIRED: 0, REMAPPED: 0, FAILED: 0, ECC: 0, ACTION: 0}


def ailing(monkeypatch: pytest.MonkeyPatch, *gpus: Any) -> list[Health]:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(*gpus))  # type: ignore[arg-type]
    return health.ailing()


@pytest.mark.parametrize("gpu", [(SOUND, 0), (SOUND, SW_POWER_CAP), ({}, 0), ({}, None)])
def test_a_sound_gpu_and_one_that_tells_nothing(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ailing(monkeypatch, gpu) == []


@pytest.mark.parametrize(
    ("seen", "held_down", "faults"),
    [
        ({RETIRED: 1}, 0, ("pages pending",)),
        ({REMAPPED: 1}, 0, ("rows pending",)),
        ({FAILED: 1}, 0, ("rows failed",)),
        ({ECC: 7}, 0, ("ecc",)),
        ({ACTION: 1}, 0, ("reset",)),
        ({ACTION: 2}, 0, ("reboot",)),
        ({ACTION: 3}, 0, ("drain",)),
        ({ACTION: 4}, 0, ("reset",)),
        ({}, SW_THERMAL, ("hot",)),
        ({}, HW_THERMAL | SW_POWER_CAP, ("hot",)),
        ({REMAPPED: 1, ECC: 1, ACTION: 1}, HW_THERMAL, ("rows pending", "ecc", "reset", "hot")),
    ],
)
def test_each_fault(
    seen: dict[int, int], held_down: int, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ailing(monkeypatch, ({**SOUND, **seen}, held_down)) == [
        Health(number=0, name="Card", faults=faults)
    ]


def test_a_lost_gpu_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ailing(monkeypatch, (SOUND, 0), None, ({**SOUND, ECC: 1}, 0)) == [
        Health(number=1, name=None, faults=("lost",)),
        Health(number=2, name="Card", faults=("ecc",)),
    ]
