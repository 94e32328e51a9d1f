"""What would make a case fit that does not: one change to it, else two, the gentlest first.

Nothing is predicted here: what a training step needs is asked of a callable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_vramfit.estimating.changes import CHANGES, Change, Kind, smaller_models
from pytest_vramfit.estimating.depth import layers_of, with_layers
from pytest_vramfit.spec import TrainSpec

LIMIT_S = 60.0
"""Of predictions for one case: none is begun later, counted from the first answer."""
_FEW, _MORE = 2, 4


class UnpredictableError(Exception):
    """A spec cannot be predicted; the message says why."""


class BrokenError(UnpredictableError):
    """Nor is it of use to ask for another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What a step needs."""

    fits: bool
    """For sure."""
    peak_allocated_bytes: int
    outside_allocator_bytes: int


Predict = Callable[[TrainSpec], Predicted]
"""What a spec's step needs. Raises UnpredictableError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """What would fit."""

    keywords: Mapping[str, Any]
    """What to change in the marker."""
    predicted: Predicted


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What would make a case fit, and how far that was looked for."""

    ended: Literal["complete", "out_of_time", "fits_already", "broken"]
    """``fits_already``: the case itself would fit, says the prediction."""
    suggestions: tuple[Suggestion, ...] = ()
    """The gentlest first."""
    reason: str = ""
    """Why it is broken."""


def advise(
    spec: TrainSpec,
    room_bytes: int,
    predict: Predict,
    clock: Callable[[], float] = time.monotonic,
) -> Advice:
    """What would make the step fit an allocator that may have ``room_bytes``.

    Of each kind of change the least that suffices. Where none does by itself, the first two that do
    together; a smaller model is no answer to how to train this one, so it does not count there.
    """
    if room_bytes <= 0:
        return Advice(ended="complete")
    try:
        if predict(spec).fits:
            return Advice(ended="fits_already")
    except UnpredictableError as error:
        return Advice(ended="broken", reason=str(error))
    found: list[Suggestion] = []
    ended: Literal["complete", "out_of_time", "broken"] = "complete"
    reason = ""
    try:
        for suggestion in _suggestions(spec, _Search(room_bytes, predict, clock)):
            found.append(suggestion)  # noqa: PERF402 (what was found outlives the error)
    except _OutOfTimeError:
        ended = "out_of_time"
    except BrokenError as error:
        ended, reason = "broken", str(error)
    # sought before two changes, which take longest
    found.sort(key=lambda one: "model" in one.keywords)
    return Advice(ended=ended, suggestions=tuple(found), reason=reason)


def _suggestions(spec: TrainSpec, search: _Search) -> Iterator[Suggestion]:
    one_suffices = False
    for kind in CHANGES:
        if found := search.gentlest([*kind(spec)]):
            one_suffices = True
            yield found
    smaller = search.gentlest([*smaller_models(spec)])
    if smaller is not None:
        yield smaller
    if one_suffices:
        return
    kinds = CHANGES if smaller else (*CHANGES, smaller_models)
    for number, later in enumerate(kinds):
        for earlier in kinds[:number]:
            if found := search.gentlest(_both(spec, earlier, later)):
                yield found
                return


def _both(spec: TrainSpec, earlier: Kind, later: Kind) -> list[Change]:
    """Two changes at a time, those first that have least of the later kind."""
    both = [
        (more, less, replace(second, keywords={**first.keywords, **second.keywords}))
        for less, first in enumerate(earlier(spec))
        for more, second in enumerate(later(first.spec))
    ]
    return [change for *_, change in sorted(both, key=lambda one: one[:2])]


class _OutOfTimeError(Exception):
    pass


class _Search:
    """Asks for predictions until time is over, and for as few large ones as it can."""

    def __init__(self, room_bytes: int, ask: Predict, clock: Callable[[], float]) -> None:
        self._room_bytes = room_bytes
        self._ask = ask
        self._clock = clock
        self._deadline = clock() + LIMIT_S
        self._answers: dict[str, Predicted | None] = {}

    def gentlest(self, changes: Sequence[Change]) -> Suggestion | None:
        """The first that fits, of changes of which the last needs least.

        Raises _OutOfTimeError and BrokenError.
        """
        if not changes or self._needs_too_much(changes[-1].spec):
            return None
        for change in changes:
            if not self._needs_too_much(change.spec):
                predicted = self._predicted(change.spec)
                if predicted is not None and predicted.fits:
                    return Suggestion(keywords=change.keywords, predicted=predicted)
        return None

    def _needs_too_much(self, spec: TrainSpec) -> bool:
        """Whether it surely does not fit, as far as two short models of the same layers tell.

        Each moment of a step needs so much more with every layer, and the peak is the largest of
        them: the line through two peaks is below those of more layers. So drawn they were up to
        0.2 % too high, and within 0.5 % of the room nothing fits for sure.
        """
        layers = layers_of(spec)
        if layers is None or layers <= _FEW + _MORE:
            return False
        few, more = (self._predicted(with_layers(spec, number)) for number in (_FEW, _MORE))
        if few is None or more is None:
            return False
        a_layer = (more.peak_allocated_bytes - few.peak_allocated_bytes) / (_MORE - _FEW)
        return more.peak_allocated_bytes + a_layer * (layers - _MORE) > self._room_bytes

    def _predicted(self, spec: TrainSpec) -> Predicted | None:
        """None where it cannot be predicted: such a change has no meaning for this model."""
        if spec.lengths == "full":
            # the second micro-batch has the first one's gradients beside it, as all others have
            spec = replace(spec, accumulation=min(2, spec.accumulation))
        if spec.digest not in self._answers:
            self._answers[spec.digest] = self._asked(spec)
        return self._answers[spec.digest]

    def _asked(self, spec: TrainSpec) -> Predicted | None:
        if self._clock() > self._deadline:
            raise _OutOfTimeError
        try:
            return self._ask(spec)
        except BrokenError:
            raise
        except UnpredictableError:
            return None
