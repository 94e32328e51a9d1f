"""``ceiling``: the most that fits a card."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from pytest_vramfit.cli import arguments, marker_arguments, prediction_words
from pytest_vramfit.cli.answer import Answer, WrongUseError, table
from pytest_vramfit.cli.axes import AXES, Axis, axis_of, family, find_last
from pytest_vramfit.cli.prediction_words import memory_of
from pytest_vramfit.cli.predictor import Predictor, fit_of, holds, to_json
from pytest_vramfit.reporting import figures
from pytest_vramfit.verdict import Case


def add(commands: arguments.Commands) -> None:
    """Register it."""
    parser = arguments.subcommand(
        commands,
        "ceiling",
        _ceiling,
        "find the largest value of one axis with which this case fits a card, without a GPU",
    )
    parser.epilog = (
        "exit status: 0 a value fits for sure; 1 none does; 2 there is no answer. A value of which "
        "that is undecided does not count as fitting"
    )
    parser.add_argument(
        "--axis",
        choices=AXES,
        required=True,
        help="sequences in steps of 64 up to the longest of the model, batch or rank by 1, or the "
        "models of the catalogue that are of the family of --model; the search begins with what "
        "the case has itself",
    )
    marker_arguments.add(parser)


def _ceiling(arguments: argparse.Namespace) -> Answer:
    given = marker_arguments.given(arguments)
    if arguments.axis == "model" and "model" not in given:
        raise WrongUseError(
            "--axis model needs a --model, whose family is tried: Qwen2.5-7B stands for "
            + ", ".join(family("Qwen2.5-7B"))
        )
    axis = axis_of(arguments.axis, marker_arguments.claim_of(given).spec)
    tried: dict[int, Case] = {}
    with Predictor() as predictor:

        def fits(index: int) -> bool:
            claim = marker_arguments.claim_of({**given, axis.name: axis.values[index]})
            tried[index] = predictor.predict(claim)
            return fit_of(tried[index]) == "fits"

        last = find_last(len(axis.values), axis.start, fits)
    values = {index: axis.values[index] for index in sorted(tried)}
    edge = tried.get(last)
    return Answer(
        lines=(
            *_lines(axis, last, tried),
            *prediction_words.notes(given, tried[max(last, 0)]),
        ),
        json={
            "axis": axis.name,
            "largest": values.get(last),
            "next": values.get(last + 1),
            "holds": edge is not None and holds(edge),
            "tried": [{"value": value, **to_json(tried[i])} for i, value in values.items()],
        },
        holds=edge is not None and holds(edge),
    )


def _lines(axis: Axis, last: int, tried: Mapping[int, Case]) -> Iterator[str]:
    edge = tried[max(last, 0)]
    yield prediction_words.title(edge)
    if last < 0:
        yield f"no {axis.name} fits, not even {_shown(axis.values[0])}"
        yield prediction_words.answer(edge)
    elif last + 1 in tried:
        above = tried[last + 1]
        is_ = "is " if fit_of(above) == "undecided" else ""
        yield (
            f"{axis.name} {_shown(axis.values[last])} is the largest that fits; "
            f"{_shown(axis.values[last + 1])} {is_}{prediction_words.answer(above)}"
        )
    else:
        yield f"{axis.name} {_shown(axis.values[last])} fits, and is {axis.last}"
    yield ""
    head = (axis.name, "", "peak allocated", "peak reserved, at most")
    rows = [_row(axis.values[index], tried[index]) for index in sorted(tried)]
    yield from table([head, *rows], right=(0, 2, 3))
    room = figures.mib(prediction_words.room_bytes(edge))
    yield f"the allocator can have {room}: what is usable, less headroom and what is outside"


def _row(value: int | str, case: Case) -> tuple[str, ...]:
    memory, prediction = memory_of(case), case.measurement.prediction
    assert prediction is not None
    return (
        _shown(value),
        fit_of(case),
        figures.mib(memory.peak_allocated_bytes),
        figures.mib(max(prediction.reserved_bytes)),
    )


def _shown(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"
