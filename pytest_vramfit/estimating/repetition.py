"""The memory events of a model of many layers, from those of models of a few.

Layers that are alike leave the same events, one layer's after the other's, wherever the model goes
through them: as it is built, forward, backward, in the optimizer. Two traces that differ by a layer
show where; a third shows whose blocks are freed there, and what grows with the number of layers.
Nothing is assumed of the events but that: where they do not show it there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from pytest_vramfit.estimating.traced import Traced, uncollected
from pytest_vramfit.events import Action, Block, Event


class IrregularError(Exception):
    """The traces do not tell what more layers would do."""


def with_more_layers(traces: tuple[Traced, Traced, Traced], more: int) -> Traced:
    """What the first would be with so many layers more, of which the others have one and two.

    Raises IrregularError.
    """
    with uncollected():
        return _Pattern(traces).repeated(more)


@dataclass(frozen=True, slots=True)
class _Section:
    """Events of one layer, and where copies of them go into the shortest trace."""

    at: int
    length: int
    source: int
    """Where the next longer trace has its copy."""
    begin: int
    end: int
    """From there to there the shortest trace repeats them; ``at`` is in the middle."""


class _Place(NamedTuple):
    """Where an event is, whatever the number of layers."""

    section: int
    """-1: none, but as far from the begin of the shortest trace as ``offset``."""
    copy: int
    """From 0; below it, and from the number of copies on, what the shortest trace has of them."""
    offset: int


_COUNTED: tuple[Callable[[int, int], int], ...] = (
    lambda copy, copies: 0,  # noqa: ARG005
    lambda copy, copies: copies,  # noqa: ARG005
    lambda copy, copies: copy,  # noqa: ARG005
    lambda copy, copies: copies - copy,
)
"""What the copy whose block is freed may depend on: nothing, or how many copies there are, or which
one frees it, counted from the first or, as backward goes, from the last.
"""


class _Rule(NamedTuple):
    """Whose block an event frees."""

    section: int
    offset: int
    counted: Callable[[int, int], int]
    shift: int

    def place(self, copy: int, copies: int) -> _Place:
        """The place of the allocation, for the event of one copy of so many."""
        return _Place(self.section, self.counted(copy, copies) + self.shift, self.offset)


class _Seen(NamedTuple):
    """One event of a trace; of what is in several traces or copies there are several."""

    trace: int
    """Which of them; it has as many copies."""
    copy: int
    event: Event
    names: frozenset[_Place]
    """Of a free: all that the place of the allocation may be called."""


@dataclass(frozen=True, slots=True)
class _Allocation:
    block: Block
    """In the shortest trace; of a copy, in any."""
    size_bytes: int
    more_bytes: int = 0
    """With each layer."""
    more_shape: tuple[int, ...] = ()

    def of(self, copies: int) -> tuple[Block, int]:
        """The block and its bytes with so many copies."""
        if not any(self.more_shape):
            return self.block, self.size_bytes + copies * self.more_bytes
        shape = tuple(
            one + copies * more for one, more in zip(self.block.shape, self.more_shape, strict=True)
        )
        return replace(self.block, shape=shape), self.size_bytes + copies * self.more_bytes


_Plan = _Allocation | _Rule | Event
"""What an event is with any number of copies."""


class _Pattern:
    """What three traces have in common, each of which has a layer more than the one before."""

    def __init__(self, traces: tuple[Traced, Traced, Traced]) -> None:
        self._traces = traces
        keys = _keys(traces)
        self._sections = _sections(keys[0], keys[1])
        self._length = len(keys[0])
        self._places = [list(self._in_order(copies)) for copies in range(len(traces))]
        if [len(one) for one in self._places] != [len(one) for one in keys]:
            raise IrregularError("the third trace is not the second with a layer more")
        self._at = [{place: position for position, place in enumerate(one)} for one in self._places]
        self._born = [_births(one.events) for one in traces]
        self._fixed = [
            self._planned(
                [self._seen(trace, _Place(-1, 0, position)) for trace in range(3)], _growth
            )
            for position in range(self._length)
        ]
        self._copied = [
            [
                self._planned(self._seen_copies(number, offset), _sameness)
                for offset in range(one.length)
            ]
            for number, one in enumerate(self._sections)
        ]
        self._managed_bytes, self._more_managed_bytes = _growth(
            [one.managed_bytes for one in traces]
        )

    def repeated(self, copies: int) -> Traced:
        """The events with so many copies."""
        first = self._traces[0]
        numbers = _Numbers(self._sections, self._fixed, self._copied, copies)
        alive: set[int] = set()
        events: list[Event] = []
        blocks: list[Block] = []
        marks: list[str] = []
        for place, plan in self._plans(copies):
            if isinstance(plan, _Allocation):
                block, size_bytes = plan.of(copies)
                alive.add(len(blocks))
                events.append((Action.ALLOCATE, len(blocks), size_bytes))
                blocks.append(block)
            elif isinstance(plan, _Rule):
                number = numbers.of(plan.place(place.copy, copies))
                if number not in alive:
                    raise IrregularError("a block would be freed that is not there")
                alive.remove(number)
                events.append((Action.FREE, number, 0))
            elif plan[0] is Action.MARK:
                events.append((Action.MARK, len(marks), 0))
                marks.append(first.marks[plan[1]])
            else:
                events.append(plan)
        return Traced(
            events=tuple(events),
            blocks=tuple(blocks),
            marks=tuple(marks),
            managed_bytes=self._managed_bytes + copies * self._more_managed_bytes,
            vocabulary=first.vocabulary,
        )

    def _in_order(self, copies: int) -> Iterator[_Place]:
        last = 0
        for number, section in enumerate(self._sections):
            yield from (_Place(-1, 0, position) for position in range(last, section.at))
            for copy in range(copies):
                yield from (_Place(number, copy, offset) for offset in range(section.length))
            last = section.at
        yield from (_Place(-1, 0, position) for position in range(last, self._length))

    def _plans(self, copies: int) -> Iterator[tuple[_Place, _Plan]]:
        for place in self._in_order(copies):
            if place.section < 0:
                yield place, self._fixed[place.offset]
            else:
                yield place, self._copied[place.section][place.offset]

    def _seen(self, trace: int, place: _Place) -> _Seen:
        event = self._traces[trace].events[self._at[trace][place]]
        names: frozenset[_Place] = frozenset()
        if event[0] is Action.FREE:
            names = frozenset(self._names(self._places[trace][self._born[trace][event[1]]], trace))
        return _Seen(trace, place.copy, event, names)

    def _names(self, place: _Place, copies: int) -> Iterator[_Place]:
        """All that a place may be called: the shortest trace has copies of some sections, too."""
        yield place
        if place.section >= 0:
            return
        for number, section in enumerate(self._sections):
            if section.begin <= place.offset < section.end:
                copy, offset = divmod(place.offset - section.at, section.length)
                yield _Place(number, copy if copy < 0 else copy + copies, offset)

    def _seen_copies(self, section: int, offset: int) -> list[_Seen]:
        first, second = _Place(section, 0, offset), _Place(section, 1, offset)
        return [self._seen(1, first), self._seen(2, first), self._seen(2, second)]

    def _planned(
        self, seen: Sequence[_Seen], growth: Callable[[Sequence[int]], tuple[int, int]]
    ) -> _Plan:
        actions = {one.event[0] for one in seen}
        if len(actions) > 1:
            raise IrregularError("what is allocated here is freed there")
        if Action.FREE in actions:
            return _rule(seen)
        if Action.ALLOCATE not in actions:
            return seen[0].event
        blocks = [self._traces[one.trace].blocks[one.event[1]] for one in seen]
        if len({one.part for one in blocks}) > 1:
            raise IrregularError("a block belongs to several parts of the ledger")
        size_bytes, more_bytes = growth([one.event[2] for one in seen])
        dimensions = [growth(one) for one in zip(*(one.shape for one in blocks), strict=True)]
        return _Allocation(blocks[0], size_bytes, more_bytes, tuple(more for _, more in dimensions))


class _Numbers:
    """The blocks' numbers in a trace with so many copies."""

    def __init__(
        self,
        sections: Sequence[_Section],
        fixed: Sequence[_Plan],
        copied: Sequence[Sequence[_Plan]],
        copies: int,
    ) -> None:
        self._sections = sections
        self._copies = copies
        self._fixed = _allocations_before(fixed)
        self._offsets = [_allocations_before(one) for one in copied]
        self._of_copy = [one[-1] for one in self._offsets]
        before = [0, *accumulate(copies * one for one in self._of_copy)]
        self._first = [
            self._fixed[section.at] + copied_before
            for section, copied_before in zip(sections, before, strict=False)
        ]
        ends = iter([*(one.at for one in sections), len(fixed)])
        end = next(ends)
        number = 0
        for position in range(len(fixed)):
            while position >= end:
                number, end = number + 1, next(ends)
            self._fixed[position] += before[number]

    def of(self, place: _Place) -> int:
        """The number of the block that is allocated there."""
        number, copy, offset = place
        if number < 0:
            return self._fixed[offset]
        if 0 <= copy < self._copies:
            return (
                self._first[number] + copy * self._of_copy[number] + self._offsets[number][offset]
            )
        section = self._sections[number]
        return self._fixed[
            section.at + (copy if copy < 0 else copy - self._copies) * section.length + offset
        ]


def _allocations_before(plans: Sequence[_Plan]) -> list[int]:
    return [0, *accumulate(isinstance(one, _Allocation) for one in plans)]


def _births(events: Sequence[Event]) -> dict[int, int]:
    return {
        number: position
        for position, (action, number, _) in enumerate(events)
        if action is Action.ALLOCATE
    }


def _keys(traces: Sequence[Traced]) -> list[list[int]]:
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


def _sections(short: Sequence[int], long: Sequence[int]) -> list[_Section]:
    """What the longer trace has more of, as copies of what it has before."""
    found: list[_Section] = []
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
        found.append(_Section(at - back, length, source - back, at - repeated, at))
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


def _rule(seen: Sequence[_Seen]) -> _Rule:
    first, *others = seen
    for name in sorted(first.names):
        for counted in _COUNTED if name.section >= 0 else _COUNTED[:1]:
            shift = name.copy - counted(first.copy, first.trace)
            rule = _Rule(name.section, name.offset, counted, shift)
            if all(rule.place(one.copy, one.trace) in one.names for one in others):
                return rule
    raise IrregularError("whose block is freed does not follow from the number of layers")


def _growth(values: Sequence[int]) -> tuple[int, int]:
    """The first of three values, and by how much each is more than the one before."""
    first, second, third = values
    if third - second != second - first:
        raise IrregularError("something does not grow evenly with the number of layers")
    return first, second - first


def _sameness(values: Sequence[int]) -> tuple[int, int]:
    """As :func:`_growth`, of what must not grow."""
    if len({*values}) > 1:
        raise IrregularError("a layer is not like the one before")
    return values[0], 0
