"""What a trace leaves: the memory events of building a model and of its first steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_vramfit.events import Action, Block, Event, block_bytes

_LAST_OF_STEP = "optimizer ends"


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

    def most_alive_bytes(self) -> int:
        """The most bytes alive at a time up to the end of the steps, in whole blocks: no allocator
        does with less.
        """
        sizes: dict[int, int] = {}
        alive = most = most_in_steps = 0
        for action, number, size_bytes in self.events:
            if action is Action.ALLOCATE:
                sizes[number] = block_bytes(size_bytes)
                alive += sizes[number]
                most = max(most, alive)
            elif action is Action.FREE:
                alive -= sizes[number]
            elif action is Action.MARK and self.marks[number] == _LAST_OF_STEP:
                most_in_steps = most
        return most_in_steps


@contextmanager
def uncollected() -> Iterator[None]:
    """Within it Python's collector of cycles rests: it would go through all events of a trace again
    and again, which have none.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
