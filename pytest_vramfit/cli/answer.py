"""What a subcommand gives back, and how it refuses."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


class WrongUseError(ValueError):
    """The command cannot do what was asked; the message is one sentence that says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """To be printed, as text or as JSON."""

    lines: tuple[str, ...]
    json: Any
    holds: bool = True
    """Whether all is as it should be: the exit status."""


def table(
    rows: Sequence[Sequence[str]], *, indent: str = "", right: Container[int] = ()
) -> Iterator[str]:
    """Rows of cells in columns of equal width; ``right`` has the columns of figures, from 0."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            f"{cell:>{width}}" if column in right else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield f"{indent}{'  '.join(cells)}".rstrip()
