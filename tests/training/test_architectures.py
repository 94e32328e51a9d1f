"""Every architecture of the catalogue, scaled down, trains under every method and passes its proof;
presets of targets go by what a projection does, whatever it is called.
"""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from measuring import judged, objections

from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.config import UnbuildableError

TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "ffn_dim": 128,
    "word_embed_proj_dim": 64,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
"""Of the shapes that a config has."""
EXPERTS = {"mixtral": 788_480, "qwen3_moe": 395_264, "gpt_oss": 798_720}
"""Mixtures of experts keep these in one tensor, which bitsandbytes does not quantise: the bytes of
that and of the router.
"""
EAGER = {"gemma2", "gpt_oss"}
"""They have no sdpa, gemma2 only since transformers 5.24."""


def scaled_down():
    """The first row of each architecture, by its type."""
    text = files("pytest_vramfit.catalog").joinpath("models.json").read_text(encoding="utf-8")
    found = {}
    for row in json.loads(text)["models"].values():
        config = row["config"]
        small = {key: value for key, value in SMALL.items() if key in config}
        found.setdefault(config["model_type"], {**config, **small, **dict.fromkeys(TOKENS)})
    return found


CONFIGS = scaled_down()
SETTINGS = {
    "qlora": {},
    "lora": {"method": "lora"},
    "full": {"method": "full"},
    "attention": {"targets": "attention"},
    "qv, checkpointed": {"targets": "qv", "checkpointing": True},
    "int8": {"quant": "int8"},
}


@pytest.fixture
def spec_like(spec_of):
    def spec_like(model_type, **keywords):
        attention = "eager" if model_type in EAGER else "sdpa"
        return spec_of(model=CONFIGS[model_type], attention=attention, **keywords)

    return spec_like


# PEFT sets it right for GPT-2's layers, and says so
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model_type", sorted(CONFIGS.keys() - EXPERTS))
def test_it_trains(model_type, setting, spec_like):
    assert objections(spec_like(model_type, **SETTINGS[setting])) == []


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("model_type", EXPERTS)
def test_a_mixture_of_experts_trains(model_type, method, spec_like):
    assert objections(spec_like(model_type, method=method)) == []


@pytest.mark.parametrize("setting", [one for one in SETTINGS if one not in ("lora", "full")])
@pytest.mark.parametrize("model_type", EXPERTS)
def test_experts_that_stay_unquantised_are_no_qlora(model_type, setting, spec_like):
    spec = spec_like(model_type, **SETTINGS[setting])
    (share, *_), (kind, size, first, *others) = objections(spec)
    assert (share, kind) == ("not_quantised", "unquantised")
    assert (int(size), first) == (EXPERTS[model_type], "model.layers.*.mlp.experts")
    assert len(others) == 1  # the router


def test_a_smaller_part_that_stays_unquantised_is_said(spec_of):
    """Experts of a quarter of the attention's size."""
    config = {**CONFIGS["mixtral"], "intermediate_size": 16, "num_local_experts": 2}
    case = judged(spec_of(model=config))
    (trained,) = (one for one in case.checks if one.name == "trained")
    assert (case.outcome, trained.status) == ("fits", "pass")
    assert [one.kind for one in trained.findings] == ["unquantised"]


SHAPE = {key: SMALL[key] for key in ("vocab_size", "hidden_size", "intermediate_size")} | {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
ROLES = {
    "llama": ({}, "q_proj v_proj", "k_proj o_proj"),
    "phi": ({}, "q_proj v_proj", "k_proj dense"),
    "phi3": ({"pad_token_id": 0}, "qkv_proj", "o_proj"),
    "gpt2": ({}, "c_attn", "c_proj"),
    "gpt_bigcode": ({}, "c_attn", "c_proj"),
    "gpt_neox": ({}, "query_key_value", "dense"),
    "bloom": ({}, "query_key_value", "dense"),
    "gptj": ({"rotary_dim": 8}, "q_proj v_proj", "k_proj out_proj"),
    "codegen": ({"rotary_dim": 8}, "qkv_proj", "out_proj"),
    "deepseek_v2": (
        {**LATENT, "q_lora_rank": 16, "topk_method": "greedy"},
        "q_b_proj kv_b_proj",
        "q_a_proj kv_a_proj_with_mqa o_proj",
    ),
    "deepseek_v3": (
        {**LATENT, "q_lora_rank": None},
        "q_proj kv_b_proj",
        "kv_a_proj_with_mqa o_proj",
    ),
}
"""What makes queries and values in each architecture, and what else its attention has."""


def targeted(model_type, preset, spec_of):
    extra, *_ = ROLES[model_type]
    config = {"model_type": model_type, **SHAPE, **extra, "bos_token_id": 1, "eos_token_id": 2}
    spec = spec_of(model=config, targets=preset, attention="eager")
    names = adapters.targets(model.outline(spec), spec)
    return {name.rpartition(".")[2] for name in names}, len(names)


@pytest.mark.parametrize("model_type", ROLES)
def test_qv_is_what_makes_queries_and_values(model_type, spec_of):
    _, made_by, _ = ROLES[model_type]
    names, number = targeted(model_type, "qv", spec_of)
    assert names == set(made_by.split())
    assert number == 2 * len(names)  # of each layer, and none outside its attention


@pytest.mark.parametrize("model_type", ROLES)
def test_attention_is_all_linears_of_the_attention(model_type, spec_of):
    _, made_by, others = ROLES[model_type]
    names, number = targeted(model_type, "attention", spec_of)
    assert names == {*made_by.split(), *others.split()}
    assert number == 2 * len(names)


@pytest.mark.parametrize(
    ("model_type", "preset", "linears"),
    [
        ("mamba", "attention", "dt_proj, in_proj, out_proj, x_proj"),
        ("mamba", "qv", "dt_proj, in_proj, out_proj, x_proj"),
        ("mpt", "qv", "Wqkv, down_proj, out_proj, up_proj"),
    ],
)
def test_a_preset_that_means_nothing_is_refused(model_type, preset, linears, spec_of):
    shape = {"vocab_size": 64, "d_model": 64, "n_heads": 4, "n_layers": 2, "num_hidden_layers": 2}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = {"model_type": model_type, **shape, **tokens}
    spec = spec_of(model=config, method="lora", targets=preset, attention="eager")
    with pytest.raises(UnbuildableError) as error:
        adapters.targets(model.outline(spec), spec)
    assert str(error.value) == (
        f"targets: {preset!r} is not in this model, whose linear modules are called {linears}"
    )


MAMBA = {"model_type": "mamba", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2}
MAMBA |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def test_an_architecture_that_peft_does_not_adapt_is_refused(spec_of):
    spec = spec_of(model=MAMBA, method="lora", attention="eager")
    with pytest.raises(UnbuildableError) as error:
        judged(spec)
    assert str(error.value).startswith(
        "targets: PEFT cannot adapt dt_proj, in_proj, out_proj, x_proj of this model: ValueError: "
        "[PEFT:PeftType.LORA] Module 'out_proj' is incompatible with Mamba-based models"
    )


def test_an_architecture_that_reads_its_weights_is_not_quantised(spec_of):
    with pytest.raises(UnbuildableError) as error:
        model.outline(spec_of(model=MAMBA, attention="eager"))
    assert str(error.value) == (
        "model_type 'mamba' reads the weights of its linear modules itself, so they cannot be "
        "quantised; write method='lora' or 'full'"
    )


def test_its_other_modules_are_adapted(spec_of):
    names = ["in_proj", "x_proj"]
    spec = spec_of(model=MAMBA, method="lora", attention="eager", targets=names)
    assert objections(spec) == []


LLAMA4 = {**SHAPE, "model_type": "llama4_text", "num_key_value_heads": 4, "num_local_experts": 4}


def test_a_router_that_is_more_than_a_linear_is_no_target(spec_of):
    spec = spec_of(model=LLAMA4, method="lora", attention="eager")
    with pytest.raises(UnbuildableError) as error:
        adapters.targets(model.outline(spec), spec)
    assert str(error.value) == (
        "targets: router of this model does more than a linear module, so an adapter around it "
        "breaks; write a list of others: down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, "
        "v_proj"
    )


def test_what_is_a_linear_under_another_name_is_one(spec_of):
    config = {**SHAPE, "model_type": "falcon"}
    spec = spec_of(model=config, method="lora", attention="eager")
    assert objections(spec) == []


PART = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4}
PART |= {"num_hidden_layers": 1, "hidden_size_global": 64}
BLT = {
    "model_type": "blt",
    "encoder_hash_byte_group_vocab": 500,
    **dict.fromkeys(["encoder_config", "decoder_config", "global_config", "patcher_config"], PART),
}


def test_a_model_of_several_parts_is_judged(spec_of):
    """Its patcher is not trained, by its own forward pass."""
    (kind, first, *_), *_ = objections(spec_of(model=BLT, method="lora", attention="eager"))
    assert (kind, first.split(".")[3]) == ("without_gradient", "patcher")
