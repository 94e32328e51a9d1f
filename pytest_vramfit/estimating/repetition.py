"""The memory events of a model of many layers, from those of models of a few.

Layers that are alike leave the same events, one layer's after the other's, wherever the model goes
through them: as it is built, forward, backward, in the optimizer. Two traces that differ by a layer
show where; a third shows whose blocks are freed there, and what grows with the number of layers.
Nothing is assumed of the events but that: where they do not show it there is no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_vramfit.estimating.sections import IrregularError, keys_of, sections
from pytest_vramfit.estimating.traced import Traced, uncollected
from pytest_vramfit.events import Action, Block, Event


def with_more_layers(traces: tuple[Traced, Traced, Traced], more: int) -> Traced:
    """What the first would be with so many layers more, of which the others have one and two.

    Raises IrregularError.
    """
    with uncollected():
        return _Pattern(traces).repeated(more)


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
        keys = keys_of(traces)
        self._sections = sections(keys[0], keys[1])
        self._length = len(keys[0])
        self._places = [list(self._in_order(copies)) for copies in range(len(traces))]
        if keys[2] != [self._key(place, keys) for place in self._places[2]]:
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
        events: list[Event] = []
        blocks: list[Block] = []
        marks: list[str] = []
        alive: dict[_Place, int] = {}
        for place in self._in_order(copies):
            plan = self._plan(place)
            if isinstance(plan, _Allocation):
                block, size_bytes = plan.of(copies)
                alive[place] = len(blocks)
                events.append((Action.ALLOCATE, len(blocks), size_bytes))
                blocks.append(block)
            elif isinstance(plan, _Rule):
                number = alive.pop(self._in_trace(plan.place(place.copy, copies), copies), None)
                if number is None:
                    raise IrregularError("a block would be freed that is not there")
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

    def _key(self, place: _Place, keys: Sequence[Sequence[int]]) -> int:
        if place.section < 0:
            return keys[0][place.offset]
        return keys[1][self._sections[place.section].source + place.offset]

    def _plan(self, place: _Place) -> _Plan:
        if place.section < 0:
            return self._fixed[place.offset]
        return self._copied[place.section][place.offset]

    def _in_trace(self, place: _Place, copies: int) -> _Place:
        """The place by the name that it has in a trace with so many copies."""
        number, copy, offset = place
        if number < 0 or 0 <= copy < copies:
            return place
        section = self._sections[number]
        beyond = copy if copy < 0 else copy - copies
        return _Place(-1, 0, section.at + beyond * section.length + offset)

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


def _births(events: Sequence[Event]) -> dict[int, int]:
    return {
        number: position
        for position, (action, number, _) in enumerate(events)
        if action is Action.ALLOCATE
    }


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
