"""Predictions hold against peaks that were measured on GPUs: the quickest rows of all kinds.

All of them: ``python tests/accuracy.py``.
"""

from __future__ import annotations

import pytest
from accuracy import Predicted, Row, predict, rows

# of every merged weight
pytestmark = pytest.mark.filterwarnings("ignore:Merge lora module to 4-bit linear:UserWarning")

QUICK = (
    "H200, published: Llama-3.2-1B qlora seq 512 batch 1",
    "H200, published: Llama-3.2-1B qlora checkpointing seq 2048 batch 1",
    "H200, published: Qwen2.5-0.5B full seq 512 batch 1",
    "H200, published: Qwen2.5-0.5B full checkpointing seq 512 batch 4",
    "H200, published: TinyLlama-1.1B qlora seq 512 batch 1",
    "H200, matrix: model=gpt2-medium",
    "H200, matrix: model=Qwen2.5-0.5B method=qlora precision=fp32",
    "H200, held out: model=Qwen2.5-1.5B phases=['eval', 'save', 'merge'] eval_batch=2",
    "T4, published: TinyLlama-1.1B-Chat-v1.0 lora checkpointing eager seq 512 batch 2",
    "T4, published: SmolLM2-135M lora checkpointing seq 4096 batch 1",
    "T4, published: SmolLM2-360M lora checkpointing eager seq 4096 batch 1",
)
ROWS = {f"{row.source}: {row.name}": row for row in rows()}


@pytest.fixture(scope="module", params=QUICK)
def predicted(request: pytest.FixtureRequest) -> Predicted:
    row: Row = ROWS[request.param]
    return predict(row, peer=False)


def test_peak_allocated_within_three_tenths_of_a_percent(predicted: Predicted) -> None:
    assert abs(predicted.error) <= 0.3


def test_every_phase_within_half_a_percent(predicted: Predicted) -> None:
    assert predicted.worst_phase <= 0.5


def test_no_card_is_said_to_fit_that_does_not(predicted: Predicted) -> None:
    assert predicted.unsafe == 0


def test_all_rows_are_there() -> None:
    sources = [row.source for row in rows()]
    assert sources.count("H200, published") == 26
    assert sources.count("T4, published") == 14
    assert sources.count("H200, matrix") == sources.count("H200, held out") == 48
