"""Changes that may save memory: which there are of a spec, and what they make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import FULL, SPEC

from pytest_vramfit.estimating.changes import CHANGES, Change, smaller_models
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.spec import TrainSpec

LARGE = {
    "model": "Qwen2.5-7B",
    "attention": "eager",
    "batch": 8,
    "accumulation": 3,
    "double_quant": False,
    "dora": True,
}
"""To which every kind of change applies but another method."""


def spec_of(keywords: dict[str, Any], *changes: dict[str, Any]) -> TrainSpec:
    """What the marker makes of these keywords."""
    return read_claim([keywords, *changes], rootdir=Path()).spec


def changes_of(spec: TrainSpec) -> list[Change]:
    return [change for kind in (*CHANGES, smaller_models) for change in kind(spec)]


def keywords_of(spec: TrainSpec, key: str) -> list[dict[str, Any]]:
    """Of the changes that have this keyword."""
    return [dict(one.keywords) for one in changes_of(spec) if key in one.keywords]


def values(spec: TrainSpec, key: str) -> list[Any]:
    return [one[key] for one in keywords_of(spec, key)]


def test_all_kinds_in_their_order_and_each_from_its_gentlest_degree() -> None:
    assert [dict(one.keywords) for one in changes_of(spec_of(LARGE))] == [
        {"attention": "sdpa"},
        {"checkpointing": True},
        {"batch": 4, "accumulation": 6},
        {"batch": 2, "accumulation": 12},
        {"batch": 1, "accumulation": 24},
        {"optimizer": "adamw_8bit"},
        {"optimizer": "paged_adamw_8bit"},
        {"double_quant": True},
        {"kbit_upcast": False},
        {"dora": False},
        {"rank": 8},
        {"rank": 4},
        {"targets": "attention"},
        {"targets": "qv"},
        {"seq": 384},
        {"seq": 256},
        {"seq": 192},
        {"seq": 128},
        {"model": "Qwen2.5-3B"},
        {"model": "Qwen2.5-1.5B"},
        {"model": "Qwen2.5-0.5B"},
    ]


@pytest.mark.parametrize(
    "keywords",
    [
        pytest.param(LARGE, id="every kind"),
        pytest.param({"model": "Qwen2.5-7B", "alpha": 8, "rank": 64}, id="alpha of its own"),
        pytest.param({"model": "tiny", "method": "full"}, id="full"),
        pytest.param({"model": "tiny", "method": "full", "precision": "fp16"}, id="full in fp16"),
        pytest.param({"model": "tiny", "method": "full", "dtype": "bf16"}, id="full, all in bf16"),
        pytest.param({"model": "tiny", "method": "full", "autocast": False}, id="no autocast"),
        pytest.param({"model": "tiny", "method": "full", "precision": "fp32"}, id="full in fp32"),
        pytest.param({"model": "tiny", "method": "lora", "precision": "fp16"}, id="lora in fp16"),
        pytest.param({"model": "tiny", "quant": "int8", "kbit_upcast": False}, id="int8"),
        pytest.param({"model": "tiny", "modules_to_save": ["lm_head"]}, id="saved modules"),
        pytest.param(
            {"model": "tiny", "modules_to_save": ["lm_head"], "precision": "fp16"},
            id="saved modules in fp16",
        ),
    ],
)
def test_changed_spec_is_what_the_marker_makes_of_the_keywords(keywords: dict[str, Any]) -> None:
    """So what was predicted is what the user gets who follows."""
    spec = spec_of(keywords)
    for change in changes_of(spec):
        assert change.spec == spec_of(keywords, dict(change.keywords)), change.keywords
        assert change.spec != spec


def test_smaller_batches_keep_the_tokens_of_a_step() -> None:
    spec = replace(SPEC, batch=12, accumulation=5)
    found = [one for one in changes_of(spec) if "batch" in one.keywords]
    assert [one.spec.batch for one in found] == [6, 3, 1]
    assert {one.spec.tokens for one in found} == {spec.tokens}


@pytest.mark.parametrize(
    ("optimizer", "smaller"),
    [
        ("adamw", ["adamw_8bit", "paged_adamw_8bit"]),
        ("adamw_fused", ["adamw_8bit", "paged_adamw_8bit"]),
        ("adamw_8bit", ["paged_adamw_8bit"]),
        ("paged_adamw", ["paged_adamw_8bit"]),
        ("paged_adamw_8bit", []),
        ("sgd", []),
        ("adafactor", []),
    ],
)
def test_optimizers_with_smaller_states(optimizer: str, smaller: list[str]) -> None:
    assert values(replace(SPEC, optimizer=optimizer), "optimizer") == smaller


@pytest.mark.parametrize(
    ("targets", "fewer"),
    [
        ("all-linear", ["attention", "qv"]),
        ("attention", ["qv"]),
        ("qv", []),
        (("q_proj", "k_proj", "v_proj", "o_proj", "up_proj"), ["attention", "qv"]),
        (("v_proj", "q_proj", "k_proj"), ["qv"]),
        (("q_proj", "v_proj"), []),
        (("up_proj", "down_proj", "gate_proj"), []),
    ],
)
def test_presets_that_are_fewer_targets(targets: Any, fewer: list[str]) -> None:
    assert values(replace(SPEC, targets=targets), "targets") == fewer


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, "attention"),
        ({"checkpointing": True}, "checkpointing"),
        ({"checkpointing": "reentrant"}, "checkpointing"),
        ({"batch": 1}, "batch"),
        ({}, "double_quant"),
        ({"quant": "int8", "double_quant": None}, "double_quant"),
        ({"kbit_upcast": False}, "kbit_upcast"),
        ({}, "dora"),
        ({"rank": 7}, "rank"),
        ({}, "method"),
        ({}, "quant"),
        ({}, "model"),
        ({"model": "Qwen2.5-0.5B"}, "model"),
    ],
)
def test_change_that_does_not_apply(changes: dict[str, Any], key: str) -> None:
    """The sample's model is in no catalogue."""
    assert keywords_of(replace(SPEC, **changes), key) == []


def test_changes_of_full_fine_tuning_have_no_adapters() -> None:
    found = {key for one in changes_of(FULL) for key in one.keywords}
    assert found == {"checkpointing", "batch", "accumulation", "optimizer", "seq", "method"}
    assert values(FULL, "method") == ["lora", "qlora"]


def test_smaller_model_is_predicted_without_the_checkpoint_of_the_larger() -> None:
    spec = replace(
        spec_of({"model": "Qwen2.5-3B"}), weights="pretrained", checkpoint="a/b", revision="main"
    )
    for change in smaller_models(spec):
        assert (change.spec.weights, change.spec.checkpoint, change.spec.revision) == (
            "random",
            None,
            None,
        )


def test_two_tokens_are_the_shortest_sequence() -> None:
    assert values(replace(SPEC, seq=4), "seq") == [3, 2]
