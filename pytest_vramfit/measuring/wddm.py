"""Where Windows has this process's GPU memory: on the card (local) or in host memory (non-local).

The kernel's own account, which DXGI and the performance counters read, too: its functions are in
gdi32.dll, and in WSL2 in libdxcore.so, where a process may ask of itself only (``dxgkio_query_
vidmem_info`` in Microsoft's dxgkrnl). Structures as in d3dkmthk.h. Never run on such a machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WSL_DEVICE = Path("/dev/dxg")
_LOCAL, _NON_LOCAL = 0, 1
"""D3DKMT_MEMORY_SEGMENT_GROUP_LOCAL and _NON_LOCAL."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What the process has, in bytes."""

    local_bytes: int
    non_local_bytes: int
    """Pinned and managed memory among it."""
    budget_bytes: int
    """How much local memory the system grants the process."""


class _Adapter(ctypes.Structure):
    """D3DKMT_ADAPTERINFO."""

    _fields_ = (
        ("handle", ctypes.c_uint32),
        ("luid", ctypes.c_ubyte * 8),
        ("sources", ctypes.c_uint32),
        ("present_regions", ctypes.c_int32),
    )


class _Adapters(ctypes.Structure):
    """D3DKMT_ENUMADAPTERS2."""

    _fields_ = (("count", ctypes.c_uint32), ("first", ctypes.POINTER(_Adapter)))


class _Group(ctypes.Structure):
    """D3DKMT_QUERYVIDEOMEMORYINFO. Without a process it is about the one that asks."""

    _fields_ = (
        ("process", ctypes.c_void_p),
        ("adapter", ctypes.c_uint32),
        ("group", ctypes.c_uint32),
        ("budget", ctypes.c_uint64),
        ("usage", ctypes.c_uint64),
        ("reservation", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("physical_adapter", ctypes.c_uint32),
    )


def usage(luid: bytes | None) -> Usage | None:
    """Of the adapter that CUDA gives this LUID; in WSL2, where it may give none, of the only one.

    None where Windows is not below, or does not say.
    """
    if luid is None and sys.platform == "win32":
        return None  # such as a GPU that is not Windows' to manage
    with contextlib.suppress(OSError, AttributeError):
        kernel = _kernel()
        with _adapters(kernel) as adapters:
            meant = [one.handle for one in adapters if luid in {None, bytes(one.luid)}]
            told = [_usage(kernel, one) for one in meant]
        known = [one for one in told if one is not None]
        if len(known) == 1:
            return known[0]
    return None


def _kernel() -> Any:
    """Raises OSError where there is none."""
    if sys.platform == "win32":
        return ctypes.CDLL("gdi32.dll")
    if not _WSL_DEVICE.exists():
        raise FileNotFoundError(_WSL_DEVICE)
    return ctypes.CDLL("libdxcore.so")


@contextlib.contextmanager
def _adapters(kernel: Any) -> Iterator[list[_Adapter]]:
    """All of the machine, software ones too. Raises OSError."""
    asked = _Adapters(count=0, first=None)
    _check(kernel.D3DKMTEnumAdapters2(ctypes.byref(asked)))
    room = (_Adapter * asked.count)()
    asked.first = ctypes.cast(room, ctypes.POINTER(_Adapter))
    _check(kernel.D3DKMTEnumAdapters2(ctypes.byref(asked)))
    adapters = list(room)[: asked.count]
    try:
        yield adapters
    finally:
        for one in adapters:
            kernel.D3DKMTCloseAdapter(ctypes.byref(ctypes.c_uint32(one.handle)))


def _usage(kernel: Any, adapter: int) -> Usage | None:
    """None of an adapter that grants no local memory or does not say."""
    groups = [_Group(adapter=adapter, group=one) for one in (_LOCAL, _NON_LOCAL)]
    for one in groups:
        if kernel.D3DKMTQueryVideoMemoryInfo(ctypes.byref(one)):
            return None
    local, non_local = groups
    if not local.budget:
        return None
    return Usage(
        local_bytes=local.usage, non_local_bytes=non_local.usage, budget_bytes=local.budget
    )


def _check(status: int) -> None:
    if status:
        raise OSError(f"D3DKMTEnumAdapters2: NTSTATUS {status & 0xFFFFFFFF:#010x}")
