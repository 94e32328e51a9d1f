"""What a trace leaves: the memory events of building a model and of its first steps."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_vramfit.events import Block, Event


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
