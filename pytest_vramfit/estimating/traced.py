"""What a trace leaves: the memory events of building a model and of its first steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Action(IntEnum):
    """What an event does."""

    ALLOCATE = 0
    FREE = 1
    EMPTY_CACHE = 2
    MARK = 3


Event = tuple[Action, int, int]
"""An action, the number of its block or mark, and the bytes of an allocation."""


@dataclass(slots=True)
class Block:
    """One allocation."""

    made_by: str
    """The operation."""
    shape: tuple[int, ...]
    dtype: str
    phase: str
    """What was going on: ``load``, ``forward``, ``backward`` or ``optimizer``."""
    part: str | None = None
    """Of the ledger; None where it is told by the other fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """All events in order, with what they are about."""

    events: tuple[Event, ...]
    blocks: tuple[Block, ...]
    marks: tuple[str, ...]
    """``weights``, ``loaded``, ``settled``, then the begin and end of each phase."""
    managed_bytes: int
    """Optimizer states in managed memory, which no event is about."""
    vocabulary: int
    """The length of a token's logits."""
