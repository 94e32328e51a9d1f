"""NVML readings: the memory that a card physically has, whoever uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


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


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailableError("the package nvidia-ml-py is not installed") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise NvmlUnavailableError(f"NVML: {error}") from error
    finally:
        pynvml.nvmlShutdown()


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
