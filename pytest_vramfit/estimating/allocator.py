"""A model of PyTorch's CUDA caching allocator: one device, one stream, no private pools.

Every rule is from ``DeviceCachingAllocator`` in c10/cuda/CUDACachingAllocator.cpp; the functions
that a method follows stand in its docstring. Read in main of mid-2024, spring and mid-2026.

What decides between free blocks of one size differs by version: their addresses up to PyTorch
2.11, the age of their segments since https://github.com/pytorch/pytorch/pull/183591 (May 2026),
which is the order of `rising` addresses. In between it was the age of each block, for some weeks:
https://github.com/pytorch/pytorch/pull/178362. That is not modelled.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from itertools import count

from pytest_vramfit.estimating.allocator_pools import (
    FREE,
    USED,
    Block,
    Device,
    ExpandablePool,
    Pool,
)
from pytest_vramfit.estimating.allocator_settings import (
    LARGEST_SMALL,
    SMALL_SEGMENT,
    AllocatorSettings,
)
from pytest_vramfit.events import BLOCK_BYTES

_STRIDE = 2**48
"""Between the addresses of segments: more than any segment has."""


def rising() -> Iterator[int]:
    """Each segment above all before."""
    return count(0, _STRIDE)


def falling() -> Iterator[int]:
    """Each segment below all before."""
    return count(0, -_STRIDE)


def shuffled(seed: int) -> Iterator[int]:
    """Segments anywhere, in an order that the seed decides."""
    numbers = random.Random(seed)  # noqa: S311 (no secret)
    for number in count():
        yield (numbers.getrandbits(32) << 32 | number) * _STRIDE


class OutOfMemoryError(Exception):
    """A request that neither the free blocks nor the device could meet, all cached given back."""

    def __init__(
        self, *, requested_bytes: int, allocated_bytes: int, reserved_bytes: int, free_bytes: int
    ) -> None:
        super().__init__(
            f"{requested_bytes} bytes requested, {free_bytes} free on the device; "
            f"{allocated_bytes} allocated of {reserved_bytes} reserved"
        )
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.free_bytes = free_bytes


_DEFAULT = AllocatorSettings()
_UNBOUNDED = sys.maxsize


class CachingAllocator:
    """Takes requests and says what they cost, in bytes.

    Allocated are whole blocks, with what was not worth splitting off; reserved is what the driver
    gave. Peaks are since the last reset; ``peak_key`` is the request that made the last new peak of
    allocated bytes. ``retries`` counts as ``num_alloc_retries`` does.

    ``capacity_bytes``: what the driver can give in all. ``allowed_bytes``: what
    ``set_per_process_memory_fraction`` allows; PyTorch collects garbage only where that is set, and
    compares it before it expands a segment, which can then pass it by less than a page. None: no
    bound.

    ``addresses``: those of new segments, in order; `rising` where it is None. A finite sequence, as
    of a recording, must suffice (else LookupError). Expandable segments have their own.
    """

    def __init__(
        self,
        settings: AllocatorSettings = _DEFAULT,
        *,
        capacity_bytes: int | None = None,
        allowed_bytes: int | None = None,
        addresses: Iterable[int] | None = None,
    ) -> None:
        self._settings = settings
        self._device = Device(_UNBOUNDED if capacity_bytes is None else capacity_bytes)
        self._allowed = _UNBOUNDED if allowed_bytes is None else allowed_bytes
        self._expands = settings.expandable_segments
        self._small: Pool
        self._large: Pool
        if self._expands:
            self._small = ExpandablePool(self._device, SMALL_SEGMENT)
            self._large = ExpandablePool(self._device, settings.large_segment_bytes)
        else:
            new = iter(rising() if addresses is None else addresses)
            self._small, self._large = Pool(self._device, new), Pool(self._device, new)
        self._oversize = settings.max_split_bytes or _UNBOUNDED
        self._rounding = settings.max_non_split_rounding_bytes or settings.large_segment_bytes
        self._used: dict[int, Block] = {}
        self._rounded: dict[int, int] = {}
        """The bytes that each request needs of a block: few sizes are asked for, and often."""
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_key: int | None = None
        self.retries = 0

    @property
    def reserved_bytes(self) -> int:
        """What the driver has given and not got back."""
        return self._device.reserved

    @property
    def peak_reserved_bytes(self) -> int:
        """The most of it."""
        return self._device.peak

    def allocate(self, key: int, size_bytes: int) -> int:
        """The bytes of the block that a request gets (``malloc``, ``alloc_found_block``).

        Raises OutOfMemoryError; ValueError for a key in use, and for a size below 1, for which
        PyTorch does not come here.
        """
        if size_bytes < 1 or key in self._used:
            raise ValueError(f"{size_bytes} bytes requested for {key}")
        size = self._rounded.get(size_bytes)
        if size is None:
            size = self._rounded[size_bytes] = self._settings.block_bytes(size_bytes)
        pool = self._small if size <= LARGEST_SMALL else self._large
        block = pool.best_fit(size)
        if block is not None and self._suits(block.size, size):
            pool.drop(block)
        else:
            block = self._new_block(pool, size)
            if block is None:
                raise self._out_of_memory(size_bytes)
        if self._worth_splitting(block, size):
            pool.put(block.split(size))
        block.state = USED
        self._used[key] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
            self.peak_key = key
        return block.size

    def free(self, key: int) -> None:
        """Give a block back to its pool (``free_block``). KeyError where the key has none."""
        block = self._used.pop(key)
        self.allocated_bytes -= block.size
        block.state = FREE
        block.pool.merge(block)

    def block_bytes(self, key: int) -> int:
        """The bytes of the block that a key has. KeyError where it has none."""
        return self._used[key].size

    def reset_peaks(self) -> None:
        """Start the peaks anew from what is allocated and reserved now."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_key = None
        self._device.peak = self._device.reserved

    def empty_cache(self) -> None:
        """Give the driver what lies wholly free: segments, or pages of expandable ones
        (``release_cached_blocks``).
        """
        self._large.release_all()
        self._small.release_all()

    def _suits(self, found: int, size: int) -> bool:
        """Whether a free block may be had for a request, as oversize goes (``get_free_block``)."""
        return found < self._oversize if size < self._oversize else found < size + self._rounding

    def _worth_splitting(self, block: Block, size: int) -> bool:
        """Whether the rest of a block becomes one of its own (``should_split``)."""
        rest = block.size - size
        if self._expands or block.pool is self._small:
            return rest >= BLOCK_BYTES
        return rest > LARGEST_SMALL and size < self._oversize

    def _new_block(self, pool: Pool, size: int) -> Block | None:
        """More from the driver, which may have to get back other memory first (``malloc``)."""
        self._collect_garbage()
        block = self._grow(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._grow(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._grow(pool, size)
        return block

    def _grow(self, pool: Pool, size: int) -> Block | None:
        segment = self._settings.segment_bytes(size)
        if self._device.reserved + segment > self._allowed:
            return None
        return pool.grow(size if self._expands else segment)

    def _collect_garbage(self) -> None:
        """Give back whole segments of the large pool that went unused for longer than the average
        one, until the threshold is met (``garbage_collect_cached_blocks``).
        """
        threshold = self._settings.garbage_collection_threshold
        if not threshold:
            return
        excess = self._device.reserved - int(threshold * self._allowed)
        left = [block for block in self._large.free_blocks() if block.whole]
        while excess > 0 and left:
            since = sum(block.free_since for block in left) / len(left)
            for block in [block for block in left if block.free_since <= since]:
                self._large.release(block)
                left.remove(block)
                excess -= block.size

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Give back one oversize block that is large enough, else the largest until they are.
        Whether they were (``release_available_cached_blocks``).
        """
        if self._oversize == _UNBOUNDED or self._expands:
            return False
        enough = pool.at_least(size)  # oversize, or best fit had taken it
        if enough is not None:
            pool.release(enough)
            return True
        for block in reversed(pool.free_blocks()):
            if size <= 0 or block.size < self._oversize:
                break
            pool.release(block)
            size -= block.size
        return size <= 0

    def _out_of_memory(self, requested_bytes: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            requested_bytes=requested_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self._device.reserved,
            free_bytes=max(0, min(self._device.capacity, self._allowed) - self._device.reserved),
        )
