"""On a terminal the stage of the case is shown while it runs, and leaves no mark."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from inner import HEAD, run

SUITE = (
    HEAD
    + """
@pytest.mark.parametrize("i", range(20))
def test_before(i): pass

@pytest.mark.fits_vram(**{**TINY, "steps": 2})
def test_case(vramfit):
    print("printed by the test")
    vramfit.measure(seq=32)

@pytest.mark.parametrize("i", range(20))
def test_after(i): pass
"""
)
COLUMNS = 40
"""Twenty tests end at 31: there is no room for every stage, and none to wrap it."""

SIGN = re.compile(r"\x1b([78])|\x1b\[(\??[\d;]*)([A-Za-z])|(.)", re.DOTALL)


@dataclass
class Terminal:
    """As much of a terminal as pytest and the plugin use."""

    columns: int
    lines: list[list[str]] = field(default_factory=lambda: [[]])
    column: int = 0
    saved: tuple[int, int] = (0, 0)
    row: int = 0
    wraps: bool = True
    history: list[str] = field(default_factory=list)

    def feed(self, text: str) -> None:
        for keep, parameter, command, sign in SIGN.findall(text):
            if keep == "7":
                self.saved = self.row, self.column
            elif keep == "8":
                self.history.append(self.line(self.row))
                self.row, self.column = self.saved
            elif command == "K":
                del self.lines[self.row][self.column :]
            elif parameter == "?7":
                self.wraps = command == "h"
            elif sign == "\r":
                self.column = 0
            elif sign == "\n":
                self._next_line()
            elif sign:
                self._put(sign)

    def line(self, row: int) -> str:
        return "".join(self.lines[row])

    def _put(self, sign: str) -> None:
        if self.column == self.columns and self.wraps:
            self._next_line()
            self.column = 0
        self.column = min(self.column, self.columns - 1)
        line = self.lines[self.row]
        line += " " * (self.column + 1 - len(line))
        line[self.column] = sign
        self.column += 1

    def _next_line(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])


def on_a_terminal(pytester: pytest.Pytester, *options: str) -> Terminal:
    """What a terminal shows of a run in the pytester's folder."""
    terminal = Terminal(COLUMNS)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "vramfit", *options],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name not in UNSET} | ENVIRONMENT,
    )
    os.close(theirs)
    output = b""
    with suppress(OSError):  # Linux's way to say that the other end is closed
        while part := os.read(ours, 4096):
            output += part
    os.close(ours)
    assert process.wait() == 0, output.decode()
    terminal.feed(output.decode())
    return terminal


UNSET = {"COLUMNS", "NO_COLOR", "PY_COLORS", "CI"}
ENVIRONMENT = {"TERM": "xterm"}


@pytest.fixture(scope="module")
def shown() -> dict[str, Terminal]:
    return {}


@pytest.fixture
def terminal(pytester: pytest.Pytester, shown: dict[str, Terminal]) -> Terminal:
    if not shown:
        pytester.makepyfile(test_it=SUITE)
        shown["measured"] = on_a_terminal(pytester, "--vramfit=cpu")
    return shown["measured"]


def dots(terminal: Terminal) -> list[str]:
    """The lines of dots."""
    lines = [terminal.line(row) for row in range(len(terminal.lines))]
    (first,) = [row for row, line in enumerate(lines) if line.startswith("test_it.py ")]
    return lines[first : lines.index("", first)]


@pytest.mark.parametrize("stage", ["worker", "build", "warm", "timed", "proof"])
def test_stage_is_shown(terminal: Terminal, stage: str) -> None:
    """Behind the dots, as far as there is room."""
    assert any(f"{'.' * 20} [{stage}" in line for line in terminal.history)


def test_stage_stays_on_its_line(terminal: Terminal) -> None:
    assert max(map(len, terminal.history)) == COLUMNS


def test_line_is_clear_when_the_case_is_done(terminal: Terminal) -> None:
    """The last thing that was written behind the dots was nothing."""
    assert terminal.history[-1] == f"test_it.py {'.' * 20}"


def test_no_mark_is_left(terminal: Terminal, pytester: pytest.Pytester) -> None:
    """The lines of dots are those of a run in which nothing is measured."""
    measured = '@pytest.mark.fits_vram(**{**TINY, "steps": 2})\ndef test_case(vramfit):'
    assert measured in SUITE
    body = "    vramfit.measure(seq=32)\n"
    plain = SUITE.replace(measured, "def test_case():").replace(body, "")
    pytester.makepyfile(test_it=plain)
    assert dots(terminal) == dots(on_a_terminal(pytester))


def test_output_of_the_test_is_still_captured(terminal: Terminal) -> None:
    assert not any("printed" in terminal.line(row) for row in range(len(terminal.lines)))


def test_nothing_on_a_pipe(pytester: pytest.Pytester) -> None:
    """Not even with colours forced."""
    pytester.makepyfile(test_it=SUITE)
    output = run(pytester, "--vramfit=cpu", "--color=yes", "-k", "case").output
    assert "[build]" not in output
    assert not re.search("\x1b[78]|\x1b\\[\\??[\\d;]*[Khl]", output)
