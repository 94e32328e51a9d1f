"""How many of the allocator's bytes are not on the card, by how fast the GPU reads them.

A driver that serves an allocation from host memory does not say so. Reading tells: host memory
comes over the bus, at a small part of the card's own speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from pytest_vramfit.measurement import Residency

_WORD_BYTES = 8
_HOST_BYTES = 32 * 2**20
"""Host memory whose reading tells how fast the bus is."""
_REPETITIONS = 3
_AT_ONCE = 32
"""Readings that are queued behind one wait, so that launching them costs the GPU no time."""
_WAIT_CYCLES, _LONGEST_WAIT_CYCLES = 4_000_000, 128_000_000
"""About 2 and 64 ms; the first was enough for a free processor to queue them."""
_LARGE_BYTES = 16 * 2**20
_WHOLE = 0.25
"""A segment is on the card, or off it, as a whole, if all but that share of it seems to be."""
_LEAST_RATIO = 3.0
"""The card is faster than the bus by more than that: 10 and more were seen."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of reading, in bytes a nanosecond, and what a reading takes beside it."""

    card: float
    host: float
    launch_ns: float


class _Raw:
    """Memory at an address, for PyTorch to read as whole numbers."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes // _WORD_BYTES,),
            "typestr": "<i8",
            "data": (address, False),
            "version": 3,
        }


def look(device: torch.device) -> Residency | None:
    """Read every segment of the allocator, free blocks too; None where the bus is no slower than
    the card, so that reading tells nothing.
    """
    segments = [
        (one["address"], one["total_size"])
        for one in torch.cuda.memory_snapshot()
        if one["device"] == device.index
    ]
    out = torch.empty((), dtype=torch.int64, device=device)
    on_host = torch.empty(_HOST_BYTES // _WORD_BYTES, dtype=torch.int64, pin_memory=True)
    views = [
        torch.as_tensor(_Raw(address, size_bytes), device=device)
        for address, size_bytes in [(on_host.data_ptr(), _HOST_BYTES), *segments]
    ]
    host_ns, *took_ns = _reading_ns(views, out)
    sizes = [size_bytes for _, size_bytes in segments]
    speeds = _speeds(sizes, took_ns, host_ns)
    if speeds is None:
        return None
    slow = [
        index
        for index, (size_bytes, ns) in enumerate(zip(sizes, took_ns, strict=True))
        if judged([size_bytes], [ns], speeds).off_card_bytes
    ]
    # none is off the card for a moment in which the GPU did something else
    for index, ns in zip(slow, _reading_ns([views[1 + one] for one in slow], out), strict=True):
        took_ns[index] = min(took_ns[index], ns)
    return judged(sizes, took_ns, speeds)


def _reading_ns(views: Sequence[torch.Tensor], out: torch.Tensor) -> list[float]:
    """The shortest time that the GPU took to read each."""
    for view in views[:1]:  # the kernel is loaded
        torch.sum(view, dim=0, out=out)
    shortest = [float("inf")] * len(views)
    for _ in range(_REPETITIONS):
        taken: list[float] = []
        for first in range(0, len(views), _AT_ONCE):
            taken += _queued_reading_ns(views[first : first + _AT_ONCE], out)
        shortest = list(map(min, shortest, taken))
    return shortest


def _queued_reading_ns(views: Sequence[torch.Tensor], out: torch.Tensor) -> list[float]:
    """How long the GPU took to read each, all of them queued before it began: else a processor that
    is slow to launch looks like slow memory.
    """
    cycles = _WAIT_CYCLES
    while True:
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        moments = [torch.cuda.Event(enable_timing=True)]
        moments[0].record()
        for view in views:
            torch.sum(view, dim=0, out=out)
            moments.append(torch.cuda.Event(enable_timing=True))
            moments[-1].record()
        in_time = not moments[0].query()
        torch.cuda.synchronize()
        if in_time or cycles >= _LONGEST_WAIT_CYCLES:
            return [begin.elapsed_time(end) * 1e6 for begin, end in pairwise(moments)]
        cycles *= 2


def _speeds(sizes: Sequence[int], took_ns: Sequence[float], host_ns: float) -> Speeds | None:
    """The bus' and the card's. What was fastest was on the card, if anything was."""
    host = _HOST_BYTES / host_ns
    large = [
        size_bytes / ns
        for size_bytes, ns in zip(sizes, took_ns, strict=True)
        if size_bytes >= _LARGE_BYTES
    ]
    fastest = max(large, default=0.0)
    launch_ns = min(took_ns, default=0.0)
    if fastest > _LEAST_RATIO * host:
        return Speeds(card=fastest, host=host, launch_ns=launch_ns)
    return None


def judged(sizes: Sequence[int], took_ns: Sequence[float], speeds: Speeds) -> Residency:
    """What is off the card, when reading so many bytes took so long each."""
    off_card = uncertain = 0
    for size_bytes, ns in zip(sizes, took_ns, strict=True):
        on_card_ns = max(speeds.launch_ns, size_bytes / speeds.card)
        off_card_ns = max(on_card_ns, size_bytes / speeds.host)
        if off_card_ns < 2 * on_card_ns:  # too small for reading to tell
            uncertain += size_bytes
            continue
        share = min(1.0, max(0.0, (ns - on_card_ns) / (off_card_ns - on_card_ns)))
        if _WHOLE < share < 1 - _WHOLE:
            off_card += int(share * size_bytes)
            uncertain += size_bytes // 10
        else:
            off_card += size_bytes * round(share)
    return Residency(
        off_card_bytes=off_card,
        uncertainty_bytes=uncertain,
        segments=len(sizes),
        card_bytes_per_s=int(speeds.card * 1e9),
        host_bytes_per_s=int(speeds.host * 1e9),
    )
