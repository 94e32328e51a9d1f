"""The two sides of a comparison: results of a run, a file of baselines, a folder of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_vramfit.baseline import Store
from pytest_vramfit.baseline.json_reader import Value
from pytest_vramfit.baseline.store import SCHEMA, read_file
from pytest_vramfit.cli.answer import WrongUseError
from pytest_vramfit.reporting import results_reader
from pytest_vramfit.reporting.results_reader import Result

Key = tuple[str, str, str]
"""Device, nodeid, engine."""
Side = Mapping[Key, Result]


def read(path: Path) -> Side:
    """Every case of one side. Raises BaselineError, WrongUseError."""
    side = {
        (result.device, result.nodeid, result.engine): result
        for result in _results(path)
        if result.device is not None
    }
    if not side:
        raise WrongUseError(f"{path} has no case that was measured")
    return side


def _results(path: Path) -> list[Result]:
    if path.is_dir():
        return [Result.of(entry) for entry in Store(path).entries]
    kind = Value.of_file(path)["schema"].text().rpartition("/")[0]
    if kind == SCHEMA.rpartition("/")[0]:
        return [Result.of(entry) for entry in read_file(path).values()]
    return results_reader.read(path)


def common(old: Side, new: Side, old_path: Path, new_path: Path) -> list[Key]:
    """The cases of both, in order. Raises WrongUseError where there is none."""
    keys = sorted(old.keys() & new.keys())
    if keys:
        return keys
    paths = f"{old_path} and {new_path} have nothing in common"
    before, now = (sorted({device for device, *_ in side}) for side in (old, new))
    if not {*before} & {*now}:
        devices = f"the first is of {' and '.join(before)}, the other of {' and '.join(now)}"
        raise WrongUseError(f"{paths}: {devices}")
    raise WrongUseError(f"{paths}: no test is in both")
