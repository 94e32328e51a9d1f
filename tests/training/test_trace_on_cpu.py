"""Aimed at the CPU, a trace has the bytes of the CPU engine, phase by phase, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measuring import LEAST, measured
from test_architectures import CONFIGS, EAGER, ROLES, SHAPE
from tracing import CPU, STEPS, measured_figures, one_thread, shown, traced_figures  # noqa: F401

from pytest_vramfit.estimating.estimate import Estimator
from pytest_vramfit.estimating.run import trace

# PEFT sets it right for GPT-2's layers, and says so
pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")


def config(model_type):
    """Of an architecture that the catalogue does not have."""
    extra, *_ = ROLES.get(model_type, ({},))
    return {"model_type": model_type, **SHAPE, **extra, "bos_token_id": 1, "eos_token_id": 2}


LATENT = config("deepseek_v2")


def wrong(keywords, reason):
    """A case in which the trace is known to differ."""
    return pytest.param(keywords, marks=pytest.mark.xfail(reason=reason))


ARCHITECTURES = [
    ("gemma2", {"method": "lora", "checkpointing": True}),
    ("gemma3_text", {"targets": "qv"}),
    ("gpt2", {"attention": "eager", "method": "full"}),
    ("gpt_oss", {"method": "lora"}),
    ("llama", {"method": "full", "checkpointing": True, "optimizer": "adamw_8bit"}),
    ("mistral", {"method": "lora", "checkpointing": "reentrant"}),
    ("mixtral", {"method": "full", "optimizer": "sgd"}),
    ("opt", {"optimizer": "adafactor"}),
    ("phi3", {"method": "lora", "autocast": False}),
    ("qwen2", {"accumulation": 2, "batch": 2}),
    ("qwen3", {"precision": "fp16", "checkpointing": True}),
    ("qwen3_moe", {"method": "lora", "targets": "attention"}),
]
SETTINGS = [
    {},
    {"precision": "fp16", "autocast": False},
    {"precision": "fp32"},
    {"attention": "eager", "precision": "fp16"},
    {"checkpointing": "reentrant", "optimizer": "adamw_8bit"},
    {"quant": "fp4", "double_quant": False, "kbit_upcast": False},
    {"rslora": True, "modules_to_save": ["lm_head"], "dropout": 0},
    {"dora": True, "checkpointing": "reentrant"},
    {"adapter_dtype": "bf16", "max_grad_norm": None, "seq": 33},
    {"method": "lora", "dora": True, "accumulation": 3, "checkpointing": True},
    {"method": "lora", "modules_to_save": ["embed_tokens"], "dtype": "fp32"},
    {"method": "full", "precision": "fp16", "accumulation": 2},
    {"method": "full", "optimizer": "adamw_fused", "dtype": "bf16", "autocast": False},
    {"method": "full", "optimizer": "adafactor", "checkpointing": "reentrant"},
    {"method": "full", "precision": "fp32", "attention": "eager", "seq": 2, "batch": 3},
    {"method": "full", "model": LATENT, "attention": "eager"},
    wrong({"model": CONFIGS["gpt2"]}, "PyTorch's flash kernel for CPUs takes no dropout"),
    wrong({"method": "full", "model": LATENT}, "nor does it take values narrower than keys"),
    wrong(
        {"method": "lora", "model": config("falcon"), "attention": "eager"},
        "indices from Python lists are no allocations on meta",
    ),
    wrong(
        {"method": "lora", "model": config("phi"), "attention": "eager", "seq": 300},
        "layer norm on a CPU keeps its statistics in the type of its input",
    ),
    {"method": "lora", "model": LATENT, "attention": "eager", "dropout": 0},
    wrong({"quant": "int8"}, "bitsandbytes multiplies differently on a CPU"),
]


def assert_equal(spec):
    seen, expected = traced_figures(trace(spec, CPU)), measured_figures(spec)
    assert len(expected.phases) == STEPS * (2 * spec.accumulation + 1)
    assert (seen.loaded, seen.phases) == (expected.loaded, expected.phases)


@pytest.mark.parametrize(("model_type", "keywords"), ARCHITECTURES, ids=shown)
def test_every_architecture_has_the_bytes_that_the_cpu_engine_sees(model_type, keywords, spec_of):
    attention = "eager" if model_type in EAGER else "sdpa"
    assert_equal(spec_of(**{"model": CONFIGS[model_type], "attention": attention, **keywords}))


@pytest.mark.filterwarnings("ignore:The following \\w+_pattern keys")  # experts in one tensor
@pytest.mark.parametrize("keywords", SETTINGS, ids=shown)
def test_every_setting_has_the_bytes_that_the_cpu_engine_sees(keywords, spec_of):
    assert_equal(spec_of(**keywords))


@pytest.mark.parametrize(
    "keywords",
    [
        {"kbit_upcast": False},
        {"method": "lora"},
        {"quant": "int8"},
        wrong({"precision": "fp32"}, "adapters count where they are made and where they are moved"),
        {"method": "full", "model": CONFIGS["gpt2"], "attention": "eager"},
    ],
    ids=shown,
)
def test_loading_has_the_peak_that_the_cpu_engine_sees(keywords, spec_of):
    spec = spec_of(**keywords)
    assert traced_figures(trace(spec, CPU)).load_peak == measured_figures(spec).load_peak


@pytest.mark.parametrize("keywords", [{}, {"method": "lora", "accumulation": 2}], ids=shown)
def test_the_estimate_for_the_cpu_is_what_measuring_shows(keywords, spec_of):
    """Through the allocator's model, too, which takes no more than whole blocks of tiny tensors."""
    spec = spec_of(**keywords)
    seen, expected = Estimator().estimate(spec, CPU).memory, measured(spec, LEAST).memory
    assert seen.phases == expected.phases
    assert seen.first_step_peak_allocated_bytes == expected.first_step_peak_allocated_bytes
    assert seen.allocated_after_step_bytes == expected.allocated_after_step_bytes
    assert seen.managed_bytes == expected.managed_bytes == 0


@pytest.mark.filterwarnings("ignore:Merge lora module to 4-bit linear:UserWarning")
@pytest.mark.parametrize(
    "keywords",
    [
        wrong({}, "outside of training bitsandbytes packs weights for its own product on a CPU"),
        {"method": "lora", "modules_to_save": ["lm_head"], "dtype": "fp32"},
        {"method": "lora", "dora": True},
        {"method": "lora", "model": CONFIGS["gpt2"], "attention": "eager", "dropout": 0},
        {"method": "full", "attention": "eager", "optimizer": "adamw_8bit"},
    ],
    ids=shown,
)
def test_what_follows_the_steps_has_the_peaks_that_measuring_shows(keywords, spec_of):
    spec = spec_of(**keywords)
    phases = ("eval", "save") if spec.method == "full" else ("eval", "save", "merge")
    schedule = replace(LEAST, phases=phases, eval_batch=3)
    seen, expected = Estimator().estimate(spec, CPU, schedule=schedule), measured(spec, schedule)
    assert seen.phases == expected.phases
    assert tuple(seen.phases) == phases
    # and nothing of it is in the figures of the steps
    assert seen.memory == Estimator().estimate(spec, CPU).memory
