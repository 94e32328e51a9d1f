"""The keywords that apply to one test, from pytest's markers and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pytest_vramfit.marker.keywords import MarkerError
from pytest_vramfit.marker.values import shown
from pytest_vramfit.plugin.items import FIXTURE, MARKER, parameters


def of(item: pytest.Item) -> list[Mapping[str, object]]:
    """The layers from the outermost to the innermost, for `marker.read_claim`.

    Module, base class, class, function, ``pytest.param(marks=…)``, the fixture's own parameter.
    Raises MarkerError for markers that do not take keywords or stand twice on one object.
    """
    layers = [_keywords(mark) for node in item.listchain() for mark in _marks(node)]
    if FIXTURE in parameters(item):
        value = parameters(item)[FIXTURE]
        if not isinstance(value, Mapping):
            raise MarkerError(
                f"{FIXTURE}: a parameter must be a dict of fits_vram's keywords, not {shown(value)}"
            )
        layers.append(value)
    return layers


def parameter_id(value: object) -> str | None:
    """``seq=512,rank=8`` for a parameter of the fixture; None leaves the id to pytest."""
    if not isinstance(value, Mapping):
        return None
    return ",".join(f"{_brief(key)}={_brief(one)}" for key, one in value.items()) or None


def _brief(value: object) -> str:
    if isinstance(value, str):
        return value
    return shown(value) if isinstance(value, int | float | None) else type(value).__name__


def _marks(node: Any) -> Iterator[pytest.Mark]:
    """The markers of one node, base classes first."""
    written = _written(node)
    for marks in written:
        if len(marks) > 1:
            raise MarkerError(
                f"fits_vram stands {len(marks)} times on {node.name}; write one marker with all "
                "keywords"
            )
    own = [mark for mark in node.own_markers if mark.name == MARKER]
    if isinstance(node, pytest.Class):  # whose own markers start with the derived class's
        inherited = [mark for marks in written for mark in marks]
        added = [mark for mark in own if not any(mark is one for one in inherited)]
        own = [*inherited, *added]
    yield from own


def _written(node: Any) -> list[list[pytest.Mark]]:
    """The markers in the source of a node, a list for each object they are written on."""
    owner = getattr(node, "obj", None)
    owners = list(reversed(owner.__mro__)) if isinstance(owner, type) else [owner]
    written = []
    for one in owners:
        # of a class only what is written on it itself, not what it inherits
        marks = vars(one).get("pytestmark", []) if isinstance(one, type) else None
        if marks is None:
            marks = getattr(one, "pytestmark", None) or []
        listed = marks if isinstance(marks, list) else [marks]
        plain = [getattr(mark, "mark", mark) for mark in listed]
        written.append(
            [mark for mark in plain if isinstance(mark, pytest.Mark) and mark.name == MARKER]
        )
    return written


def _keywords(mark: pytest.Mark) -> Mapping[str, object]:
    if mark.args:
        raise MarkerError(
            f"fits_vram takes keywords only, not {shown(mark.args[0])}; write "
            f"fits_vram(model={shown(mark.args[0])})"
        )
    return mark.kwargs
