"""Events of many layers from those of a few, of made-up models whose events are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_vramfit.estimating.repetition import with_more_layers
from pytest_vramfit.estimating.sections import IrregularError
from pytest_vramfit.estimating.traced import Traced
from pytest_vramfit.events import Action, Block, Event


@dataclass
class Journal:
    """Notes events as a recorder does."""

    events: list[Event] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    def allocate(self, made_by: str, *shape: int, part: str | None = None) -> int:
        number = len(self.blocks)
        phase = self.marks[-1] if self.marks else "load"
        self.blocks.append(Block(made_by, shape, phase, part))
        size_bytes = 4
        for one in shape:
            size_bytes *= one
        self.events.append((Action.ALLOCATE, number, size_bytes))
        return number

    def free(self, number: int) -> None:
        self.events.append((Action.FREE, number, 0))

    def mark(self, name: str) -> None:
        self.events.append((Action.MARK, len(self.marks), 0))
        self.marks.append(name)

    def traced(self, managed_bytes: int = 0) -> Traced:
        return Traced(
            events=tuple(self.events),
            blocks=tuple(self.blocks),
            marks=tuple(self.marks),
            managed_bytes=managed_bytes,
            vocabulary=1000,
        )


@dataclass(frozen=True)
class Made:
    """A model, as hypothesis likes it."""

    weights: tuple[int, ...]
    """Of a layer: their widths."""
    kept: tuple[int, ...]
    """Of what a layer keeps for backward."""
    order: tuple[int, ...]
    """In which backward frees it."""
    first_is_odd: bool
    last_is_odd: bool

    def traced(self, layers: int) -> Traced:
        it = Journal()
        embedding = it.allocate("embedding", 1000, 8, part="weights")
        weights = [
            [it.allocate("linear", one, 8, part="weights") for one in self.weights]
            for _ in range(layers)
        ]
        head = it.allocate("linear", 1000, 8, part="weights")
        it.events.append((Action.EMPTY_CACHE, 0, 0))
        it.mark("forward")
        hidden = it.allocate("embed", 4, 8)
        kept = []
        for number in range(layers):
            if number == 0 and self.first_is_odd:
                it.free(it.allocate("odd", 3))
            mine = [it.allocate("act", 4, one) for one in self.kept]
            result = it.allocate("add", 4, 8)
            if number == layers - 1 and self.last_is_odd:
                it.free(it.allocate("odd", 5))
            it.free(hidden)
            hidden = result
            kept.append(mine)
        logits = it.allocate("linear", 4, 1000)
        it.mark("backward")
        gradient = it.allocate("mm", 4, 8)
        it.free(logits)
        it.free(hidden)
        gradients = []
        for mine in reversed(kept):
            for one in self.order:
                it.free(mine[one])
            gradients.append([it.allocate("mm", one, 8) for one in self.weights])
            following = it.allocate("mm", 4, 8)
            it.free(gradient)
            gradient = following
        it.free(gradient)
        it.mark("optimizer")
        norms = it.allocate("stack", layers * len(self.weights) + 2)
        it.free(norms)
        for mine in weights:
            for one in mine:
                it.allocate("zeros_like", *it.blocks[one].shape, part="optimizer")
        for mine in gradients:
            for one in mine:
                it.free(one)
        it.free(head)
        it.free(embedding)
        return it.traced(layers * 100 + 7)


WIDTHS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def made(draw: st.DrawFn) -> Made:
    kept = draw(WIDTHS)
    return Made(
        weights=draw(WIDTHS),
        kept=kept,
        order=tuple(draw(st.permutations(range(len(kept))))),
        first_is_odd=draw(st.booleans()),
        last_is_odd=draw(st.booleans()),
    )


def shortest(traced: Callable[[int], Traced], first: int) -> tuple[Traced, Traced, Traced]:
    return traced(first), traced(first + 1), traced(first + 2)


@given(model=made(), first=st.integers(4, 6), more=st.integers(0, 30))
def test_more_layers_are_as_if_traced(model: Made, first: int, more: int) -> None:
    assert with_more_layers(shortest(model.traced, first), more) == model.traced(first + more)


@given(model=made(), more=st.integers(0, 30))
def test_of_two_layers_all_may_be_odd_but_no_answer_is_wrong(model: Made, more: int) -> None:
    try:
        repeated = with_more_layers(shortest(model.traced, 2), more)
    except IrregularError:
        return
    assert repeated == model.traced(2 + more)


def refused(traced: Callable[[int], Traced]) -> str:
    with pytest.raises(IrregularError) as caught:
        with_more_layers(shortest(traced, 3), 5)
    return str(caught.value)


def test_what_grows_with_the_square_of_the_layers() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        for _ in range(layers):
            it.allocate("linear", 8, 8)
        it.allocate("stack", layers * layers)
        return it.traced()

    assert refused(traced) == "something does not grow evenly with the number of layers"


def test_layers_that_differ() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        for _ in range(layers):
            it.allocate("linear", 8, layers)
        return it.traced()

    assert refused(traced) == "a layer is not like the one before"


def test_layers_that_come_before_those_there_are() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        it.allocate("linear", 8, 8)
        for number in range(3, layers):
            it.allocate(f"of layer {number}", 8)
        return it.traced()

    assert refused(traced) == "a layer more is not a copy of those before"


def test_a_shorter_trace_that_has_more() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        for _ in range(9 - layers):
            it.allocate("linear", 8, 8)
        return it.traced()

    assert refused(traced) == "the longer trace lacks what the shorter one has"


def test_managed_memory_that_does_not_grow_evenly() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        for _ in range(layers):
            it.allocate("linear", 8, 8)
        return it.traced(2**layers)

    assert refused(traced) == "something does not grow evenly with the number of layers"


def test_what_belongs_to_another_part_of_the_ledger() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        for _ in range(layers):
            it.allocate("linear", 8, 8, part="weights")
        it.allocate("head", 8, 8, part="weights" if layers % 2 else "adapters")
        return it.traced()

    assert refused(traced) == "a block belongs to several parts of the ledger"


def test_whose_block_is_freed_depends_on_nothing_known() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        numbers = [it.allocate("linear", 8, 8) for _ in range(layers)]
        it.mark("then")
        it.free(numbers[{3: 0, 4: 2, 5: 1}.get(layers, 0)])
        return it.traced()

    assert refused(traced) == "whose block is freed does not follow from the number of layers"


def test_a_third_trace_of_another_model() -> None:
    def traced(layers: int) -> Traced:
        it = Journal()
        for _ in range(layers if layers < 5 else 9):
            it.allocate("linear", 8, 8)
        return it.traced()

    assert refused(traced) == "the third trace is not the second with a layer more"
