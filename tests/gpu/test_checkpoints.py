"""Peaks of models that come from a checkpoint, measured and predicted.

The weights are zeros in files of the real size.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pytest_vramfit.estimating.estimate import MARGIN
from pytest_vramfit.marker.claim import read_claim

MIB = 2**20
CASES: dict[str, dict[str, object]] = {
    "tied, qlora": {"model": "Qwen2.5-1.5B"},
    "tied, int8": {"model": "Qwen2.5-1.5B", "quant": "int8"},
    "tied, lora": {"model": "Qwen2.5-1.5B", "method": "lora", "checkpointing": True},
    "untied, qlora": {"model": "TinyLlama-1.1B", "double_quant": False},
    "untied, upcast": {"model": "TinyLlama-1.1B", "checkpointing": True, "seq": 1024},
}
WEIGHTS = {"weights": "pretrained"}


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory):
    """Writes a model of the catalogue to a folder, once."""
    folders: dict[str, Path] = {}

    def written(name: str) -> str:
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("checkpoint")
            config = read_claim([{"model": name}], rootdir=Path()).spec.config
            values = {key: value for key, value in config.items() if key != "model_type"}
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(
                    AutoConfig.for_model(config["model_type"], **values), dtype=torch.bfloat16
                )
            model.to_empty(device="cpu")
            with torch.no_grad():
                for one in (*model.parameters(), *model.buffers()):
                    one.zero_()
            model.tie_weights()
            model.save_pretrained(folders[name])
        return str(folders[name])

    return written


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_s_peaks_are_predicted(case, checkpoint_of, measure, predict):
    keywords = {**CASES[case], "model": checkpoint_of(CASES[case]["model"])}
    measured, predicted = (
        made(**keywords, **WEIGHTS, warmup=2, steps=2) for made in (measure, predict)
    )
    one, other = measured.memory, predicted.memory
    low, high = predicted.prediction.reserved_bytes
    for name, peak in one.phases.items():
        print(f"{case}, {name}: {peak / MIB:,.1f} MiB, predicted {other.phases[name] / MIB:,.1f}")
    reserved = one.peak_reserved_bytes
    print(
        f"{case}, reserved: {reserved / MIB:,.0f}, predicted {low / MIB:,.0f} to {high / MIB:,.0f}"
    )
    as_random = predict(**keywords, warmup=2, steps=2).prediction.reserved_bytes
    print(f"{case}, as if random: {as_random[0] / MIB:,.0f} to {as_random[1] / MIB:,.0f}")
    assert other.phases == pytest.approx(one.phases, rel=MARGIN)
    assert low * (1 - MARGIN) <= reserved <= high * (1 + MARGIN)
