"""Predictions hold against peaks that were measured on GPUs: the quickest rows of all kinds.

All of them: ``python tests/accuracy.py``.
"""

from __future__ import annotations

import pytest
from accuracy import Predicted, Row, predict, rows

QUICK = (
    "H200, published: Llama-3.2-1B qlora seq 512 batch 1",
    "H200, published: Llama-3.2-1B qlora checkpointing seq 2048 batch 1",
    "H200, published: Qwen2.5-0.5B full seq 512 batch 1",
    "H200, published: Qwen2.5-0.5B full checkpointing seq 512 batch 4",
    "H200, published: TinyLlama-1.1B qlora seq 512 batch 1",
    "T4, published: TinyLlama-1.1B-Chat-v1.0 lora checkpointing eager seq 512 batch 2",
    "T4, published: SmolLM2-135M lora checkpointing seq 4096 batch 1",
    "T4, published: SmolLM2-360M lora checkpointing eager seq 4096 batch 1",
)
ROWS = {f"{row.source}: {row.name}": row for row in rows()}


@pytest.fixture(scope="module", params=QUICK)
def predicted(request: pytest.FixtureRequest) -> Predicted:
    row: Row = ROWS[request.param]
    return predict(row, peer=False)


def test_peak_allocated_within_a_fifth_of_a_percent(predicted: Predicted) -> None:
    assert abs(predicted.error) <= 0.2


def test_every_phase_within_half_a_percent(predicted: Predicted) -> None:
    assert predicted.worst_phase <= 0.5


def test_no_card_is_said_to_fit_that_does_not(predicted: Predicted) -> None:
    assert predicted.unsafe == 0


def test_all_rows_are_there() -> None:
    sources = [row.source for row in rows()]
    assert sources.count("H200, published") == 26
    assert sources.count("T4, published") == 14
