"""Peaks that other code measured on an H200, reproduced by the plugin's step.

The rows and how they came about are in h200_peaks.json; there ``precision`` is also the dtype of
the base, and gradients were not clipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vramfit.measuring import nvml

ROWS = json.loads((Path(__file__).parents[1] / "data" / "h200_peaks.json").read_text())["rows"]
TOLERANCE = 0.005
MIB = 2**20


def keywords(row: dict[str, Any]) -> dict[str, object]:
    same = (
        "model",
        "method",
        "checkpointing",
        "optimizer",
        "seq",
        "batch",
        "precision",
        "autocast",
    )
    words: dict[str, object] = {name: row[name] for name in same}
    words |= {"accumulation": row["accumulate"], "dtype": row["precision"], "max_grad_norm": None}
    if row["method"] != "full":
        words |= {name: row[name] for name in ("targets", "rank", "dropout")}
    if row["method"] == "qlora":
        words |= {name: row[name] for name in ("kbit_upcast", "double_quant")}
    return words


def name_of(row: dict[str, Any]) -> str:
    checkpointing = "-checkpointing" if row["checkpointing"] else ""
    return f"{row['model']}-{row['method']}-seq{row['seq']}-batch{row['batch']}{checkpointing}"


@pytest.fixture
def h200() -> None:
    if "H200" not in nvml.cards()[0].name:
        pytest.skip("the rows were measured on an H200; kernels and workspaces differ elsewhere")


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_peak_allocated(row, h200, measure, record_property):
    memory = measure(**keywords(row)).memory
    assert memory is not None
    measured, published = memory.peak_allocated_bytes / MIB, row["peak_allocated_mib"]
    print(f"{name_of(row)}: {measured:.1f} MiB, published {published:.1f}", end=", ")
    print(
        f"{100 * (measured / published - 1):+.3f} %, load {memory.load_peak_bytes / MIB:.1f}",
        end="",
    )
    print(f" for {row['load_peak_mib']}")
    assert measured == pytest.approx(published, rel=TOLERANCE)
