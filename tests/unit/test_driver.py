"""The GPUs that CUDA shows, with a driver library that has what it is told."""

# ruff: noqa: N802 (the driver's names)

from __future__ import annotations

import ctypes
import uuid
from typing import Any

import pytest

from pytest_vramfit.measuring import driver
from pytest_vramfit.measuring.driver import Visible

UUIDS = [uuid.UUID(int=n) for n in (7, 8)]


class Cuda:
    """Two GPUs; their numbers in the driver are 10 and 11."""

    def __init__(self, status: int = 0, luids: list[bytes] | None = None) -> None:
        self._status = status
        self.luids = luids

    def cuInit(self, flags: int) -> int:
        return self._status

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(UUIDS)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = 10 + index
        return 0

    def cuDeviceGetUuid_v2(self, octets: Any, device: Any) -> int:
        octets[:] = UUIDS[device.value - 10].bytes
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:
        name.value = f"GPU {device.value}".encode()
        return 0

    def cuDeviceGetLuid(self, luid: Any, mask: Any, device: Any) -> int:
        if self.luids is None:
            return 801  # CUDA_ERROR_NOT_SUPPORTED
        luid[:] = self.luids[device.value - 10]
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"no CUDA-capable device is detected"
        return 0


def test_each_with_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Cuda())
    assert driver.visible() == [
        Visible(index=0, uuid=str(UUIDS[0]), name="GPU 10"),
        Visible(index=1, uuid=str(UUIDS[1]), name="GPU 11"),
    ]


def test_windows_name_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    luids = [bytes(range(8)), bytes(8)]
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Cuda(luids=luids))
    assert [one.luid for one in driver.visible()] == [bytes(range(8)), None]


def test_a_driver_without_such_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Cuda, "cuDeviceGetLuid")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Cuda())
    assert [one.luid for one in driver.visible()] == [None, None]


def test_an_error_is_said_in_cuda_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Cuda(100))
    with pytest.raises(RuntimeError, match="CUDA: no CUDA-capable device is detected"):
        driver.visible()
