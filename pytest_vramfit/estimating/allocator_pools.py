"""What the modelled CUDA caching allocator keeps: blocks, the pools of those not in use, the device
that they come from.

From ``Block``, ``BlockPool``, ``ExpandableSegment`` and what works on one pool in
``DeviceCachingAllocator`` (c10/cuda/CUDACachingAllocator.cpp); the functions that a method follows
stand in its docstring. All sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

USED, FREE, UNMAPPED = range(3)
_PAGES = 2**30
"""Of an expandable segment. PyTorch reserves addresses for 9/8 of the device's memory, and begins
another segment where they do not suffice; here they always do.
"""


class Block:
    """A part of a segment, or a whole one, linked to the parts beside it."""

    __slots__ = ("address", "after", "before", "free_since", "pool", "size", "state")

    def __init__(self, pool: Pool, address: int, size: int, state: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.state = state
        self.before: Block | None = None
        self.after: Block | None = None
        self.free_since = 0
        """The pool's count of searches when it came there."""

    @property
    def whole(self) -> bool:
        """Whether it is a segment of its own."""
        return self.before is None and self.after is None

    @property
    def size_expanded(self) -> int:
        """With the unmapped addresses behind it."""
        after = self.after
        return self.size + (after.size if after is not None and after.state == UNMAPPED else 0)

    def split(self, size: int) -> Block:
        """Keep the first ``size`` bytes. Returns the rest, in the same state."""
        rest = Block(self.pool, self.address + size, self.size - size, self.state)
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        self.size = size
        return rest


class Device:
    """What gives memory: ``reserved`` now, and at most since the last reset."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.reserved = 0
        self.peak = 0

    def take(self, size: int) -> bool:
        """Reserve it if it is there."""
        if self.reserved + size > self.capacity:
            return False
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        return True


class Pool:
    """Free blocks of segments from cudaMalloc, by size and then address."""

    def __init__(self, device: Device, addresses: Iterator[int]) -> None:
        self._device = device
        self._addresses = addresses
        self.searches = 0
        self._order: list[tuple[int, ...]] = []
        self._by_address: dict[int, Block] = {}

    def free_blocks(self) -> list[Block]:
        """All of them, the smallest first."""
        return [self._by_address[address] for _, address in self._order]

    def put(self, block: Block) -> None:
        """Keep a free block."""
        block.free_since = self.searches
        self._by_address[block.address] = block
        insort(self._order, (block.size, block.address))

    def drop(self, block: Block) -> None:
        """Keep a block no longer."""
        del self._by_address[block.address]
        del self._order[self._index(block)]

    def merge(self, block: Block) -> None:
        """Keep a block with what its neighbours of the same state have (``try_merge_blocks``)."""
        before, after = block.before, block.after
        if before is not None and before.state == block.state:
            self.drop(before)
            block.address = before.address
            block.size += before.size
            block.before = before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.state == block.state:
            self.drop(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        self.put(block)

    def at_least(self, size: int) -> Block | None:
        """The smallest free block that has ``size``; of equal ones that at the lowest address."""
        index = bisect_left(self._order, (size,))
        return None if index == len(self._order) else self._by_address[self._order[index][1]]

    def best_fit(self, size: int) -> Block | None:
        """The free block for a request (``get_free_block``)."""
        self.searches += 1
        return self.at_least(size)

    def grow(self, size: int) -> Block | None:
        """A new segment: a free block, not kept yet. None: no room for it (``alloc_block``)."""
        if not self._device.take(size):
            return None
        address = next(self._addresses, None)
        if address is None:
            raise LookupError("more segments than addresses for them")
        return Block(self, address, size, FREE)

    def release(self, block: Block) -> None:
        """Give back a free block that is a whole segment (``release_block``)."""
        self.drop(block)
        self._device.reserved -= block.size

    def release_all(self) -> None:
        """Give back what can be given back (``release_blocks``)."""
        for block in self.free_blocks():
            if block.whole:
                self.release(block)

    def _index(self, block: Block) -> int:
        return bisect_left(self._order, (block.size, block.address))


class ExpandablePool(Pool):
    """Free blocks of one segment, whose pages are mapped as they are needed."""

    def __init__(self, device: Device, page: int) -> None:
        super().__init__(device, iter(()))
        self._page = page
        self._unmapped: dict[int, Block] = {}
        self.put(Block(self, 0, page * _PAGES, UNMAPPED))

    def put(self, block: Block) -> None:
        """Keep a free or unmapped block."""
        if block.state == UNMAPPED:
            self._unmapped[block.address] = block
        else:
            super().put(block)

    def drop(self, block: Block) -> None:
        """Keep a block no longer."""
        if block.state == UNMAPPED:
            del self._unmapped[block.address]
        else:
            super().drop(block)

    def best_fit(self, size: int) -> Block | None:
        """As of any pool, but a block counts with what it could expand to."""
        block = super().best_fit(size)
        if block is not None:
            for index in range(self._index(block) + 1, len(self._order)):
                larger = self._by_address[self._order[index][1]]
                if larger.size_expanded >= block.size_expanded:
                    break
                block = larger
        return block

    def grow(self, size: int) -> Block | None:
        """A free block, not kept now, where the lowest free and unmapped addresses have ``size``.
        None: no room for its pages (``try_allocate_expandable_block``).
        """
        block = self._lowest(size)
        if block.state == UNMAPPED and not self._map(block, min(size, block.size)):
            return None
        while block.size < size:
            unmapped = block.after
            assert unmapped is not None
            if not self._map(unmapped, min(size - block.size, unmapped.size)):
                return None
            block = unmapped  # which has the other merged in
        self.drop(block)
        return block

    def release_all(self) -> None:
        """Unmap all pages that lie wholly in free blocks."""
        for block in self.free_blocks():
            self._unmap(block)

    def _lowest(self, size: int) -> Block:
        """The first of the free and unmapped blocks in a row (``find_expandable_block``)."""
        for address in sorted(self._unmapped):
            first = self._unmapped[address]
            if first.before is not None and first.before.state == FREE:
                first = first.before
            block: Block | None = first
            found = 0
            while found < size and block is not None and block.state != USED:
                found += block.size
                block = block.after
            if found >= size:
                return first
        raise AssertionError(f"no addresses for {size} bytes")

    def _map(self, block: Block, size: int) -> bool:
        """Map the first pages of an unmapped block, all or none of them (``map_block``)."""
        mapped = -(-size // self._page) * self._page
        if not self._device.take(mapped):
            return False
        self.drop(block)
        if mapped < block.size:
            self.put(block.split(mapped))
        block.state = FREE
        self.merge(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Unmap the pages that lie wholly in a free block (``unmap_block``)."""
        begin = -(-block.address // self._page) * self._page
        end = (block.address + block.size) // self._page * self._page
        if begin >= end:
            return
        self.drop(block)
        if begin > block.address:
            first, block = block, block.split(begin - block.address)
            self.put(first)
        if end < block.address + block.size:
            self.put(block.split(end - block.address))
        block.state = UNMAPPED
        self.merge(block)
        self._device.reserved -= end - begin
