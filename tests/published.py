"""Figures that others published, for several tests: peaks on an H200, and parameter counts.

The peaks' rows and how they came about are in data/h200_peaks.json; there ``precision`` is also the
dtype of the base, and gradients were not clipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
H200_ROWS = json.loads((DATA / "h200_peaks.json").read_text())["rows"]


def keywords(row: Mapping[str, Any]) -> dict[str, Any]:
    """The marker's keywords for a row of the peaks."""
    same = ("model", "method", "checkpointing", "optimizer", "seq", "batch", "precision")
    words = {name: row[name] for name in (*same, "autocast")}
    words |= {"accumulation": row["accumulate"], "dtype": row["precision"], "max_grad_norm": None}
    if row["method"] != "full":
        words |= {name: row[name] for name in ("targets", "rank", "dropout")}
    if row["method"] == "qlora":
        words |= {name: row[name] for name in ("kbit_upcast", "double_quant")}
    return words


FITCHECK = "fitcheck-llm 0.3.1 sdist, data/measurements: model_config read from the Hub config.json"

PARAMETERS = {
    "Qwen2.5-1.5B": (1_543_714_304, FITCHECK),
    "Qwen2.5-7B": (7_615_616_512, FITCHECK),
    "Llama-2-7B": (6_738_415_616, "Raschka/Lightning LoRA insights: frozen params 6,738,415,616"),
    "Llama-3.2-1B": (1_235_814_400, FITCHECK),
    "Llama-3.2-3B": (
        3_212_749_824,
        "PEFT MetaMathQA results: num_total_params of full fine-tuning",
    ),
    "Mistral-7B-v0.3": (7_248_023_552, FITCHECK),
    "SmolLM2-135M": (134_515_008, FITCHECK),
    "SmolLM2-360M": (361_821_120, FITCHECK),
    "SmolLM2-1.7B": (1_711_376_384, FITCHECK),
    "TinyLlama-1.1B": (1_100_048_384, FITCHECK),
    "deepseek-coder-1.3b": (1_346_471_936, FITCHECK),
}
"""Of models of the catalogue, not computed from it, each with its source."""
