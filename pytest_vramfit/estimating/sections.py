"""Where the trace of a model has more than that of the same model with a layer less."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from pytest_vramfit.estimating.traced import Traced
from pytest_vramfit.events import Action, Event


class IrregularError(Exception):
    """The traces do not tell what more layers would do."""


@dataclass(frozen=True, slots=True)
class Section:
    """Events of one layer, and where copies of them go into the shortest trace."""

    at: int
    length: int
    source: int
    """Where the next longer trace has its copy."""
    begin: int
    end: int
    """From there to there the shortest trace repeats them; ``at`` is in the middle."""


def keys_of(traces: Sequence[Traced]) -> list[list[int]]:
    """A number for each event, which is that of all events that look alike; a shape that not every
    trace has depends on the number of layers.
    """
    shapes = [{(one.made_by, one.phase, one.shape) for one in trace.blocks} for trace in traces]
    common = shapes[0].intersection(*shapes[1:])
    numbers: dict[Hashable, int] = {}

    def key(trace: Traced, event: Event) -> Hashable:
        action, number, _ = event
        if action is Action.MARK:
            return trace.marks[number]
        if action is Action.EMPTY_CACHE:
            return action
        block = trace.blocks[number]
        looks = (block.made_by, block.phase, block.shape)
        return (action, looks if looks in common else (*looks[:2], len(block.shape)))

    return [
        [numbers.setdefault(key(trace, event), len(numbers)) for event in trace.events]
        for trace in traces
    ]


def sections(short: Sequence[int], long: Sequence[int]) -> list[Section]:
    """What the longer trace has more of, as copies of what it has before."""
    found: list[Section] = []
    at = source = done = 0
    while True:
        agreeing = _agreeing(short, at, long, source)
        at, source = at + agreeing, source + agreeing
        if source == len(long):
            break
        lengths = [
            length
            for length in range(1, source + 1)
            if long[source] == long[source - length]
            and long[source : source + length] == long[source - length : source]
        ]
        if not lengths:
            raise IrregularError("a layer more is not a copy of those before")
        # of the lengths by which the rest agrees furthest, the shortest
        length = max(lengths, key=lambda one: (_agreeing(short, at, long, source + one), -one))
        repeated = 0
        while (
            at - repeated > done
            and short[at - repeated - 1] == long[source - repeated - 1 + length]
        ):
            repeated += 1
        back = repeated // 2
        found.append(Section(at - back, length, source - back, at - repeated, at))
        done = at - back
        source += length
    if at != len(short):
        raise IrregularError("the longer trace lacks what the shorter one has")
    return found


def _agreeing(a: Sequence[int], i: int, b: Sequence[int], j: int) -> int:
    """How far ``a`` from ``i`` on and ``b`` from ``j`` on are equal."""
    most = min(len(a) - i, len(b) - j)
    done, at_once = 0, 64
    while done < most:
        piece = min(at_once, most - done)
        if a[i + done : i + done + piece] == b[j + done : j + done + piece]:
            done, at_once = done + piece, 2 * at_once
        elif piece == 1:
            break
        else:
            at_once = piece // 2
    return done
