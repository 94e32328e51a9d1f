"""Peaks that other code measured on an H200, reproduced by the plugin's step.

How the rows came about is in data/h200_peaks.json.
"""

from __future__ import annotations

from typing import Any

import pytest
from published import H200_ROWS, keywords

from pytest_vramfit.measuring import nvml

TOLERANCE = 0.005
MIB = 2**20


def name_of(row: dict[str, Any]) -> str:
    checkpointing = "-checkpointing" if row["checkpointing"] else ""
    return f"{row['model']}-{row['method']}-seq{row['seq']}-batch{row['batch']}{checkpointing}"


@pytest.fixture
def h200() -> None:
    if "H200" not in nvml.cards()[0].name:
        pytest.skip("the rows were measured on an H200; kernels and workspaces differ elsewhere")


@pytest.mark.parametrize("row", H200_ROWS, ids=name_of)
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
