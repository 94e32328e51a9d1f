"""What is done to the base before the first step."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.adapters import is_adapter, is_saved
from pytest_vramfit.training.config import UnbuildableError

CPU = torch.device("cpu")


def prepared(spec):
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    model.materialise(outline, spec, CPU)
    return adapters.prepare(outline, spec, adapted), adapted


def lora_layers(subject):
    return {name: one for name, one in subject.named_modules() if hasattr(one, "lora_A")}


@pytest.mark.parametrize("rslora", [False, True])
def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank(rslora, spec_of):
    spec = spec_of(method="lora", rank=16, alpha=8, rslora=rslora)
    subject, _ = prepared(spec)
    scalings = {one.scaling["default"] for one in lora_layers(subject).values()}
    assert scalings == {8 / (math.sqrt(16) if rslora else 16)}


@pytest.mark.parametrize(
    "keywords", [{"method": "lora"}, {"quant": "nf4"}, {"quant": "int8"}], ids=str
)
@pytest.mark.parametrize("adapter_dtype", ["fp32", "bf16"])
def test_dora_s_magnitude_is_the_norm_of_each_row(keywords, adapter_dtype, spec_of):
    """In the adapters' dtype."""
    spec = spec_of(dora=True, adapter_dtype=adapter_dtype, **keywords)
    subject, adapted = prepared(spec)
    layers = lora_layers(subject)
    assert len(layers) == len(adapted) == 14
    plain, _ = prepared(spec_of(method="lora"))
    norms = {
        name: one.base_layer.weight.float().norm(dim=1) for name, one in lora_layers(plain).items()
    }
    for name, layer in layers.items():
        (magnitude,) = layer.lora_magnitude_vector.parameters()
        assert magnitude.dtype == model.DTYPES[adapter_dtype]
        torch.testing.assert_close(magnitude.float(), norms[name], rtol=0.1, atol=0.01)


def test_there_is_no_magnitude_without_dora(spec_of):
    subject, _ = prepared(spec_of(method="lora"))
    assert not [name for name, _ in subject.named_parameters() if "magnitude" in name]


@pytest.mark.parametrize(
    ("keywords", "dtype"),
    [
        ({"method": "lora"}, torch.bfloat16),
        ({"method": "lora", "dtype": "fp32"}, torch.float32),
        ({"method": "qlora"}, torch.float32),
        ({"method": "qlora", "kbit_upcast": False}, torch.bfloat16),
        ({"method": "lora", "adapter_dtype": "bf16", "dtype": "fp32"}, torch.float32),
    ],
)
def test_modules_to_save_are_copied_whole_in_the_dtype_of_the_base(keywords, dtype, spec_of):
    subject, _ = prepared(spec_of(modules_to_save=["lm_head", "model.norm"], **keywords))
    copies = {name: one for name, one in subject.named_parameters() if is_saved(name)}
    assert {name.partition(".modules_to_save.")[0] for name in copies} == {
        "base_model.model.lm_head",
        "base_model.model.model.norm",
    }
    for name, copy in copies.items():
        assert (copy.requires_grad, copy.dtype) == (True, dtype), name
        original = subject.get_parameter(name.replace("modules_to_save.default", "original_module"))
        assert not original.requires_grad
        assert torch.equal(copy, original), name
    others = [name for name, one in subject.named_parameters() if one.requires_grad]
    assert [name for name in others if not (is_adapter(name) or is_saved(name))] == []


@pytest.mark.parametrize(
    ("saved", "targets", "left"),
    [
        (["mlp"], "all-linear", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        (["q_proj"], "qv", {"v_proj"}),
        (["model.layers.0.mlp"], ["up_proj"], {"up_proj"}),
    ],
)
def test_what_is_trained_whole_gets_no_adapter(saved, targets, left, spec_of):
    subject, adapted = prepared(spec_of(method="lora", modules_to_save=saved, targets=targets))
    assert {name.rpartition(".")[2] for name in adapted} == left
    named = {name.removeprefix("base_model.model.") for name in lora_layers(subject)}
    assert named == adapted


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        (
            {"modules_to_save": ["head"]},
            (
                "modules_to_save: 'head' is not in this model, whose modules are called "
                "down_proj, embed_tokens, gate_proj, input_layernorm, k_proj, layers, lm_head, "
                "mlp, model, norm, o_proj, post_attention_layernorm, q_proj, self_attn, up_proj, "
                "v_proj"
            ),
        ),
        (
            {"modules_to_save": ["lm_head", "mlp"]},
            "modules_to_save: 'mlp' is quantised, which cannot be trained as a whole",
        ),
        (
            {"modules_to_save": ["q_proj"], "quant": "int8"},
            "modules_to_save: 'q_proj' is quantised, which cannot be trained as a whole",
        ),
        (
            {"modules_to_save": ["layers"], "method": "lora"},
            "modules_to_save: no module is left for adapters",
        ),
        (
            {"modules_to_save": ["q_proj"], "targets": ["q_proj"], "method": "lora"},
            "modules_to_save: no module is left for adapters",
        ),
        (
            {"targets": ["lm_head"]},
            (
                "targets: 'lm_head' is not in this model, whose linear modules are called "
                "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
            ),
        ),
    ],
)
def test_names_that_cannot_be_meant_are_refused(keywords, says, spec_of):
    spec = spec_of(**keywords)
    with pytest.raises(UnbuildableError) as error:
        adapters.targets(model.outline(spec), spec)
    assert str(error.value) == says


@pytest.mark.parametrize(
    "keywords",
    [{"method": "full"}, {"method": "lora"}, {"method": "qlora"}, {"kbit_upcast": False}],
    ids=str,
)
@pytest.mark.parametrize(("checkpointing", "reentrant"), [(True, False), ("reentrant", True)])
def test_checkpointing_is_of_the_asked_kind(keywords, checkpointing, reentrant, spec_of):
    subject, _ = prepared(spec_of(checkpointing=checkpointing, **keywords))
    kinds = {
        one._gradient_checkpointing_func.keywords["use_reentrant"]
        for one in subject.modules()
        if getattr(one, "gradient_checkpointing", False)
    }
    assert kinds == {reentrant}


@pytest.mark.parametrize(
    ("target", "module", "is_it"),
    [
        ("norm", "model.norm", True),
        ("norm", "norm", True),
        ("model.norm", "model.norm", True),
        ("norm", "model.layernorm", False),
        ("norm", "model.norm.weight", False),
    ],
)
def test_a_name_is_of_whole_parts(target, module, is_it):
    assert adapters.is_called(target, module) is is_it
