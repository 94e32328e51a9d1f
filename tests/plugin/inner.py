"""A run of pytest inside a test: its files, and what it said of each of their tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

HEAD = """
import pytest

TINY = {"model": "tiny", "rank": 4, "seq": 16, "steps": 1, "warmup": 2}
"""
"""The first lines of an inner test file: the least that can be measured."""

SECONDS = 300
"""More than any inner run takes, on a busy machine too."""

_WORDS = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS|RERUN"
_LINE = re.compile(rf"^\S+\.py::(.+?) ({_WORDS})\b", re.MULTILINE)
_LINE_OF_XDIST = re.compile(rf"^\[gw\d+\] \[ *\d+%\] ({_WORDS}) \S+\.py::(.+?) *$", re.MULTILINE)
_TITLE = re.compile(r"^_+ (?:ERROR at \w+ of )?([^_\s].*?) _+$|^=+ .+ =+$|^-+ .+ -+$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A finished run. Tests go by their name: ``test_a[1]``, ``TestA::test_b``."""

    status: int
    output: str
    folder: Path

    def word(self, test: str) -> str:
        """What pytest -v said of a test: ``PASSED``, ``ERROR``, ..."""
        words = dict(_LINE.findall(self.output))
        words |= {name: word for word, name in _LINE_OF_XDIST.findall(self.output)}
        assert test in words, f"{test} did not run:\n{self.output}"
        return words[test]

    def text(self, test: str) -> str:
        """What stands under a test's title among the failures and errors."""
        titles = list(_TITLE.finditer(self.output))
        ends = [one.start() for one in titles[1:]] + [len(self.output)]
        texts = {
            title[1]: self.output[title.end() : end].strip()
            for title, end in zip(titles, ends, strict=True)
        }
        name = test.replace("::", ".")
        assert name in texts, f"{test} has no text:\n{self.output}"
        return texts[name]

    @property
    def summary(self) -> list[str]:
        """The lines of our section at the end."""
        _, _, rest = self.output.partition("= vramfit =")
        lines = rest.splitlines()[1:]
        ends = [i for i, line in enumerate(lines) if line.startswith(("=", "-"))]
        return lines[: ends[0]] if ends else []

    @property
    def cases(self) -> dict[str, str]:
        """The outcome of each case in the summary, by its test; of the last where it has more."""
        rows = (re.split(r"\s{2,}", line) for line in self.summary)
        return {
            row[0].partition("::")[2]: row[1] for row in rows if len(row) == 6 and "::" in row[0]
        }

    def line(self, begin: str) -> str:
        """The one line of the output that begins so."""
        (line,) = [one for one in self.output.splitlines() if one.startswith(begin)]
        return line


class RunOnce(Protocol):
    """``run_once(*arguments, test_a=source, ...)``: one run for all tests of a module."""

    def __call__(self, *arguments: str, **files: str) -> Ran: ...


def run(pytester: pytest.Pytester, *arguments: str) -> Ran:
    """Run pytest -v on the files that are in the pytester's folder, with this plugin and xdist."""
    plugins = ("-p", "vramfit", "-p", "xdist")
    result = pytester.runpytest_subprocess("-v", *plugins, *arguments, timeout=SECONDS)
    return Ran(
        status=int(result.ret),
        output="\n".join([*result.outlines, *result.errlines]),
        folder=pytester.path,
    )
