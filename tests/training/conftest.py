"""Tiny models, trained for real on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.model import forget_tables


@pytest.fixture(scope="session", autouse=True)
def _libraries_are_not_collected() -> None:
    """Every case collects garbage: what is imported by now need not be looked at each time."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _tables_of_their_own() -> Iterator[None]:
    """Of bitsandbytes, as every case of a worker has them; models that tests build leave some."""
    forget_tables()
    yield
    forget_tables()


@pytest.fixture
def spec_of() -> Callable[..., TrainSpec]:
    """The spec of a marker for the tiny model."""

    def spec_of(**keywords: object) -> TrainSpec:
        layers = [{"model": "tiny", "seq": 16, "rank": 4}, keywords]
        if keywords.get("method") == "full":
            layers[0] = {"model": "tiny", "seq": 16}
        return read_claim(layers, rootdir=Path()).spec

    return spec_of
