"""What is raised where a case has no verdict."""

from __future__ import annotations

import pytest


class CouldNotMeasureError(pytest.fail.Exception):  # type: ignore[name-defined,misc]
    """Not a verdict: stays an ERROR, also under ``xfail`` and in the body of a test."""

    __module__ = "builtins"  # as pytest does, so that its one-line summary shows the message

    def __init__(self, says: str) -> None:
        super().__init__(says, pytrace=False)
