"""The machine's processor and memory."""

from __future__ import annotations

import contextlib
import platform
from pathlib import Path

import psutil  # a dependency of PEFT

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CPUINFO = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor's name, or its architecture where the system does not say more."""
    with contextlib.suppress(OSError):
        for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_bytes() -> int:
    """The machine's memory, or the container's share of it."""
    total: int = psutil.virtual_memory().total
    try:
        return min(total, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no cgroup, or "max"
        return total


def process_bytes() -> int:
    """What this process has in memory."""
    resident: int = psutil.Process().memory_info().rss
    return resident


def available_bytes() -> int:
    """What a new process can have without pushing others out."""
    available: int = psutil.virtual_memory().available
    return min(available, memory_bytes())
