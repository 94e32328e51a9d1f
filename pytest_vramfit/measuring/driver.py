"""The GPUs that CUDA shows this process, from the driver: no context is created, no memory taken.

In CUDA's order, after ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``; NVML's may be another.
"""

from __future__ import annotations

import ctypes
import sys
import uuid
from dataclasses import dataclass
from typing import Any

_LONGEST_NAME = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Visible:
    """One GPU, or slice of one, as CUDA shows it."""

    index: int
    """PyTorch's."""
    uuid: str
    """Without NVML's prefix ``GPU-`` or ``MIG-``."""
    name: str
    luid: bytes | None = None
    """Windows' name for the adapter; None elsewhere."""


def visible() -> list[Visible]:
    """All of them. Raises OSError where there is no driver, RuntimeError where it has an error."""
    cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    count = ctypes.c_int()
    _check(cuda, cuda.cuInit(0))
    _check(cuda, cuda.cuDeviceGetCount(ctypes.byref(count)))
    return [_visible(cuda, index) for index in range(count.value)]


def _visible(cuda: Any, index: int) -> Visible:
    device, octets, luid = ctypes.c_int(), (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 8)()
    name = ctypes.create_string_buffer(_LONGEST_NAME)
    _check(cuda, cuda.cuDeviceGet(ctypes.byref(device), index))
    # the first version of it, and PyTorch's properties with it, may give a MIG slice its GPU's
    _check(cuda, cuda.cuDeviceGetUuid_v2(octets, device))
    _check(cuda, cuda.cuDeviceGetName(name, _LONGEST_NAME, device))
    get_luid = getattr(cuda, "cuDeviceGetLuid", None)
    told = get_luid is not None and get_luid(luid, ctypes.byref(ctypes.c_uint()), device) == 0
    return Visible(
        index=index,
        uuid=str(uuid.UUID(bytes=bytes(octets))),
        name=name.value.decode(),
        luid=bytes(luid) if told and any(luid) else None,
    )


def _check(cuda: Any, status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(status, ctypes.byref(text))
        raise RuntimeError(f"CUDA: {(text.value or b'').decode() or f'error {status}'}")
