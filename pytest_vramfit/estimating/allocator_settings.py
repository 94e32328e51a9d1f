"""The settings of PyTorch's CUDA caching allocator, as ``PYTORCH_ALLOC_CONF`` gives them.

Sources: c10/core/AllocatorConfig.h and .cpp, c10/cuda/CUDAAllocatorConfig.h and .cpp; the sizes
from ``round_size`` and ``get_allocation_size`` in c10/cuda/CUDACachingAllocator.cpp. Read at
PyTorch 2.13 and in mid-2026's main.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_vramfit.events import BLOCK_BYTES, block_bytes

MIB = 2**20
LARGEST_SMALL = MIB
"""Bytes; kSmallSize. Requests up to it go to the small pool."""
SMALL_SEGMENT = 2 * MIB
"""Bytes; kSmallBuffer, the segments (or pages) of the small pool."""
_OWN_SEGMENT_FROM = 10 * MIB
"""Bytes; kMinLargeAlloc. Requests from it on get a segment of their size."""
_SEGMENT_STEP = 2 * MIB
"""Bytes; kRoundLarge."""
_INTERVALS = 16
"""From 1 MiB to 64 GiB, by powers of two; what is below and above has the first and the last."""


class NotModelledError(Exception):
    """Valid settings whose effect on memory is not modelled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorSettings:
    """What the settings mean in bytes. The defaults are PyTorch's."""

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    """Blocks from this size on are oversize: never split, and only for requests as large."""
    max_non_split_rounding_bytes: int | None = None
    """By how much an oversize block must not exceed its request; None: by a large segment."""
    large_segment_bytes: int = 20 * MIB
    """The segment for requests of 1 to 10 MiB, and an expandable segment's large page."""
    roundup_divisions: tuple[int, ...] = (0,) * _INTERVALS
    """For requests by size, from 1 MiB to 64 GiB: how many sizes there are from one power of two
    up to the next. 0 or 1: all multiples of 512 bytes.
    """
    garbage_collection_threshold: float = 0.0
    """The share of the allowed memory that starts a collection; 0: never."""

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read ``"expandable_segments:True,max_split_size_mb:128"``; of equal keys the last counts.

        Raises ValueError, one sentence with the key and the value, for what PyTorch would refuse,
        and NotModelledError for what only this model cannot follow. Settings of host memory and of
        locks are read over. In ``roundup_power2_divisions``, ``>`` means the intervals after the
        last one named, as in PyTorch 2.13; it included that one in older versions.
        """
        given = dict(_pairs(text))
        fields: dict[str, Any] = {}
        for key, value in given.items():
            if key not in _SETTINGS:
                raise ValueError(_unknown(key, value))
            field, read = _SETTINGS[key]
            try:
                fields[field] = read(value)
            except ValueError as error:
                raise ValueError(f"{key}:{value} must be {error}") from None
            except NotModelledError:
                raise NotModelledError(f"{key}:{value} is not modelled") from None
        fields.pop(_IGNORED, None)
        settings = cls(**fields)
        for key, field in _AT_LEAST_A_SEGMENT.items():
            size_bytes = getattr(settings, field)
            if size_bytes is not None and size_bytes < settings.large_segment_bytes:
                least = settings.large_segment_bytes // MIB
                raise ValueError(f"{key}:{given[key]} must be at least {least}, a large segment")
        return settings

    def block_bytes(self, request_bytes: int) -> int:
        """The bytes that a request needs of a block (``round_size``)."""
        if request_bytes > BLOCK_BYTES:
            interval = request_bytes.bit_length() - MIB.bit_length()
            divisions = self.roundup_divisions[min(max(interval, 0), _INTERVALS - 1)]
            if divisions > 1 and request_bytes > BLOCK_BYTES * divisions:
                floor = 1 << (request_bytes.bit_length() - 1)
                return _rounded(request_bytes, floor // divisions)
        return block_bytes(request_bytes)

    def segment_bytes(self, block_bytes: int) -> int:
        """The bytes of a new segment for such a block (``get_allocation_size``)."""
        if block_bytes <= LARGEST_SMALL:
            return SMALL_SEGMENT
        if block_bytes < _OWN_SEGMENT_FROM:
            return self.large_segment_bytes
        return _rounded(block_bytes, _SEGMENT_STEP)


def _rounded(size_bytes: int, step_bytes: int) -> int:
    return -(-size_bytes // step_bytes) * step_bytes


_PAIR = re.compile(r"([^:,\[\]]+):(\[[^\[\]]*\]|[^:,\[\]]+)(?:,|$)")


def _pairs(text: str) -> list[tuple[str, str]]:
    """Keys and values, which may be lists in brackets; blanks mean nothing."""
    bare = "".join(text.split())
    pairs, position = [], 0
    while position < len(bare):
        match = _PAIR.match(bare, position)
        if match is None:
            raise ValueError(
                f"{bare[position:]!r} must be settings such as "
                "'expandable_segments:True,max_split_size_mb:128'"
            )
        pairs.append((match[1], match[2]))
        position = match.end()
    return pairs


def _unknown(key: str, value: str) -> str:
    near = difflib.get_close_matches(key, _SETTINGS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(_SETTINGS)}"
    return f"{key}:{value} is no setting of the allocator; {hint}"


def _digits(value: str) -> int | None:
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value) else None


def _flag(value: str) -> bool:
    if value not in {"True", "False"}:
        raise ValueError("True or False")
    return value == "True"


def _mib(value: str) -> int:
    """The bytes of a number of MiB, which is what PyTorch's ``_mb`` means."""
    number = _digits(value)
    if number is None:
        raise ValueError("a whole number")
    return number * MIB


def _large_segment(value: str) -> int:
    size_bytes = _mib(value)
    if size_bytes <= _OWN_SEGMENT_FROM:
        raise ValueError("a whole number above 10")
    return size_bytes


def _share(value: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+(e-?[0-9]+)?", value) or not 0 < float(value) < 1:
        raise ValueError("a number between 0 and 1")
    return float(value)


def _divisions(value: str) -> tuple[int, ...]:
    """``4`` for all intervals, or ``[256:1,512:2,>:4]`` by the intervals' lower ends in MiB.

    The first end named counts for all intervals below it too; those left out have no divisions.
    """
    if not value.startswith("["):
        return (_power_of_two(value),) * _INTERVALS
    divisions = [0] * _INTERVALS
    first, last = True, 0
    for item in value[1:-1].split(","):
        end, _, number = item.partition(":")
        count = 0 if number == "0" else _power_of_two(number)
        if end == ">":
            divisions[last + 1 :] = [count] * (_INTERVALS - last - 1)
            continue
        last = min(_power_of_two(end).bit_length(), _INTERVALS) - 1
        if first:
            divisions[:last] = [count] * last
            first = False
        divisions[last] = count
    return tuple(divisions)


def _power_of_two(value: str) -> int:
    number = _digits(value)
    if not number or number & (number - 1):
        raise ValueError("a power of two, or powers of two such as [256:1,512:2,>:4]")
    return number


def _backend(value: str) -> None:
    if value in {"cudaMallocAsync", "hipMallocAsync"}:
        raise NotModelledError
    if value != "native":
        raise ValueError("native or cudaMallocAsync")


def _only(*harmless: str) -> Callable[[str], None]:
    """Takes no value that changes something."""

    def read(value: str) -> None:
        if value not in harmless:
            raise NotModelledError

    return read


_IGNORED = ""
"""The field of what is checked, but not kept."""
_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "expandable_segments": ("expandable_segments", _flag),
    "max_split_size_mb": ("max_split_bytes", _mib),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _mib),
    "large_segment_size_mb": ("large_segment_bytes", _large_segment),
    "roundup_power2_divisions": ("roundup_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "backend": (_IGNORED, _backend),
    "per_process_memory_fraction": (_IGNORED, _only("1", "1.0")),
    "throw_on_cudamalloc_oom": (_IGNORED, _only("False")),
    "expandable_segments_reserve": (_IGNORED, _only()),
    "expandable_segments_reserve_by_class": (_IGNORED, _only()),
    **dict.fromkeys(
        (
            "graph_capture_record_stream_reuse",
            "pinned_free_catch_all",
            "pinned_max_cached_size_mb",
            "pinned_max_round_threshold_mb",
            "pinned_num_register_threads",
            "pinned_reserve_segment_size_mb",
            "pinned_use_background_threads",
            "pinned_use_cuda_host_register",
            "pinned_use_hip_host_register",
            "release_lock_on_cudamalloc",
            "release_lock_on_hipmalloc",
        ),
        (_IGNORED, str),
    ),
}
_AT_LEAST_A_SEGMENT = {
    "max_split_size_mb": "max_split_bytes",
    "max_non_split_rounding_mb": "max_non_split_rounding_bytes",
}
