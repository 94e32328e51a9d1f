"""How many of the allocator's bytes are not on the card, by how fast the GPU reads them.

A driver that serves an allocation from host memory does not say so. Reading tells: host memory
comes over the bus, at a small part of the card's own speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from pytest_vramfit.measurement import Residency

_WORD_BYTES = 8
_ROW_WORDS = 1024
"""What is read is summed in rows. None of so few words is shared among blocks of the GPU, which
would meet in scratch memory of the allocator: where that is off the card, all would look slow. See
setReduceConfig in PyTorch's Reduce.cuh.
"""
_HOST_BYTES = 32 * 2**20
"""Host memory whose reading tells how fast the bus is."""
_PIECE_BYTES = 128 * 2**20
"""Of a large segment so much is read at once, which the bus takes milliseconds for."""
_AGAIN = 3
"""How often what seems to be off the card is read once more, to be sure."""
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
            "shape": (size_bytes // _WORD_BYTES // _ROW_WORDS, _ROW_WORDS),
            "typestr": "<i8",
            "data": (address, False),
            "version": 3,
        }


def look(device: torch.device) -> Residency | None:
    """Read every segment of the allocator, free blocks too; None where the bus is no slower than
    the card, so that reading tells nothing.
    """
    pieces = [
        (address, size_bytes)
        for one in torch.cuda.memory_snapshot()
        if one["device"] == device.index
        for address, size_bytes in _pieces(one["address"], one["total_size"])
    ]
    on_host = torch.empty(_HOST_BYTES // _WORD_BYTES, dtype=torch.int64, pin_memory=True)
    reading = _Reading(device, [(on_host.data_ptr(), _HOST_BYTES), *pieces])
    sizes = [size_bytes for _, size_bytes in pieces]
    reading.of(range(1 + len(pieces)))
    # nothing looks faster than it is, but slower where the GPU or the bus did something else
    for _ in range(_AGAIN):
        host_ns, *took_ns = reading.shortest_ns
        slow = _slow(sizes, took_ns, _speeds(sizes, took_ns, host_ns))
        reading.of([0, *(1 + index for index in slow)])
    host_ns, *took_ns = reading.shortest_ns
    speeds = _speeds(sizes, took_ns, host_ns)
    return judged(sizes, took_ns, speeds) if speeds else None


def _pieces(address: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, size_bytes, _PIECE_BYTES):
        yield address + begin, min(_PIECE_BYTES, size_bytes - begin)


def _slow(sizes: Sequence[int], took_ns: Sequence[float], speeds: Speeds | None) -> Iterator[int]:
    """Which seem to be off the card."""
    for index, (size_bytes, ns) in enumerate(zip(sizes, took_ns, strict=True)):
        if speeds and judged([size_bytes], [ns], speeds).off_card_bytes:
            yield index


class _Reading:
    """Memory that is read again and again."""

    def __init__(self, device: torch.device, memory: Sequence[tuple[int, int]]) -> None:
        self._views = [torch.as_tensor(_Raw(*one), device=device) for one in memory]
        rows = max(map(len, self._views))
        self._sums = torch.empty(rows, dtype=torch.int64, device=device)
        self.shortest_ns = [float("inf")] * len(memory)
        """That the GPU took to read each so far."""
        self._sum(self._views[0])  # the kernel is loaded

    def of(self, indices: Sequence[int]) -> None:
        """Read these once more."""
        for first in range(0, len(indices), _AT_ONCE):
            at_once = indices[first : first + _AT_ONCE]
            for index, ns in zip(at_once, self._queued_ns(at_once), strict=True):
                self.shortest_ns[index] = min(self.shortest_ns[index], ns)

    def _queued_ns(self, indices: Sequence[int]) -> list[float]:
        """How long the GPU took to read each, all of them queued before it began: else a processor
        that is slow to launch looks like slow memory.
        """
        cycles = _WAIT_CYCLES
        while True:
            torch.cuda.synchronize()
            torch.cuda._sleep(cycles)
            moments = [torch.cuda.Event(enable_timing=True)]
            moments[0].record()
            for index in indices:
                self._sum(self._views[index])
                moments.append(torch.cuda.Event(enable_timing=True))
                moments[-1].record()
            in_time = not moments[0].query()
            torch.cuda.synchronize()
            if in_time or cycles >= _LONGEST_WAIT_CYCLES:
                return [begin.elapsed_time(end) * 1e6 for begin, end in pairwise(moments)]
            cycles *= 2

    def _sum(self, view: torch.Tensor) -> None:
        torch.sum(view, dim=1, out=self._sums[: len(view)])


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
        card_bytes_per_s=int(speeds.card * 1e9),
        host_bytes_per_s=int(speeds.host * 1e9),
    )
