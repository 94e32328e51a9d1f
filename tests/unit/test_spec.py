"""The digest of what is trained, and specs and limits as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
from samples import FULL, SPEC

from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.spec import Limits, TrainSpec

OTHER_VALUES = {
    "config": {"model_type": "llama", "hidden_size": 128},
    "method": "lora",
    "seq": 256,
    "batch": 1,
    "accumulation": 2,
    "precision": "fp16",
    "dtype": "fp32",
    "optimizer": "sgd",
    "autocast": False,
    "max_grad_norm": None,
    "checkpointing": True,
    "attention": "eager",
    "rank": 8,
    "alpha": 16.0,
    "dropout": 0.0,
    "targets": ("q_proj",),
    "adapter_dtype": "bf16",
    "quant": "fp4",
    "double_quant": False,
    "kbit_upcast": False,
    "modules_to_save": ("lm_head",),
    "dora": True,
    "rslora": True,
    "liger": True,
    "compile": True,
    "alloc_conf": "expandable_segments:True",
    "weights": "pretrained",
    "revision": "main",
    "lengths": "varied",
}
"""For every trained field a value that SPEC does not have."""


def test_digest_is_16_hex_digits() -> None:
    assert len(SPEC.digest) == 16
    assert set(SPEC.digest) <= set("0123456789abcdef")


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_digest_differs_where_another_step_is_trained(field: str) -> None:
    assert replace(SPEC, **{field: OTHER_VALUES[field]}).digest != SPEC.digest


def test_every_field_but_names_is_trained() -> None:
    """The table above misses none."""
    names = {"model", "checkpoint"}
    assert set(OTHER_VALUES) == {field.name for field in fields(TrainSpec)} - names


def test_digests_of_all_other_values_differ_from_each_other() -> None:
    digests = [replace(SPEC, **{field: value}).digest for field, value in OTHER_VALUES.items()]
    assert len(set(digests)) == len(OTHER_VALUES)


def test_digest_does_not_depend_on_the_model_s_name() -> None:
    assert replace(SPEC, model="Another name").digest == SPEC.digest


def test_digest_does_not_depend_on_where_weights_of_a_known_shape_come_from() -> None:
    """Weights of one shape cost the same, whatever they are."""
    pretrained = replace(SPEC, weights="pretrained")
    one, other = (replace(pretrained, checkpoint=where) for where in ("/a", "nobody/b"))
    assert one.digest == other.digest == pretrained.digest


def test_digest_depends_on_the_checkpoint_where_only_that_tells_the_shape() -> None:
    one, other = (replace(SPEC, config={}, checkpoint=where) for where in ("nobody/a", "nobody/b"))
    assert one.digest != other.digest
    assert replace(one, model="Another name").digest == one.digest


def test_digest_does_not_depend_on_the_order_of_config_values() -> None:
    backwards = dict(reversed(list(SPEC.config.items())))
    assert replace(SPEC, config=backwards).digest == SPEC.digest


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param(["v_proj", "q_proj"], id="backwards"),
        pytest.param(("q_proj", "v_proj", "q_proj"), id="one twice"),
        pytest.param({"v_proj", "q_proj"}, id="set"),
        pytest.param([" q_proj", "v_proj "], id="spaces"),
    ],
)
def test_digest_does_not_depend_on_how_targets_are_listed(targets: object, tmp_path: Path) -> None:
    one, other = (
        read_claim([{"model": "tiny", "targets": written}], rootdir=tmp_path).spec.digest
        for written in (["q_proj", "v_proj"], targets)
    )
    assert one == other


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterSpec(TrainSpec):
    """The spec of a later version, with one field more."""

    later: bool = False


@pytest.mark.parametrize("spec", [SPEC, FULL], ids=["qlora", "full"])
def test_digest_stays_when_a_field_is_added(spec: TrainSpec) -> None:
    """Baselines in users' repositories outlive a new version of the plugin."""
    assert LaterSpec(**spec.to_json()).digest == spec.digest


def test_digest_differs_where_an_added_field_is_used() -> None:
    assert LaterSpec(**SPEC.to_json(), later=True).digest != SPEC.digest


@pytest.mark.parametrize(
    "spec", [SPEC, FULL, replace(SPEC, targets=("q_proj", "v_proj"), alpha=8)], ids=str
)
def test_digest_can_be_found_from_json(spec: TrainSpec) -> None:
    """Also where an older version, which did not know the later fields, wrote it."""
    values = json.loads(json.dumps(spec.to_json()))
    assert TrainSpec.digest_of(values) == spec.digest
    assert LaterSpec.digest_of(values) == spec.digest


FIRST_FIELDS = {
    "model", "config", "method", "seq", "batch", "accumulation", "precision", "dtype", "optimizer",
    "autocast", "max_grad_norm", "checkpointing", "attention", "rank", "alpha", "dropout",
    "targets", "adapter_dtype", "quant", "double_quant", "kbit_upcast",
}  # fmt: skip
"""Of version 0.1.0, whose specs had no others."""


@pytest.mark.parametrize("spec", [SPEC, FULL], ids=["qlora", "full"])
def test_spec_of_an_older_version_is_read_with_its_digest(spec: TrainSpec) -> None:
    older = {name: value for name, value in spec.to_json().items() if name in FIRST_FIELDS}
    assert older.keys() == FIRST_FIELDS
    assert TrainSpec.from_json(older) == spec
    assert TrainSpec.digest_of(older) == spec.digest


def test_digest_of_a_newer_spec_is_not_known() -> None:
    assert TrainSpec.digest_of(LaterSpec(**SPEC.to_json()).to_json()) is None


# Baselines in users' repositories hold such digests: if these change, every stored baseline is
# called "the config changed since". Never update them to what the code computes now. Worked out
# with sha256sum over the canonical JSON that TrainSpec.digest describes.
@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        pytest.param(SPEC, "c509ebb1840c8b60", id="qlora"),
        pytest.param(FULL, "dc69a933dc2e7f34", id="full"),
    ],
)
def test_digest_is_what_stored_baselines_hold(spec: TrainSpec, digest: str) -> None:
    assert spec.digest == digest


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        FULL,
        replace(SPEC, targets=("q_proj", "v_proj"), checkpointing="reentrant"),
        replace(SPEC, **{key: value for key, value in OTHER_VALUES.items() if key != "method"}),
    ],
    ids=["qlora", "full", "listed targets", "all others"],
)
def test_spec_passes_through_json_text(spec: TrainSpec) -> None:
    assert TrainSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_spec_s_json_is_what_is_read_back() -> None:
    """So that it can be compared with the spec of a file."""
    listed = replace(SPEC, targets=("q_proj", "v_proj")).to_json()
    assert json.loads(json.dumps(listed)) == listed


def test_spec_s_json_has_every_field() -> None:
    assert set(SPEC.to_json()) == {field.name for field in fields(TrainSpec)}


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(card_bytes=2**34, headroom=Headroom(share=0.1), max_step_ns=5),
        Limits(headroom=Headroom(size_bytes=2**30)),
        Limits(step_ratio=1.5, gpu_ratio=None, peak_ratio=1.0),
        Limits(require=frozenset({"steady", "gpu_time"})),
    ],
    ids=["none", "share", "size", "ratios", "required"],
)
def test_limits_pass_through_json_text(limits: Limits) -> None:
    assert Limits.from_json(json.loads(json.dumps(limits.to_json()))) == limits


def test_tokens_are_those_of_one_optimizer_step() -> None:
    assert replace(SPEC, seq=512, batch=3, accumulation=4).tokens == 6_144


@pytest.mark.parametrize(
    ("precision", "autocast", "scaler"),
    [("fp16", True, True), ("fp16", False, False), ("bf16", True, False), ("fp32", False, False)],
)
def test_gradient_scaler_is_for_fp16_under_autocast(
    precision: str, autocast: bool, scaler: bool
) -> None:
    assert replace(SPEC, precision=precision, autocast=autocast).scaler is scaler
