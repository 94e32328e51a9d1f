"""What a recorder notes: allocations and frees in order, and whose the bytes are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Action(IntEnum):
    """What an event does."""

    ALLOCATE = 0
    FREE = 1
    EMPTY_CACHE = 2
    MARK = 3


BLOCK_BYTES = 512
"""The CUDA caching allocator's smallest block (kMinBlockSize in c10/core/AllocatorConfig.h)."""


def block_bytes(size_bytes: int) -> int:
    """So many bytes in whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


Event = tuple[Action, int, int]
"""An action, the number of its block or mark, and the bytes of an allocation."""


@dataclass(slots=True)
class Block:
    """One allocation."""

    made_by: object
    """The operation, which its text names."""
    shape: tuple[int, ...]
    phase: str
    """What was going on: ``load``, ``forward``, ``backward`` or ``optimizer``."""
    part: str | None = None
    """Of the ledger; None where it is told by the other fields."""


LEDGER = (
    "weights",
    "quantisation",
    "adapters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "workspace",
)
"""The parts of a peak. Weights are the base's, adapters beside them; workspace is what kernels take
for their own time, weights that are dequantised for a product among it, what they keep, and the
allocator's rounding.
"""


def part_of(block: Block, vocabulary: int) -> str:
    """Which part of the ledger it is; ``vocabulary``: the length of a token's logits."""
    if block.part is not None:
        return block.part
    if block.phase == "optimizer":
        return "optimizer"
    if str(block.made_by).startswith("bitsandbytes.dequantize"):
        return "workspace"
    if block.shape[-1:] == (vocabulary,):
        return "logits"
    return "activations"
