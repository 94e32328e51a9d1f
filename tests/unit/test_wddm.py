"""What Windows says of a process's GPU memory, with a library that stands in for its own."""

# ruff: noqa: N802 (the library's names)

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_vramfit.measuring import wddm
from pytest_vramfit.measuring.wddm import Usage

GIB = 2**30
NVIDIA, INTEL, SOFTWARE = bytes(range(8)), bytes(range(8, 16)), bytes(8)
USAGE = Usage(local_bytes=15 * GIB, non_local_bytes=6 * GIB, budget_bytes=15 * GIB + 5)
FAILED = -1073741811  # STATUS_INVALID_PARAMETER
Groups = tuple[tuple[int, int], tuple[int, int]]
"""Budget and usage of local and of non-local memory."""


class Kernel:
    """Adapters by their LUIDs; those without groups do not say what they have."""

    def __init__(self, adapters: dict[bytes, Groups | None], status: int = 0) -> None:
        self._adapters = list(adapters.items())
        self._status = status
        self.open: list[int] = []

    def D3DKMTEnumAdapters2(self, asked: Any) -> int:
        into = asked._obj
        if into.first:
            for index, (luid, _) in enumerate(self._adapters):
                into.first[index].handle = 100 + index
                into.first[index].luid[:] = luid
                self.open.append(100 + index)
        into.count = len(self._adapters)
        return self._status

    def D3DKMTQueryVideoMemoryInfo(self, asked: Any) -> int:
        group = asked._obj
        groups = self._adapters[group.adapter - 100][1]
        if groups is None or group.process:
            return FAILED
        group.budget, group.usage = groups[group.group]
        return 0

    def D3DKMTCloseAdapter(self, handle: Any) -> int:
        self.open.remove(handle._obj.value)
        return 0


Below = Callable[..., Kernel]


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Below:
    """Lets a WSL2 with such adapters be below."""

    def with_adapters(adapters: dict[bytes, Groups | None], status: int = 0) -> Kernel:
        kernel = Kernel(adapters, status)
        monkeypatch.setattr(wddm, "_WSL_DEVICE", tmp_path)
        libraries = {"libdxcore.so": kernel}
        monkeypatch.setattr(ctypes, "CDLL", libraries.__getitem__)
        return kernel

    return with_adapters


CARD: Groups = ((15 * GIB + 5, 15 * GIB), (16 * GIB, 6 * GIB))
BUILT_IN: Groups = ((GIB, 0), (16 * GIB, GIB))
WITHOUT_MEMORY: Groups = ((0, 0), (16 * GIB, 0))


def test_of_the_gpu_that_cuda_uses(below: Below) -> None:
    kernel = below({INTEL: BUILT_IN, NVIDIA: CARD, SOFTWARE: None})
    assert wddm.usage(NVIDIA) == USAGE
    assert not kernel.open


@pytest.mark.parametrize("others", [{}, {INTEL: WITHOUT_MEMORY}, {SOFTWARE: None}])
def test_without_its_luid_the_only_one_with_memory(below: Below, others: Any) -> None:
    below({**others, NVIDIA: CARD})
    assert wddm.usage(None) == USAGE


@pytest.mark.parametrize(
    ("adapters", "luid"),
    [
        ({}, None),
        ({NVIDIA: None}, NVIDIA),
        ({INTEL: BUILT_IN}, NVIDIA),
        ({INTEL: BUILT_IN, NVIDIA: CARD}, None),  # it may be either
    ],
)
def test_nothing_is_known_where_it_cannot_be_told(below: Below, adapters: Any, luid: Any) -> None:
    kernel = below(adapters)
    assert wddm.usage(luid) is None
    assert not kernel.open


def test_nothing_is_known_where_the_kernel_refuses(below: Below) -> None:
    below({NVIDIA: CARD}, FAILED)
    assert wddm.usage(NVIDIA) is None


def test_nothing_is_known_where_its_library_is_old(
    below: Below, monkeypatch: pytest.MonkeyPatch
) -> None:
    below({NVIDIA: CARD})
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert wddm.usage(NVIDIA) is None


def test_nothing_is_known_without_windows() -> None:
    assert wddm.usage(None) is None


def test_under_windows_a_gpu_without_a_luid_is_not_windows_to_tell_of(
    below: Below, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = below({INTEL: BUILT_IN})
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", {"gdi32.dll": kernel}.__getitem__)
    assert wddm.usage(None) is None
    assert wddm.usage(INTEL) is not None


LAYOUTS: dict[type[ctypes.Structure], tuple[int, dict[str, int]]] = {
    wddm._Adapter: (20, {"handle": 0, "luid": 4, "sources": 12, "present_regions": 16}),
    wddm._Adapters: (16, {"count": 0, "first": 8}),
    wddm._Group: (
        56,
        {
            "process": 0,
            "adapter": 8,
            "group": 12,
            "budget": 16,
            "usage": 24,
            "reservation": 32,
            "available": 40,
            "physical_adapter": 48,
        },
    ),
}
"""Sizes, and where fields begin, by d3dkmthk.h on 64 bits."""


@pytest.mark.parametrize("structure", LAYOUTS)
def test_structures_are_laid_out_as_the_kernel_s(structure: type[ctypes.Structure]) -> None:
    names = [name for name, *_ in structure._fields_]
    offsets = {name: getattr(structure, name).offset for name in names}
    assert (ctypes.sizeof(structure), offsets) == LAYOUTS[structure]
