"""Which tests are cases, and that they get the fixture."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import pytest

MARKER = "fits_vram"
FIXTURE = "vramfit"


def is_case(item: pytest.Item) -> bool:
    """Whether the test is marked or has the fixture's parameter."""
    return item.get_closest_marker(MARKER) is not None or FIXTURE in parameters(item)


def may_measure(item: pytest.Item) -> bool:
    """Whether the test is a case or names the fixture, as far as that can be told beforehand."""
    return is_case(item) or FIXTURE in getattr(item, "fixturenames", ())


def is_parametrized(function: pytest.Item) -> bool:
    """Whether a test function is parametrized over the fixture."""
    for mark in function.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames")
        listed = names.split(",") if isinstance(names, str) else names
        if isinstance(listed, list | tuple) and FIXTURE in {str(name).strip() for name in listed}:
            return True
    return False


def add_fixture(item: pytest.Item) -> None:
    """Have the item request the fixture, if it does not.

    Its own list of names: pytest shares one among all parameters of a function.
    """
    names = getattr(item, "fixturenames", None)
    if names is not None and FIXTURE not in names:
        vars(item)["fixturenames"] = [*names, FIXTURE]


def parameters(item: pytest.Item) -> Mapping[str, Any]:
    """The test's parameters by their names."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def skip_of_unittest(item: pytest.Item) -> str | None:
    """Why ``unittest.skip`` skips the test, which pytest leaves to unittest, after set-up."""
    function = getattr(item, "obj", None)
    if not getattr(function, "__unittest_skip__", False):
        return None
    return str(getattr(function, "__unittest_skip_why__", ""))


def as_argument(nodeid: str, config: pytest.Config) -> str:
    """The nodeid, whose path is the rootdir's, as an argument from where pytest was called."""
    called_in = config.invocation_params.dir
    path, *names = nodeid.split("::")
    if called_in != config.rootpath:
        with contextlib.suppress(ValueError):  # on another drive
            path = os.path.relpath(config.rootpath / path, called_in)
    return "::".join([path, *names])
