"""Arguments that several subcommands have."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from pytest_vramfit.cli.answer import Answer

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


def subcommand(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], Answer], text: str
) -> argparse.ArgumentParser:
    """A parser of a subcommand that answers."""
    parser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    parser.set_defaults(run=run, parser=parser)
    return parser


def baselines(parser: argparse.ArgumentParser) -> None:
    """``--baselines``."""
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        type=Path,
        default=Path(".vramfit"),
        help="the folder of the baselines (default: .vramfit)",
    )
