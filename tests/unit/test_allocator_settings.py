"""The settings of PyTorch's allocator: what is read, what is refused, and the sizes they make."""

from __future__ import annotations

import re

import pytest

from pytest_vramfit.estimating.allocator_settings import (
    MIB,
    AllocatorSettings,
    NotModelledError,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", AllocatorSettings()),
        ("expandable_segments:True", AllocatorSettings(expandable_segments=True)),
        ("expandable_segments:False", AllocatorSettings()),
        (" max_split_size_mb : 128 ,", AllocatorSettings(max_split_bytes=134_217_728)),
        ("large_segment_size_mb:11", AllocatorSettings(large_segment_bytes=11_534_336)),
        (
            "max_split_size_mb:20,max_non_split_rounding_mb:30",
            AllocatorSettings(max_split_bytes=20_971_520, max_non_split_rounding_bytes=31_457_280),
        ),
        (
            "garbage_collection_threshold:0.8,backend:native,pinned_use_background_threads:True",
            AllocatorSettings(garbage_collection_threshold=0.8),
        ),
        ("garbage_collection_threshold:8e-1", AllocatorSettings(garbage_collection_threshold=0.8)),
        ("max_split_size_mb:40,max_split_size_mb:50", AllocatorSettings(max_split_bytes=50 * MIB)),
        ("release_lock_on_cudamalloc:True,per_process_memory_fraction:1.0", AllocatorSettings()),
        ("throw_on_cudamalloc_oom:False,pinned_num_register_threads:8", AllocatorSettings()),
    ],
)
def test_settings(text: str, settings: AllocatorSettings) -> None:
    assert AllocatorSettings.parse(text) == settings


@pytest.mark.parametrize(
    ("text", "divisions"),
    [
        # as c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions of PyTorch
        # 2.13 answers for 1, 2, 4 MiB and so on up to 32 GiB
        ("4", (4,) * 16),
        ("[256:1,512:2,>:4]", (*(1,) * 9, 2, *(4,) * 6)),
        ("[64:8,256:4,1024:4,>:1]", (*(8,) * 7, 0, 4, 0, 4, *(1,) * 5)),
        ("[512:2,256:4]", (*(2,) * 8, 4, 2, *(0,) * 6)),
        ("[1:8]", (8, *(0,) * 15)),
        ("[1:0]", (0,) * 16),
        ("[>:4]", (0, *(4,) * 15)),
        ("[1048576:2]", (2,) * 16),
    ],
)
def test_roundup_divisions(text: str, divisions: tuple[int, ...]) -> None:
    settings = AllocatorSettings.parse(f"roundup_power2_divisions:{text}")
    assert settings == AllocatorSettings(roundup_divisions=divisions)


UNKNOWN = "is no setting of the allocator; did you mean"
FORM = "must be settings such as 'expandable_segments:True,max_split_size_mb:128'"
POWERS = "must be a power of two, or powers of two such as [256:1,512:2,>:4]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_splt_size_mb:128", f"max_splt_size_mb:128 {UNKNOWN} 'max_split_size_mb'?"),
        ("expandable:True", f"expandable:True {UNKNOWN} 'expandable_segments'?"),
        ("expandable_segments:true", "expandable_segments:true must be True or False"),
        ("max_split_size_mb:1.5", "max_split_size_mb:1.5 must be a whole number"),
        ("max_split_size_mb:-1", "max_split_size_mb:-1 must be a whole number"),
        ("max_split_size_mb:[40]", "max_split_size_mb:[40] must be a whole number"),
        ("max_split_size_mb:19", "max_split_size_mb:19 must be at least 20, a large segment"),
        (
            "max_split_size_mb:30,large_segment_size_mb:40",
            "max_split_size_mb:30 must be at least 40, a large segment",
        ),
        (
            "max_non_split_rounding_mb:19",
            "max_non_split_rounding_mb:19 must be at least 20, a large segment",
        ),
        ("large_segment_size_mb:10", "large_segment_size_mb:10 must be a whole number above 10"),
        ("large_segment_size_mb:x", "large_segment_size_mb:x must be a whole number"),
        (
            "garbage_collection_threshold:1",
            "garbage_collection_threshold:1 must be a number between 0 and 1",
        ),
        (
            "garbage_collection_threshold:0",
            "garbage_collection_threshold:0 must be a number between 0 and 1",
        ),
        (
            "garbage_collection_threshold:nan",
            "garbage_collection_threshold:nan must be a number between 0 and 1",
        ),
        ("roundup_power2_divisions:0", f"roundup_power2_divisions:0 {POWERS}"),
        ("roundup_power2_divisions:3", f"roundup_power2_divisions:3 {POWERS}"),
        ("roundup_power2_divisions:[3:4]", f"roundup_power2_divisions:[3:4] {POWERS}"),
        ("roundup_power2_divisions:[4:3]", f"roundup_power2_divisions:[4:3] {POWERS}"),
        ("roundup_power2_divisions:[4]", f"roundup_power2_divisions:[4] {POWERS}"),
        ("roundup_power2_divisions:[]", f"roundup_power2_divisions:[] {POWERS}"),
        ("backend:mine", "backend:mine must be native or cudaMallocAsync"),
        ("expandable_segments", f"'expandable_segments' {FORM}"),
        ("backend:native,a:[1:2", f"'a:[1:2' {FORM}"),
    ],
)
def test_wrong_settings(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        AllocatorSettings.parse(text)


def test_a_setting_like_no_other() -> None:
    """Then all are named."""
    with pytest.raises(
        ValueError, match=r"^x:1 is no setting of the allocator; it has expand.*ock"
    ):
        AllocatorSettings.parse("x:1")


@pytest.mark.parametrize(
    "setting",
    [
        "backend:cudaMallocAsync",
        "per_process_memory_fraction:0.5",
        "throw_on_cudamalloc_oom:True",
        "expandable_segments_reserve:0.5",
    ],
)
def test_what_is_not_modelled(setting: str) -> None:
    with pytest.raises(NotModelledError, match=f"^{setting} is not modelled$"):
        AllocatorSettings.parse(f"expandable_segments:True,{setting}")


@pytest.mark.parametrize(
    ("divisions", "request_bytes", "block_bytes"),
    [
        ("", 1, 512),
        ("", 512, 512),
        ("", 513, 1_024),
        ("", 5 * GIB + 1, 5 * GIB + 512),
        # four sizes between powers of two, for more than 4 * 512 bytes
        ("4", 1_200, 1_536),
        ("4", 2_048, 2_048),
        ("4", 2_049, 2_560),
        ("4", 5_000, 5_120),
        ("4", 5_120, 5_120),
        ("4", 7_169, 8_192),
        ("4", 5 * MIB + 1, 6 * MIB),
        ("4", 100 * GIB, 112 * GIB),
        ("1", 5_000, 5_120),
        ("1", 5_121, 5_632),
        ("[256:1,512:2,>:4]", 300 * MIB + 1, 300 * MIB + 512),
        ("[256:1,512:2,>:4]", 512 * MIB - 1, 512 * MIB),
        ("[256:1,512:2,>:4]", 512 * MIB + 1, 768 * MIB),
        ("[256:1,512:2,>:4]", 1024 * MIB + 1, 1280 * MIB),
        ("[1:2]", 1_537, 2_048),  # the first interval's, below 1 MiB too
        ("[1:2]", 3 * MIB + 1, 3 * MIB + 512),
    ],
)
def test_block_of_a_request(divisions: str, request_bytes: int, block_bytes: int) -> None:
    text = f"roundup_power2_divisions:{divisions}" if divisions else ""
    assert AllocatorSettings.parse(text).block_bytes(request_bytes) == block_bytes


@pytest.mark.parametrize(
    ("large", "block_bytes", "segment_bytes"),
    [
        (20, 512, 2 * MIB),
        (20, MIB, 2 * MIB),
        (20, MIB + 512, 20 * MIB),
        (20, 10 * MIB - 512, 20 * MIB),
        (20, 10 * MIB, 10 * MIB),
        (20, 10 * MIB + 512, 12 * MIB),
        (40, MIB, 2 * MIB),
        (40, MIB + 512, 40 * MIB),
        (40, 10 * MIB, 10 * MIB),
    ],
)
def test_segment_of_a_block(large: int, block_bytes: int, segment_bytes: int) -> None:
    settings = AllocatorSettings.parse(f"large_segment_size_mb:{large}")
    assert settings.segment_bytes(block_bytes) == segment_bytes
