"""A model that is built on meta and materialised is the model that loading would give."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

from pytest_vramfit.training import model as building
from pytest_vramfit.training.config import UnbuildableError

CPU = torch.device("cpu")
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def built(spec):
    model = building.outline(spec)
    building.materialise(model, spec, CPU)
    return model


def loaded(spec, folder):
    """The same architecture, saved as a checkpoint and loaded with transformers' own quantiser."""
    values = dict(spec.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    quantisation = None
    if spec.quant == "int8":
        quantisation = BitsAndBytesConfig(load_in_8bit=True)
    elif spec.method == "qlora":
        quantisation = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=spec.quant,
            bnb_4bit_use_double_quant=spec.double_quant,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=quantisation, device_map={"": "cpu"}
    )


def tensors(model):
    """Name, dtype, shape and bytes of everything the model holds, quantisation states included."""
    found = {}
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        found[name] = (one.dtype, tuple(one.shape), one.untyped_storage().nbytes())
        state = getattr(one, "quant_state", None)
        if state is not None:
            found[f"{name}.absmax"] = (state.absmax.dtype, tuple(state.absmax.shape))
            found[f"{name}.quantised"] = (state.quant_type, state.nested, tuple(state.shape))
        constants = getattr(one, "SCB", None)
        if constants is not None:
            found[f"{name}.SCB"] = (constants.dtype, tuple(constants.shape))
    return found


@pytest.mark.parametrize(
    "keywords",
    [
        {"method": "qlora"},
        {"method": "qlora", "double_quant": False},
        {"method": "qlora", "quant": "fp4"},
        {"method": "qlora", "quant": "int8"},
        {"method": "lora"},
        {"method": "qlora", "model": {"model_type": "qwen2", "tie_word_embeddings": True, **SHAPE}},
        {"method": "qlora", "model": {"model_type": "gemma3_text", "head_dim": 16, **SHAPE}},
    ],
    ids=["qlora", "single-quant", "fp4", "int8", "lora", "qwen2-tied", "gemma3"],
)
def test_it_has_the_bytes_of_a_loaded_checkpoint(keywords, spec_of, tmp_path):
    spec = spec_of(**keywords)
    assert tensors(built(spec)) == tensors(loaded(spec, tmp_path))


def test_rotary_frequencies_are_those_of_a_model_built_on_the_cpu(spec_of):
    spec = spec_of(method="lora")
    values = dict(spec.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    reference = AutoModelForCausalLM.from_config(config)
    ours = dict(built(spec).named_buffers())
    for name, buffer in reference.named_buffers():
        assert torch.equal(ours[name], buffer), name


def test_every_computed_buffer_of_gemma_is_right(spec_of):
    """Gemma scales its embeddings by a buffer that no checkpoint holds."""
    spec = spec_of(model={"model_type": "gemma3_text", "head_dim": 16, **SHAPE}, method="lora")
    values = dict(spec.config)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    reference = dict(AutoModelForCausalLM.from_config(config).named_buffers())
    ours = dict(built(spec).named_buffers())
    assert ours.keys() == reference.keys()
    for name, buffer in reference.items():
        torch.testing.assert_close(ours[name].float(), buffer.float(), msg=name)


def test_tied_weights_are_one_tensor(spec_of):
    model = built(spec_of(model={"model_type": "qwen2", "tie_word_embeddings": True, **SHAPE}))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_weights_are_the_same_every_time_and_not_constant(spec_of):
    first, second = built(spec_of(method="lora")), built(spec_of(method="lora"))
    for name, one in first.named_parameters():
        assert torch.equal(one, second.get_parameter(name)), name
    assert first.lm_head.weight.float().std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.equal(first.model.norm.weight, torch.ones_like(first.model.norm.weight))


def test_the_base_of_full_fine_tuning_is_in_fp32(spec_of):
    dtypes = {one.dtype for one in built(spec_of(method="full")).parameters()}
    assert dtypes == {torch.float32}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is unknown to transformers; the nearest is"),
        ({"model_type": "llama", "hidden_act": "nothing"}, "model: KeyError: 'nothing'"),
        ({"model_type": "t5"}, "model_type 't5' is no causal language model to transformers"),
    ],
)
def test_what_transformers_refuses_is_one_sentence(values, says, spec_of):
    with pytest.raises(UnbuildableError, match=says) as error:
        built(spec_of(model=values))
    assert "\n" not in str(error.value)
