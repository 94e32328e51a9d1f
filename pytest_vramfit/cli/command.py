"""The command line: its arguments, its exit status, its errors."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

from pytest_vramfit import __version__
from pytest_vramfit.baseline import BaselineError
from pytest_vramfit.cli import accept, ceiling, compare, estimate, prune, show
from pytest_vramfit.cli.answer import Answer, WrongUseError
from pytest_vramfit.marker.values import nearest

_PROGRAM = "pytest-vramfit"
_NOT_BUILT = {
    "explain": "where the memory of a case goes",
}
_DOES_NOT_HOLD, _WRONG_USE, _INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0 it holds, 1 it does not, 2 wrong use."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal may lack the arrow
    parser = _parser()
    arguments, unknown = parser.parse_known_args(argv)
    if arguments.command in _NOT_BUILT:
        return _refuse(f"{arguments.command} is not built yet")
    if unknown:
        arguments.parser.error(_unknown(arguments.parser, unknown))
    try:
        answer: Answer = arguments.run(arguments)
    except (BaselineError, WrongUseError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        return _INTERRUPTED
    try:
        _print(answer, as_json=arguments.json)
    except BrokenPipeError:  # as in `pytest-vramfit ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if answer.holds else _DOES_NOT_HOLD


def _unknown(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """The first option that the subcommand has not, with its nearest; else what there is too much
    of.
    """
    option = next((one.partition("=")[0] for one in unknown if one.startswith("--")), None)
    if option is None:
        return f"unrecognized arguments: {' '.join(unknown)}"
    known = re.findall(r"--([a-z][a-z-]+)", parser.format_help())
    near = nearest(option.removeprefix("--"), known, cutoff=0.6)
    return f"there is no {option}" + (f"; the nearest is --{near}" if near else "")


def _refuse(says: str) -> int:
    print(f"{_PROGRAM}: {says}", file=sys.stderr)  # noqa: T201
    return _WRONG_USE


def _print(answer: Answer, *, as_json: bool) -> None:
    text = json.dumps(answer.json, indent=1) if as_json else "\n".join(answer.lines)
    print(text, flush=True)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="What pytest-vramfit measured, compared and kept.",
        epilog="exit status: 0 it holds, 1 it does not, 2 wrong use",
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (estimate, ceiling, compare):
        module.add(commands)
    baselines = commands.add_parser("baselines", help="show, prune or accept stored baselines")
    kept = baselines.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for module in (show, prune, accept):
        module.add(kept)
    for name, text in _NOT_BUILT.items():
        commands.add_parser(name, help=f"(not built yet) {text}")
    return parser
