"""``estimate``: would this case fit a card."""

from __future__ import annotations

import argparse

from pytest_vramfit.cli import arguments, marker_arguments, prediction_words
from pytest_vramfit.cli.answer import Answer
from pytest_vramfit.cli.predictor import Predictor, holds, to_json


def add(commands: arguments.Commands) -> None:
    """Register it."""
    parser = arguments.subcommand(
        commands,
        "estimate",
        _estimate,
        "predict whether this case fits a card, and where its memory goes, without a GPU",
    )
    parser.epilog = (
        "exit status: 0 it fits for sure; 1 it does not, or that is undecided: it comes within "
        "half a percent of the limit, or cached memory is in the way; 2 there is no answer"
    )
    marker_arguments.add(parser)


def _estimate(arguments: argparse.Namespace) -> Answer:
    given = marker_arguments.given(arguments)
    claim = marker_arguments.claim_of(given)
    with Predictor() as predictor:
        case = predictor.predict(claim)
    return Answer(
        lines=(
            prediction_words.title(case),
            prediction_words.answer(case),
            "",
            *prediction_words.lines(case),
            *prediction_words.notes(given, case),
        ),
        json=to_json(case),
        holds=holds(case),
    )
