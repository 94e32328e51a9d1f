"""The measured matrix has cases of everything that an estimate has to get right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_vramfit import catalog
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.spec import TrainSpec

ROWS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "h200_matrix.json").read_text()
)["rows"]
SPECS = [read_claim([row["keywords"]], rootdir=Path()).spec for row in ROWS]
AXES: dict[str, set[object]] = {
    "method": {"full", "lora", "qlora"},
    "batch": {1, 2, 4, 8},
    "seq": {256, 512, 1024, 2048, 4096, 8192},
    "precision": {"bf16", "fp16", "fp32"},
    "autocast": {True, False},
    "quant": {"nf4", "fp4", "int8", None},
    "checkpointing": {True, False, "reentrant"},
    "attention": {"eager", "sdpa"},
    "accumulation": {1, 2, 4},
    "dora": {True, False},
    "optimizer": {
        *("adamw", "adamw_fused", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"),
        *("sgd", "adafactor"),
    },
}


def model_type(spec: TrainSpec) -> object:
    model = catalog.find(spec.model)
    assert model is not None
    return model.config["model_type"]


def test_there_are_enough_rows_each_measured_once() -> None:
    assert len(ROWS) >= 70
    assert len({spec.digest for spec in SPECS}) >= len(ROWS) - 1  # phases are not of the spec
    assert all(row["memory"]["backward"] > row["memory"]["load"] for row in ROWS)


def test_ten_architectures() -> None:
    assert len({model_type(spec) for spec in SPECS}) >= 10


@pytest.mark.parametrize("axis", AXES)
def test_every_value_of_an_axis(axis: str) -> None:
    assert {getattr(spec, axis) for spec in SPECS} >= AXES[axis]
