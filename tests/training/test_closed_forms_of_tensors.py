"""The closed forms against real tensors of every architecture, method and optimizer."""

from __future__ import annotations

import bitsandbytes.functional
import pytest
import torch
from bitsandbytes.nn import Int8Params, Params4bit
from transformers import AutoConfig, AutoModelForCausalLM

from pytest_vramfit.estimating import closed_forms
from pytest_vramfit.estimating.transformer import transformer
from pytest_vramfit.recorder import Recorder
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.adapters import is_adapter, is_saved
from pytest_vramfit.training.step import make_optimizer

pytestmark = pytest.mark.filterwarnings(
    # PEFT sets it right for GPT-2's layers, and says so
    "ignore:fan_in_fan_out is set to False:UserWarning",
    "ignore:Paged optimizers are not supported on CPU:UserWarning",
)

CPU = torch.device("cpu")
TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SHAPE = {
    "vocab_size": 2600,
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **TOKENS,
}
"""No multiple of a block; matrices below and above the least of 8-bit states, embeddings above that
of paged ones.
"""
GPT2 = {"n_embd": 40, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 2600, **TOKENS}
CONFIGS = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 12},
    "llama, tied": {"tie_word_embeddings": True},
    "mistral": {"attention_bias": True},
    "qwen2": {"attention_bias": True, "num_key_value_heads": None},
    "qwen3": {"attention_bias": True, "mlp_bias": True, "head_dim": 12},
    "qwen3, tied": {"tie_word_embeddings": True},
    "gemma2": {"attention_bias": True, "head_dim": 12},
    "gemma3_text": {"head_dim": 12, "tie_word_embeddings": False},
    "phi3": {"head_dim": 12},
    "gpt2": {},
    "gpt2, untied": {"n_inner": 72, "tie_word_embeddings": False},
    "gpt2, other names": {"hidden_size": 44, "num_hidden_layers": 3},
    "opt": {"ffn_dim": 72, "max_position_embeddings": 64},
    "opt, projected": {
        "ffn_dim": 72,
        "word_embed_proj_dim": 24,
        "do_layer_norm_before": False,
        "enable_bias": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": 64,
    },
}
"""By model type and what is particular."""


def config_of(name):
    model_type = name.split(",")[0].split()[0]
    shape = GPT2 if model_type == "gpt2" else SHAPE
    return {"model_type": model_type, **shape, **CONFIGS[name]}


def prepared(spec):
    """The model as it is trained, with its tensors."""
    model.forget_tables()
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    model.materialise(outline, spec, CPU)
    return adapters.prepare(outline, spec, adapted)


def stepped(subject, spec):
    """Its optimizer, with the states of one step, and the parameters that it has."""
    trained = [one for one in subject.parameters() if one.requires_grad]
    for one in trained:
        one.grad = torch.ones_like(one)
    optimizer = make_optimizer(trained, spec)
    optimizer.step()
    return optimizer, trained


def constants(parameter):
    """The tensors beside a quantised matrix."""
    if isinstance(parameter, Int8Params):
        return [parameter.SCB]
    state = parameter.quant_state
    nested = [state.offset, state.state2.absmax, state.state2.code] if state.nested else []
    return [state.absmax, state.code, *nested]


def size(tensors):
    """Bytes of their storages, one that they share counted once."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def real(spec):
    """The parts as they are, but what is kept for backward and loss."""
    subject = prepared(spec)
    named = dict(subject.named_parameters())
    added = {name for name in named if is_adapter(name) or is_saved(name)}
    quantised = [one for one in named.values() if isinstance(one, Params4bit | Int8Params)]
    tables = bitsandbytes.functional.name2qmap.values()
    quantisation = size([one for parameter in quantised for one in constants(parameter)])
    optimizer, trained = stepped(subject, spec)
    # a GPU has torch's counters of steps only where the optimizer is fused
    on_cpu = {"step"} if spec.optimizer == "adamw" else set()
    states = [
        (key, value)
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and key not in on_cpu
    ]
    # the CPU has no managed memory: those that bitsandbytes asks for it by size
    managed = [
        value
        for key, value in states
        if spec.paged and key in ("state1", "state2") and value.numel() >= 100_000
    ]
    return {
        "weights": size([one for name, one in named.items() if name not in added]),
        "quantisation": quantisation + size(tables),
        "adapters": size([named[name] for name in added]),
        "gradients": size([one.grad for one in trained]),
        "optimizer": size([value for _, value in states]) - size(managed),
        "managed": size(managed),
    }


def told(spec):
    parts = closed_forms.parts(spec)
    names = ("weights", "quantisation", "adapters", "gradients", "optimizer", "managed")
    return {name: getattr(parts, name) for name in names}


METHODS = {
    "full": {"method": "full"},
    "lora": {"method": "lora", "rank": 3},
    "qlora": {"method": "qlora", "rank": 3},
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CONFIGS)
def test_parts_are_the_bytes_of_every_architecture_s_tensors(name, method, spec_of):
    spec = spec_of(model=config_of(name), attention="eager", **METHODS[method])
    assert told(spec) == real(spec)


@pytest.mark.parametrize(
    "keywords",
    [
        {"double_quant": False},
        {"quant": "fp4", "kbit_upcast": False},
        {"quant": "int8"},
        {"quant": "int8", "kbit_upcast": False, "adapter_dtype": "bf16"},
        {"dora": True, "targets": "qv"},
        {"dtype": "fp32", "kbit_upcast": False},
        {"targets": ["down_proj", "self_attn.k_proj", "model.layers.1.self_attn.o_proj"]},
        {"modules_to_save": ["lm_head", "model.norm"]},
        {"modules_to_save": ["norm"], "kbit_upcast": False},
        {"method": "lora", "modules_to_save": ["mlp"], "dtype": "fp32"},
        {"method": "lora", "modules_to_save": ["model.layers.0"], "adapter_dtype": "bf16"},
        {"method": "lora", "targets": "attention", "precision": "fp16"},
        {"method": "full", "dtype": "bf16"},
        {"method": "full", "precision": "fp32"},
    ],
    ids=str,
)
def test_parts_are_the_bytes_of_every_setting_s_tensors(keywords, spec_of):
    spec = spec_of(model=config_of("llama with biases"), **keywords)
    assert told(spec) == real(spec)


@pytest.mark.parametrize("target", ["all-linear", "attention", "qv"])
@pytest.mark.parametrize("name", ["phi3", "gpt2", "opt, projected"])
def test_targets_are_found_in_fused_projections_too(name, target, spec_of):
    spec = spec_of(model=config_of(name), attention="eager", targets=target, method="lora")
    assert told(spec) == real(spec)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("saved", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_copies_of_tied_modules_are_apart(saved, spec_of):
    spec = spec_of(model=config_of("llama, tied"), modules_to_save=saved)
    assert told(spec) == real(spec)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "optimizer",
    [
        *("adamw", "adamw_fused", "adamw_8bit", "paged_adamw", "paged_adamw_8bit"),
        *("sgd", "adafactor"),
    ],
)
def test_states_are_the_bytes_of_every_optimizer_s_tensors(optimizer, dtype, spec_of):
    """In full: matrices, biases and norms below and above the least of 8 bit and of paging."""
    config = config_of("llama with biases")
    spec = spec_of(model=config, method="full", dtype=dtype, optimizer=optimizer)
    assert told(spec) == real(spec)


@pytest.mark.parametrize("model_type", sorted({name.split(",")[0].split()[0] for name in CONFIGS}))
def test_what_a_config_does_not_say_is_what_transformers_takes(model_type):
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type))
    expected = {name: tuple(one.shape) for name, one in built.named_parameters()}
    told = transformer({"model_type": model_type})
    found = {}
    for module in told.modules[:-1] if told.tied else told.modules:
        shapes = zip((".weight", ".bias"), module.shapes, strict=False)
        found |= {module.name + name: shape for name, shape in shapes}
    transposed = model_type == "gpt2"  # Conv1D
    linears = {f"{one.name}.weight" for one in told.modules if one.kind == "linear"}
    assert found == {
        name: shape[::-1] if transposed and name in linears else shape
        for name, shape in expected.items()
    }


def kept_and_peak(spec, *, keep_output=False):
    """Bytes that forward leaves for backward, and the most in backward; both beyond the model's."""
    subject = prepared(spec)
    ids = torch.zeros(spec.batch, spec.seq, dtype=torch.int64)

    def forward():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=spec.autocast):
            output = subject(input_ids=ids, labels=ids)
        return output if keep_output else output.loss

    with Recorder("cpu") as recorder:
        forward()  # it shows the recorder what the model is, and casts biases once for all
        before = recorder.live_bytes
        result = forward()
        kept = recorder.live_bytes - before
        recorder.reset_peak()
        (result.loss if keep_output else result).backward()
    return kept, recorder.peak_bytes - before


def wide(name, spec_of, **changes):
    """A spec with checkpointing whose tensors fill blocks of 512 bytes, and whose tokens outnumber
    the width, so that the loss is the peak of backward.
    """
    config = {**config_of(name), "hidden_size": 64, "intermediate_size": 64, "vocab_size": 4096}
    config |= {"head_dim": 16} if name.startswith("gemma") else {}
    config |= {"n_embd": 64} if name == "gpt2" else {}
    shapes = {key: changes.pop(key) for key in {*changes} & {"vocab_size", "num_hidden_layers"}}
    keywords = {"attention": "eager", "checkpointing": True, "seq": 64, "batch": 2}
    return spec_of(model=config | shapes, **{**keywords, **changes})


SETTINGS = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "qlora": {},
    "qlora, no autocast": {"autocast": False},
    "qlora, no upcast": {"kbit_upcast": False},
    "qlora, reentrant": {"checkpointing": "reentrant"},
    "qlora, int8": {"quant": "int8", "checkpointing": "reentrant"},
}
CASES = [
    *(("llama", setting) for setting in SETTINGS),
    *((name, setting) for name in ("gemma2", "gpt2", "opt") for setting in ("lora", "qlora")),
    ("gemma2", "qlora, no autocast"),
]


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_each_layer_more_keeps_its_input(name, setting, spec_of):
    """From the second on: two layers have both masks of gemma2."""
    few, many = (
        wide(name, spec_of, num_hidden_layers=layers, **SETTINGS[setting]) for layers in (2, 4)
    )
    told = closed_forms.parts(many).activations - closed_forms.parts(few).activations
    assert kept_and_peak(many)[0] - kept_and_peak(few)[0] == told


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_each_token_more_in_the_vocabulary_adds_to_the_loss(name, setting, spec_of):
    """And to the copy of the head where autocast casts it."""
    small, large = (
        wide(name, spec_of, vocab_size=size, **SETTINGS[setting]) for size in (4096, 8192)
    )
    told = [closed_forms.parts(one) for one in (small, large)]
    before, after = (one.logits + one.activations for one in told)
    assert kept_and_peak(large)[1] - kept_and_peak(small)[1] == after - before


@pytest.mark.parametrize(("autocast", "size"), [(True, 14), (False, 16)])
def test_who_keeps_the_output_keeps_the_logits(autocast, size, spec_of):
    """In the precision of the arithmetic, or fp32 after k-bit preparation."""
    small, large = (
        wide("llama", spec_of, vocab_size=one, autocast=autocast) for one in (4096, 8192)
    )
    head = closed_forms.parts(large).activations - closed_forms.parts(small).activations
    before, after = (kept_and_peak(one, keep_output=True)[1] for one in (small, large))
    assert after - before - head == size * (8192 - 4096) * large.seq * large.batch


def test_int8_keeps_more_than_the_inputs_of_layers(spec_of):
    """Of every matrix its input, which bitsandbytes puts where checkpointing does not look: there
    is no closed form for it.
    """
    few, many = (wide("llama", spec_of, num_hidden_layers=one, quant="int8") for one in (2, 4))
    assert closed_forms.parts(many).activations is None
    inputs = 2 * 128 * 64 * 4
    assert kept_and_peak(many)[0] - kept_and_peak(few)[0] > 2 * inputs
