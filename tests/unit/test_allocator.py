"""PyTorch's caching allocator as modelled: each rule by a small sum, all rules against another
model that keeps no blocks and works everything out anew, and against recordings of the real one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_vramfit.estimating.allocator import (
    CachingAllocator,
    OutOfMemoryError,
    falling,
    rising,
    shuffled,
)
from pytest_vramfit.estimating.allocator_settings import AllocatorSettings

MIB = 2**20
STREAMS = Path(__file__).parents[1] / "data" / "allocator_streams.json"


def allocator(conf: str = "", **bounds: Any) -> CachingAllocator:
    return CachingAllocator(AllocatorSettings.parse(conf), **bounds)


def allocate(model: CachingAllocator, **mib: float) -> None:
    """Blocks named by letters, of so many MiB."""
    for name, size in mib.items():
        model.allocate(ord(name), int(size * MIB))


def free(model: CachingAllocator, names: str) -> None:
    for name in names:
        model.free(ord(name))


def mib(model: CachingAllocator) -> tuple[float, float]:
    """Allocated and reserved."""
    return model.allocated_bytes / MIB, model.reserved_bytes / MIB


# segments, splitting, merging


@pytest.mark.parametrize(
    ("size_bytes", "block_bytes", "reserved_mib"),
    [
        (1, 512, 2),
        (MIB, MIB, 2),
        (MIB + 1, MIB + 512, 20),
        (10 * MIB - 512, 10 * MIB - 512, 20),
        (10 * MIB, 10 * MIB, 10),
        # 1 MiB left over: kept in the block; a little more is split off
        (11 * MIB, 12 * MIB, 12),
        (11 * MIB - 512, 11 * MIB - 512, 12),
    ],
)
def test_first_request(size_bytes: int, block_bytes: int, reserved_mib: int) -> None:
    model = allocator()
    assert model.allocate(0, size_bytes) == block_bytes
    assert model.block_bytes(0) == model.allocated_bytes == model.peak_allocated_bytes
    assert model.allocated_bytes == block_bytes
    assert model.reserved_bytes == model.peak_reserved_bytes == reserved_mib * MIB


def test_small_blocks_are_split_to_the_last_512_bytes() -> None:
    model = allocator()
    allocate(model, a=0.5, b=0.5, c=0.5)
    model.allocate(3, MIB // 2 - 512)
    model.allocate(4, 512)
    assert mib(model) == (2, 2)
    model.allocate(5, 1)
    assert model.reserved_bytes == 4 * MIB


def test_small_and_large_requests_share_nothing() -> None:
    model = allocator()
    allocate(model, a=2)
    model.allocate(0, 512)  # though 18 MiB are free
    assert mib(model) == (2 + 512 / MIB, 22)


def test_a_free_block_is_used_again() -> None:
    model = allocator()
    allocate(model, a=16)
    free(model, "a")
    allocate(model, a=4, b=12)
    assert mib(model) == (16, 16)


def test_the_smallest_block_that_fits_is_taken() -> None:
    model = allocator()
    allocate(model, a=30, b=14, c=22)
    free(model, "abc")
    allocate(model, d=12, e=20, f=28)
    assert mib(model) == (60, 66)


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_free_neighbours_become_one_block(order: str) -> None:
    model = allocator()
    allocate(model, a=6, b=6, c=6)
    free(model, order)
    model.allocate(0, 20 * MIB)  # with the 2 MiB that were left over
    assert mib(model) == (20, 20)


def test_used_neighbours_are_not_absorbed() -> None:
    model = allocator()
    allocate(model, a=5, b=5, c=5, d=5)
    free(model, "ac")
    allocate(model, e=6)
    assert mib(model) == (16, 40)


def test_a_rest_kept_in_a_block_comes_back_with_it() -> None:
    model = allocator()
    allocate(model, a=11)
    free(model, "a")
    assert mib(model) == (0, 12)
    allocate(model, b=12)
    assert mib(model) == (12, 12)


# which of equal blocks


def two_equal_blocks(addresses: Iterator[int] | Sequence[int]) -> CachingAllocator:
    """20 MiB free as a segment of its own, made first, and as the rest of another one."""
    model = allocator(addresses=addresses)
    allocate(model, a=20, b=40)
    free(model, "b")
    allocate(model, c=20)
    free(model, "a")
    return model


@pytest.mark.parametrize(
    ("addresses", "reserved_mib"),
    [
        (rising(), 60),  # the first segment is used
        (falling(), 40),  # the rest of the second is: the first can be given back
        ([7 * 2**40, 2**30], 40),
        ([2**30, 7 * 2**40], 60),
    ],
)
def test_the_lower_address_is_taken(
    addresses: Iterator[int] | Sequence[int], reserved_mib: int
) -> None:
    model = two_equal_blocks(addresses)
    allocate(model, d=20)
    model.empty_cache()
    assert mib(model) == (40, reserved_mib)


def test_shuffled_addresses_are_one_order_for_each_seed() -> None:
    def results(seed: int) -> list[int]:
        order = shuffled(seed)
        return [next(order) for _ in range(50)]

    assert results(1) == results(1) != results(2)
    first = results(1)
    assert len(set(first)) == 50
    assert {one < other for one, other in pairwise(first)} == {False, True}


def test_shuffled_addresses_decide_between_equal_blocks() -> None:
    reserved = set()
    for seed in range(20):
        model = two_equal_blocks(shuffled(seed))
        allocate(model, d=20)
        model.empty_cache()
        reserved.add(mib(model)[1])
    assert reserved == {40, 60}


def test_addresses_that_do_not_suffice() -> None:
    model = allocator(addresses=[0])
    allocate(model, a=20)
    with pytest.raises(LookupError, match=r"^more segments than addresses for them$"):
        allocate(model, b=20)


# peaks and keys


def test_peaks_start_anew_from_what_is_there() -> None:
    model = allocator()
    allocate(model, a=30, b=10)
    free(model, "a")
    assert (model.peak_allocated_bytes, model.peak_reserved_bytes) == (40 * MIB, 40 * MIB)
    assert model.peak_key == ord("b")
    model.reset_peaks()
    assert (model.peak_allocated_bytes, model.peak_reserved_bytes) == (10 * MIB, 40 * MIB)
    assert model.peak_key is None
    model.empty_cache()
    assert (model.reserved_bytes, model.peak_reserved_bytes) == (10 * MIB, 40 * MIB)
    model.reset_peaks()
    assert model.peak_reserved_bytes == 10 * MIB


def test_the_request_of_the_last_new_peak() -> None:
    """One that only comes back to the peak is no new one."""
    model = allocator()
    allocate(model, a=10, b=20)
    free(model, "b")
    allocate(model, c=20)
    assert model.peak_key == ord("b")
    allocate(model, d=2)
    assert model.peak_key == ord("d")


@pytest.mark.parametrize("size_bytes", [0, -1])
def test_no_bytes_requested(size_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"^{size_bytes} bytes requested for 3$"):
        allocator().allocate(3, size_bytes)


def test_keys_are_used_once_at_a_time() -> None:
    model = allocator()
    model.allocate(3, 512)
    with pytest.raises(ValueError, match=r"^512 bytes requested for 3$"):
        model.allocate(3, 512)
    model.free(3)
    with pytest.raises(KeyError):
        model.free(3)
    with pytest.raises(KeyError):
        model.block_bytes(3)
    model.allocate(3, 512)
    assert model.allocated_bytes == 512


# giving memory back


def test_empty_cache_gives_back_whole_segments_only() -> None:
    model = allocator()
    allocate(model, a=5, b=5, c=30, d=1, e=1)
    free(model, "acd")
    model.empty_cache()
    assert mib(model) == (6, 22)
    free(model, "be")
    model.empty_cache()
    assert mib(model) == (0, 0)


def test_cached_segments_are_given_back_before_a_request_fails() -> None:
    model = allocator(capacity_bytes=40 * MIB)
    allocate(model, a=20, b=10, c=1)
    free(model, "ac")
    allocate(model, d=30)
    assert (mib(model), model.retries) == ((40, 40), 1)
    assert model.peak_reserved_bytes == 40 * MIB


@pytest.mark.parametrize("bound", ["capacity_bytes", "allowed_bytes"])
def test_out_of_memory(bound: str) -> None:
    """A partly free segment cannot be given back: 15 MiB of these 20."""
    model = allocator(**{bound: 45 * MIB})
    allocate(model, a=5, b=20)
    free(model, "b")
    with pytest.raises(OutOfMemoryError) as caught:
        model.allocate(0, 26 * MIB + 1)
    error = caught.value
    assert str(error) == (
        "27262977 bytes requested, 26214400 free on the device; "
        "5242880 allocated of 20971520 reserved"
    )
    assert error.requested_bytes == 26 * MIB + 1
    assert error.allocated_bytes == 5 * MIB
    assert error.reserved_bytes == 20 * MIB
    assert error.free_bytes == 25 * MIB
    assert model.retries == 1
    allocate(model, c=24)
    assert (mib(model), model.retries) == ((29, 44), 1)


def test_the_tighter_bound_counts() -> None:
    for capacity, allowed in ((10, 30), (30, 10)):
        model = allocator(capacity_bytes=capacity * MIB, allowed_bytes=allowed * MIB)
        allocate(model, a=10)
        with pytest.raises(OutOfMemoryError) as caught:
            allocate(model, b=10)
        assert caught.value.free_bytes == 0


# garbage collection


def after_three_segments(threshold: float, **bounds: Any) -> CachingAllocator:
    """20 MiB free for longer than 24 MiB, 22 MiB in use."""
    model = allocator(f"garbage_collection_threshold:{threshold}", **bounds)
    allocate(model, a=20, b=22, c=24)
    free(model, "ac")
    allocate(model, d=24)
    free(model, "d")
    return model


@pytest.mark.parametrize(
    ("threshold", "reserved_mib"),
    [
        (0.7, 96),  # 66 of 70 MiB before: not yet
        (0.6, 76),  # 66 of 60 MiB: the older of the two suffices
        (0.3, 52),  # 66 of 30 MiB: both
    ],
)
def test_garbage_is_collected_by_age(threshold: float, reserved_mib: int) -> None:
    model = after_three_segments(threshold, allowed_bytes=100 * MIB)
    allocate(model, e=30)
    assert (mib(model), model.retries) == ((52, reserved_mib), 0)


@pytest.mark.parametrize("bounds", [{}, {"capacity_bytes": 100 * MIB}])
def test_garbage_is_collected_only_under_a_memory_fraction(bounds: dict[str, int]) -> None:
    model = after_three_segments(0.3, **bounds)
    allocate(model, e=30)
    assert mib(model) == (52, 96)


def test_garbage_is_no_part_of_a_segment_and_no_small_segment() -> None:
    model = allocator("garbage_collection_threshold:0.1", allowed_bytes=100 * MIB)
    allocate(model, a=5, b=5, c=1)
    free(model, "ac")
    allocate(model, d=30)
    assert mib(model) == (35, 52)


# max_split_size_mb


def test_an_oversize_block_serves_no_smaller_request() -> None:
    model = allocator("max_split_size_mb:32")
    allocate(model, a=32)
    free(model, "a")
    allocate(model, b=20)
    assert mib(model) == (20, 52)
    allocate(model, c=32)
    assert mib(model) == (52, 52)


def test_a_block_below_the_limit_is_split() -> None:
    model = allocator("max_split_size_mb:32")
    allocate(model, a=30)
    free(model, "a")
    allocate(model, b=12, c=18)
    assert mib(model) == (30, 30)


def test_a_segment_of_the_limit_is_oversize_once_it_is_free() -> None:
    """The 20 MiB that requests of 1 to 10 MiB share, at the lowest limit there is."""
    model = allocator("max_split_size_mb:20")
    allocate(model, a=5, b=5)
    assert mib(model) == (10, 20)
    free(model, "ab")
    allocate(model, c=5)
    assert mib(model) == (5, 40)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("", (60, 60)),  # 60 < 41 + 20: the whole block
        (",max_non_split_rounding_mb:20", (60, 60)),
        (",large_segment_size_mb:19", (42, 102)),  # 60 = 41 + 19: too much; one of 42 MiB
        (",max_non_split_rounding_mb:21,large_segment_size_mb:19", (60, 60)),
    ],
)
def test_an_oversize_block_may_be_so_much_too_large(
    conf: str, expected: tuple[float, float]
) -> None:
    model = allocator(f"max_split_size_mb:32{conf}")
    allocate(model, a=60)
    free(model, "a")
    allocate(model, b=41)
    assert mib(model) == expected


def test_one_oversize_block_is_given_back_if_it_is_large_enough() -> None:
    """The smaller of two, though the larger is left."""
    model = allocator("max_split_size_mb:32", capacity_bytes=100 * MIB)
    allocate(model, a=40, b=50)
    free(model, "ab")
    allocate(model, c=20)
    assert (mib(model), model.retries) == ((20, 70), 0)


def test_the_largest_oversize_blocks_are_given_back_until_they_are_enough() -> None:
    model = allocator("max_split_size_mb:32", capacity_bytes=140 * MIB)
    allocate(model, a=34, b=40, c=50, d=10)
    free(model, "abcd")
    allocate(model, e=88)  # 50 + 40 released: 34 + 10 stay
    assert (mib(model), model.retries) == ((88, 132), 0)


def test_all_is_given_back_where_oversize_blocks_do_not_suffice() -> None:
    """And the retry is counted, though there is room without the 24 MiB already."""
    model = allocator("max_split_size_mb:32", capacity_bytes=140 * MIB)
    allocate(model, a=40, b=24)
    free(model, "ab")
    allocate(model, c=90)
    assert (mib(model), model.retries) == ((90, 90), 1)


# other settings


def test_requests_are_rounded_as_the_settings_say() -> None:
    model = allocator("roundup_power2_divisions:4")
    assert model.allocate(0, 5 * MIB + 1) == 6 * MIB
    assert model.allocate(1, 900_000) == 917_504  # seven eighths of 1 MiB


def test_large_segments_have_the_size_that_the_settings_say() -> None:
    model = allocator("large_segment_size_mb:40")
    allocate(model, a=2, b=12)
    assert mib(model) == (14, 40)


# expandable segments


def test_pages_are_mapped_as_needed() -> None:
    model = allocator("expandable_segments:True")
    model.allocate(0, 512)
    assert mib(model)[1] == 2
    allocate(model, a=5)
    assert mib(model)[1] == 22
    allocate(model, b=25)  # 15 of it were mapped
    assert mib(model) == (30 + 512 / MIB, 42)
    allocate(model, c=1)
    assert mib(model)[1] == 42


def test_expandable_pages_have_the_size_of_a_large_segment() -> None:
    model = allocator("expandable_segments:True,large_segment_size_mb:12")
    allocate(model, a=13)
    assert mib(model) == (13, 24)


def test_an_expandable_segment_is_split_to_the_last_512_bytes() -> None:
    model = allocator("expandable_segments:True,max_split_size_mb:20")
    model.allocate(0, 20 * MIB - 512)
    model.allocate(1, 40 * MIB)
    assert mib(model) == (60 - 512 / MIB, 60)
    model.free(0)
    assert model.allocate(2, 19 * MIB) == 19 * MIB


def test_a_block_that_can_expand_is_kept_for_larger_requests() -> None:
    """4 MiB at the end could become any size: 6 MiB elsewhere are the better fit for 3."""
    model = allocator("expandable_segments:True")
    allocate(model, a=6, b=5, c=5)
    free(model, "a")
    allocate(model, d=3)
    allocate(model, e=4)
    assert mib(model) == (17, 20)
    allocate(model, f=6)
    assert mib(model) == (23, 40)


def test_of_equal_blocks_the_lower_is_taken_here_too() -> None:
    """So that c's and x's become one."""
    model = allocator("expandable_segments:True")
    allocate(model, a=5, b=5, c=5, x=1.5, d=3.5)
    free(model, "ac")
    allocate(model, e=5)
    free(model, "x")
    allocate(model, f=6.5)
    assert mib(model) == (20, 20)


def test_pages_that_are_partly_free_stay_mapped() -> None:
    model = allocator("expandable_segments:True")
    allocate(model, a=18, b=4, c=12, d=6)
    free(model, "bd")
    model.empty_cache()
    assert mib(model) == (30, 40)
    allocate(model, e=3, f=6)  # where b and d were
    assert mib(model) == (39, 40)


def test_mapped_and_unmapped_pages_make_a_block_together() -> None:
    model = allocator("expandable_segments:True")
    allocate(model, a=20, b=10, c=10)
    free(model, "a")
    model.empty_cache()
    assert mib(model) == (20, 20)
    free(model, "b")
    allocate(model, d=30)
    assert mib(model) == (40, 40)


def test_empty_cache_unmaps_free_pages() -> None:
    model = allocator("expandable_segments:True")
    allocate(model, a=5, b=40)
    free(model, "b")
    model.empty_cache()
    assert mib(model) == (5, 20)
    free(model, "a")
    model.empty_cache()
    assert mib(model) == (0, 0)


def test_the_lowest_unmapped_pages_are_mapped_first() -> None:
    model = allocator("expandable_segments:True")
    allocate(model, a=20, b=20, c=20)
    free(model, "a")
    model.empty_cache()
    assert mib(model) == (40, 40)
    allocate(model, d=10)  # where a was
    assert mib(model) == (50, 60)
    free(model, "b")
    allocate(model, e=30)  # behind it
    assert mib(model) == (60, 60)
    allocate(model, f=10)  # at the end
    assert mib(model) == (70, 80)


def test_pages_are_unmapped_before_a_request_fails() -> None:
    model = allocator("expandable_segments:True", capacity_bytes=60 * MIB)
    allocate(model, a=30, b=5)
    model.allocate(0, 512)
    model.free(0)
    free(model, "a")
    allocate(model, c=32)  # 25 MiB are free behind b, 30 before it; 20 + 20 mapped then
    assert (mib(model), model.retries) == ((37, 60), 1)


def test_expandable_out_of_memory() -> None:
    model = allocator("expandable_segments:True", capacity_bytes=60 * MIB)
    allocate(model, a=30)
    with pytest.raises(OutOfMemoryError) as caught:
        allocate(model, b=31)
    assert caught.value.free_bytes == 20 * MIB
    assert (mib(model), model.retries) == ((30, 40), 1)
    allocate(model, b=30)
    assert (mib(model), model.retries) == ((60, 60), 1)


def test_a_memory_fraction_is_looked_at_before_pages_are_counted() -> None:
    """A request for 21 MiB counts as 22, then maps 40; one for 2 MiB counts as 20 and maps none
    where it fits.
    """
    model = allocator("expandable_segments:True", allowed_bytes=30 * MIB)
    allocate(model, a=21)
    assert mib(model) == (21, 40)
    allocate(model, b=2)
    with pytest.raises(OutOfMemoryError) as caught:
        allocate(model, c=18)
    assert caught.value.free_bytes == 0
    model = allocator("expandable_segments:True", capacity_bytes=30 * MIB)
    with pytest.raises(OutOfMemoryError):
        allocate(model, a=21)


# against a model that keeps no blocks


class Plain:
    """The same allocator from two facts: which addresses are mapped and which are in use.

    Free blocks are the gaps. No garbage collection; slow.
    """

    def __init__(self, conf: AllocatorSettings, capacity: float, allowed: float) -> None:
        self.conf = conf
        self.capacity = capacity
        self.allowed = allowed
        self.limit: float = conf.max_split_bytes or math.inf
        self.rounding = conf.max_non_split_rounding_bytes or conf.large_segment_bytes
        self.mapped: dict[bool, dict[int, int]] = {True: {}, False: {}}
        """For small and large: segments, or pages, by address with their sizes."""
        self.used: dict[int, tuple[bool, int, int]] = {}
        self.segments = 0
        self.retries = 0

    @property
    def allocated(self) -> int:
        return sum(size for _, _, size in self.used.values())

    @property
    def reserved(self) -> int:
        return sum(sum(one.values()) for one in self.mapped.values())

    def page(self, small: bool) -> int:
        return 2 * MIB if small else self.conf.large_segment_bytes

    def regions(self, small: bool) -> list[tuple[int, int]]:
        """Begins and ends: segments, or pages that follow each other."""
        found: list[tuple[int, int]] = []
        for begin, size in sorted(self.mapped[small].items()):
            if found and self.conf.expandable_segments and found[-1][1] == begin:
                found[-1] = (found[-1][0], begin + size)
            else:
                found.append((begin, begin + size))
        return found

    def gaps(self, small: bool) -> list[tuple[int, int]]:
        """Sizes and addresses of free blocks, in the order that best fit goes by."""
        found = []
        used = sorted((at, size) for pool, at, size in self.used.values() if pool == small)
        for begin, end in self.regions(small):
            inside = [(at, at + size) for at, size in used if begin <= at < end]
            borders = [(begin, begin), *inside, (end, end)]
            found += [(after - at, at) for (_, at), (after, _) in pairwise(borders) if after > at]
        return sorted(found)

    def room(self, small: bool, gap: tuple[int, int]) -> float:
        """What a gap could become: up to the next mapped page, if it ends where none is."""
        end = sum(gap)
        if end % self.page(small) or end in self.mapped[small]:
            return gap[0]
        return min((one for one in self.mapped[small] if one > end), default=math.inf) - gap[1]

    def allocate(self, key: int, size_bytes: int) -> bool:
        size = self.conf.block_bytes(size_bytes)
        small = size <= MIB
        block = self.fit(small, size) or self.more(small, size)
        if block is None:
            return False
        found, at = block
        tight = small or self.conf.expandable_segments
        split = found - size >= 512 if tight else found - size > MIB and size < self.limit
        self.used[key] = (small, at, size if split else found)
        return True

    def fit(self, small: bool, size: int) -> tuple[int, int] | None:
        gaps = [gap for gap in self.gaps(small) if gap[0] >= size]
        while self.conf.expandable_segments and len(gaps) > 1:
            if self.room(small, gaps[1]) >= self.room(small, gaps[0]):
                break
            del gaps[0]
        if not gaps:
            return None
        too_large = self.limit if size < self.limit else size + self.rounding
        return None if gaps[0][0] >= too_large else gaps[0]

    def more(self, small: bool, size: int) -> tuple[int, int] | None:
        block = self.grow(small, size)
        if block is None and self.drop_oversize(small, size):
            block = self.grow(small, size)
        if block is None:
            self.empty()
            self.retries += 1
            block = self.grow(small, size)
        return block

    def grow(self, small: bool, size: int) -> tuple[int, int] | None:
        segment = self.conf.segment_bytes(size)
        if self.reserved + segment > self.allowed:
            return None
        if self.conf.expandable_segments:
            return self.map(small, size)
        if self.reserved + segment > self.capacity:
            return None
        self.segments += 1
        at = self.segments * 2**48
        self.mapped[small][at] = segment
        return segment, at

    def map(self, small: bool, size: int) -> tuple[int, int] | None:
        page, mapped = self.page(small), self.mapped[small]
        used = sorted(at for pool, at, _ in self.used.values() if pool == small)
        at = -1
        for hole in range(0, max(mapped, default=0) + 2 * page, page):
            if hole in mapped or (hole > 0 and hole - page not in mapped):
                continue  # no unmapped page that is the first behind others
            before = [begin for found, begin in self.gaps(small) if begin + found == hole]
            at = before[0] if before else hole
            if min((one for one in used if one >= at), default=math.inf) - at >= size:
                break
        wanted = [one for one in range(at // page * page, at + size, page) if one not in mapped]
        while wanted:  # neighbours all or none
            row = [one for index, one in enumerate(wanted) if one == wanted[0] + index * page]
            if self.reserved + len(row) * page > self.capacity:
                return None
            mapped |= dict.fromkeys(row, page)
            wanted = wanted[len(row) :]
        return next(gap for gap in self.gaps(small) if gap[1] == at)

    def drop_oversize(self, small: bool, size: int) -> bool:
        if self.limit == math.inf or self.conf.expandable_segments:
            return False
        wanted = max(size, self.limit)
        oversize = [gap for gap in self.gaps(small) if gap[0] >= self.limit]
        enough = [gap for gap in oversize if gap[0] >= wanted][:1]
        for found, at in enough or reversed(oversize):
            if wanted > 0:
                del self.mapped[small][at]
                wanted -= found
        return wanted <= 0

    def empty(self) -> None:
        for small, mapped in self.mapped.items():
            for found, at in self.gaps(small):
                for begin in [one for one in mapped if at <= one]:
                    if begin + mapped[begin] <= at + found:
                        del mapped[begin]


SIZES = st.one_of(
    st.sampled_from([1, 512, MIB - 512, MIB, MIB + 1, 10 * MIB, 19 * MIB, 20 * MIB, 33 * MIB]),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 45 * MIB),
)
STEPS = st.lists(
    st.one_of(
        SIZES,  # a request
        st.integers(-20, -1),  # the end of one of those that live
        st.sampled_from([-1, 0]),  # 0: empty_cache
    ),
    max_size=60,
)
CONFS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:32,max_non_split_rounding_mb:25",
    "expandable_segments:True,max_split_size_mb:20",
    "expandable_segments:True,large_segment_size_mb:14",
    "large_segment_size_mb:40,roundup_power2_divisions:4",
)


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("bound", [None, "capacity_bytes", "allowed_bytes"])
@settings(max_examples=60)
@given(steps=STEPS, bound_mib=st.integers(10, 150))
def test_like_a_model_without_blocks(
    conf: str, bound: str | None, steps: list[int], bound_mib: int
) -> None:
    bounds = {} if bound is None else {bound: bound_mib * MIB}
    model = allocator(conf, **bounds)
    plain = Plain(
        AllocatorSettings.parse(conf),
        bounds.get("capacity_bytes", math.inf),
        bounds.get("allowed_bytes", math.inf),
    )
    live: list[int] = []
    peaks = [0, 0]
    for key, step in enumerate(steps):
        if step > 0:
            fits = plain.allocate(key, step)
            try:
                block_bytes = model.allocate(key, step)
            except OutOfMemoryError:
                assert not fits
            else:
                assert fits
                assert block_bytes == plain.used[key][2]
                live.append(key)
        elif step == 0:
            plain.empty()
            model.empty_cache()
        elif live:
            gone = live.pop(step % len(live))
            del plain.used[gone]
            model.free(gone)
        assert model.allocated_bytes == plain.allocated
        assert model.reserved_bytes == plain.reserved
        assert model.retries == plain.retries
        peaks = [max(peaks[0], plain.allocated), max(peaks[1], plain.reserved)]
        assert model.peak_allocated_bytes == peaks[0]
        assert model.peak_reserved_bytes >= peaks[1]


@pytest.mark.parametrize("conf", [*CONFS, "garbage_collection_threshold:0.4"])
@given(steps=STEPS, seed=st.integers(0, 9))
def test_nothing_is_lost(conf: str, steps: list[int], seed: int) -> None:
    """Blocks suffice and are counted, and in the end all can be given back, wherever segments lie
    and whatever fails on the way.
    """
    model = allocator(conf, allowed_bytes=150 * MIB, addresses=shuffled(seed))
    live: dict[int, int] = {}
    for number, step in enumerate(steps):
        if step > 0:
            with suppress(OutOfMemoryError):
                live[number] = model.allocate(number, step)
                assert live[number] >= step
                assert live[number] % 512 == 0
        elif step == 0:
            model.empty_cache()
        elif live:
            key = list(live)[step % len(live)]
            assert model.block_bytes(key) == live.pop(key)
            model.free(key)
        assert model.allocated_bytes == sum(live.values()) <= model.reserved_bytes
        assert model.peak_allocated_bytes <= model.peak_reserved_bytes < 170 * MIB
    for key in live:
        model.free(key)
    model.empty_cache()
    assert (model.allocated_bytes, model.reserved_bytes) == (0, 0)


# against the real one


def streams() -> list[dict[str, Any]]:
    return json.loads(STREAMS.read_text())["streams"] if STREAMS.exists() else []


@pytest.mark.skipif(
    not STREAMS.exists(),
    reason=f"NOT TESTED against PyTorch: {STREAMS.name} is missing; on a GPU machine run "
    f"python tests/gpu/test_allocator_streams.py tests/data/{STREAMS.name}",
)
@pytest.mark.parametrize("stream", streams(), ids=lambda stream: stream["name"])
def test_recorded_on_a_gpu(stream: dict[str, Any]) -> None:
    model = CachingAllocator(
        AllocatorSettings.parse(stream["settings"]),
        allowed_bytes=stream["allowed_bytes"],
        addresses=stream["addresses"],
    )
    requests = 0
    for action, number in stream["events"]:
        if action == "allocate":
            model.allocate(requests, number)
            requests += 1
        elif action == "free":
            model.free(number)
        elif action == "empty_cache":
            model.empty_cache()
        else:
            with pytest.raises(OutOfMemoryError):
                model.allocate(-1, number)
    assert stream["expected"] == {
        "allocated": model.allocated_bytes,
        "peak_allocated": model.peak_allocated_bytes,
        "reserved": model.reserved_bytes,
        "peak_reserved": model.peak_reserved_bytes,
        "retries": model.retries,
    }
