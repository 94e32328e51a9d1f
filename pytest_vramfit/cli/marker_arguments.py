"""The marker's keywords as arguments: ``--max-grad-norm 1`` for ``max_grad_norm=1``."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pytest_vramfit import catalog
from pytest_vramfit.catalog import gpus
from pytest_vramfit.cli.answer import WrongUseError
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.marker.elsewhere import ELSEWHERE
from pytest_vramfit.marker.keywords import KEYWORDS, MarkerError
from pytest_vramfit.spec import Claim

_LISTS = ("targets", "modules_to_save", "require", "phases")
_LITERALS = {"true": True, "false": False, "none": None}
_HELP = {
    "model": "a name of the catalogue, a folder with a config.json, a hub id, or a JSON object of "
    "config values",
    "card": "a GPU by its name, such as 'RTX 5070 Ti', or a size such as 16303MiB",
    "step_args": "a JSON object",
}
"""Of keywords whose reader takes anything, or says only half of what it takes."""
_NAMED = re.compile(rf"'[^']*'|\b({'|'.join(KEYWORDS)})=|^({'|'.join(KEYWORDS)}):")
"""A keyword in a sentence, outside of what a user wrote."""


def add(parser: argparse.ArgumentParser) -> None:
    """Register an argument for each keyword, and a hint for each name that other tools have."""
    parser.allow_abbrev = False  # else a mistyped name would be said to mean another tool's
    parser.usage = "%(prog)s --model VALUE --card VALUE [--NAME VALUE ...] [--json]"
    group = parser.add_argument_group(
        "the case",
        "the marker's keywords, with its defaults (docs/marker.md); true, false and none as such, "
        "lists with commas",
    )
    for name in KEYWORDS:
        group.add_argument(
            argument(name),
            dest=name,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=_accepted(name).replace("%", "%%"),
        )
    parser.add_argument_group("models of the catalogue", ", ".join(catalog.names()))
    parser.add_argument_group("cards of the catalogue", ", ".join(gpus.names()))
    for other in ELSEWHERE:
        spellings = {argument(other), f"--{other}"}
        parser.add_argument(*spellings, nargs="?", action=_Elsewhere, help=argparse.SUPPRESS)


def argument(name: str) -> str:
    """``--max-grad-norm``."""
    return f"--{name.replace('_', '-')}"


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The keywords that were given, with their values."""
    texts = vars(arguments)
    return {name: _read(name, texts[name]) for name in KEYWORDS if name in texts}


def claim_of(keywords: Mapping[str, Any]) -> Claim:
    """The claim that a prediction is for. Raises WrongUseError."""
    try:
        claim = read_claim([keywords], rootdir=Path.cwd())
    except MarkerError as error:
        if keywords.keys().isdisjoint({"model", "config", "step"}):
            raise WrongUseError("--model is needed, such as --model Qwen2.5-7B") from None
        raise WrongUseError(in_arguments(str(error))) from None
    if claim.limits.card_bytes is None:
        raise WrongUseError("--card is needed, such as --card 'RTX 5070 Ti' or --card 16303MiB")
    return claim


def in_arguments(says: str) -> str:
    """A sentence about a marker in the words of the command line: ``--seq 1`` for ``seq=1``."""

    def renamed(found: re.Match[str]) -> str:
        before, at_first = found.groups()
        if before:
            return f"{argument(before)} "
        return f"{argument(at_first)}:" if at_first else found[0]

    return _NAMED.sub(renamed, says.removeprefix("fits_vram: "))


class _Elsewhere(argparse.Action):
    """Another tool's name: an error that says what it is here."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002
        values: Any,  # noqa: ARG002
        option_string: str | None = None,
    ) -> NoReturn:
        assert option_string is not None
        ours = ELSEWHERE[option_string.removeprefix("--").replace("-", "_")]
        here = re.sub(r"^\w+", lambda found: argument(found[0]), ours).replace("=", " ")
        parser.error(f"there is no {option_string}: here it is {here}")


def _accepted(name: str) -> str:
    """What a keyword takes, as its reader says when it gets something else."""
    keyword = KEYWORDS[name]
    not_yet = "(not built yet) " if keyword.part and not keyword.built(object()) else ""
    try:
        keyword.read(object())
    except ValueError as error:
        return not_yet + _HELP.get(name, str(error))
    return not_yet + _HELP[name]


def _read(name: str, text: str) -> Any:
    """The first reading of a text that the keyword takes, else the last: it is refused later."""
    readings = list(_readings(name, text))
    return next((one for one in readings if _is_accepted(name, one)), readings[-1])


def _readings(name: str, text: str) -> Iterator[Any]:
    if text.lstrip().startswith("{"):
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return
    yield text
    if text.lower() in _LITERALS:
        yield _LITERALS[text.lower()]
    for number in (int, float):
        try:
            yield number(text)
        except ValueError:
            continue
        break
    if name in _LISTS:
        yield [one.strip() for one in text.split(",")]


def _is_accepted(name: str, value: object) -> bool:
    try:
        KEYWORDS[name].read(value)
    except ValueError:
        return False
    return True
