"""What ``ceiling`` goes along: the values in order, where to begin, and how to find the last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_vramfit import catalog
from pytest_vramfit.cli.answer import WrongUseError
from pytest_vramfit.marker.values import shown
from pytest_vramfit.spec import ConfigValues, TrainSpec

AXES = ("seq", "batch", "rank", "model")
_SEQ_STEP = 64
_MOST = {"seq": 2**24, "batch": 2**20, "rank": 65_536}
"""As the marker has it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One keyword and its values, the one that needs least memory first."""

    name: str
    values: Sequence[int | str]
    start: int
    """The index of what the case itself has, or of the value below."""
    last: str
    """What the last value is, in words."""


def axis_of(name: str, spec: TrainSpec) -> Axis:
    """The axis through a case. Raises WrongUseError."""
    if name == "model":
        return _models(spec)
    values, last = _integers(name, spec.config)
    start = max(0, bisect_right(values, getattr(spec, name)) - 1)
    return Axis(name=name, values=values, start=start, last=last)


def _integers(name: str, config: ConfigValues) -> tuple[Sequence[int], str]:
    most = _MOST[name]
    if name != "seq":
        return range(1, most + 1), "the most that there is"
    longest = catalog.longest_sequence(config) or config.get("max_position_embeddings")
    if not isinstance(longest, int) or not 1 < longest < most:
        return range(_SEQ_STEP, most + 1, _SEQ_STEP), "the most that there is"
    steps = range(_SEQ_STEP, longest + 1, _SEQ_STEP)
    whole = longest % _SEQ_STEP == 0
    return steps if whole else [*steps, longest], "the longest sequence of the model"


def _models(spec: TrainSpec) -> Axis:
    model = catalog.find(spec.model)
    if model is None or model.config != spec.config:
        raise WrongUseError(
            f"--axis model needs a --model of the catalogue, and {shown(spec.model)} is none"
        )
    names = family(model.name)
    start = names.index(model.name)
    return Axis(name="model", values=names, start=start, last="the largest of its family")


def family(name: str) -> list[str]:
    """The models of the family of one of the catalogue, the smallest first."""
    model = catalog.find(name)
    assert model is not None
    return [one.name for one in catalog.family(model)]


def find_last(count: int, start: int, holds: Callable[[int], bool]) -> int:
    """The last index of ``count`` that holds, -1 where none does, if those that hold come first.

    From ``start`` by doubling, then by bisection: at most twice the logarithm of the count.
    """
    last, beyond, index = -1, count, start
    while beyond - last > 1:
        if holds(index):
            last = index
        else:
            beyond = index
        # values begin with their step: the double of the value of i is that of 2 i + 1
        index = min(2 * last + 1, count - 1) if beyond == count else (last + beyond) // 2
    return last
