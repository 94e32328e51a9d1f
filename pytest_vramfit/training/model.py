"""The base model: built on ``meta``, then materialised module by module with random weights.

Nothing is downloaded and no more than one unquantised module lives on the device at a time, so a
7B model in 4 bit is ready in under a second with the bytes of a loaded checkpoint.
"""

from __future__ import annotations

import difflib

import bitsandbytes.functional
import torch
from bitsandbytes.nn import Params4bit
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PreTrainedModel,
)
from transformers.quantizers.auto import AutoHfQuantizer

from pytest_vramfit.spec import TrainSpec

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SEED = 0
_LONGEST_ERROR = 300


class UnbuildableError(ValueError):
    """The spec names something that the model or its libraries do not have: one sentence."""


def outline(spec: TrainSpec) -> PreTrainedModel:
    """The model on ``meta``, with 4-bit linears in place where the spec quantises; no bytes yet."""
    values = dict(spec.config)
    model_type = values.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING), n=1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise UnbuildableError(f"model_type {model_type!r} is unknown to transformers{hint}")
    try:
        config = AutoConfig.for_model(model_type, **values)
        config.use_cache = False
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=DTYPES[spec.dtype], attn_implementation=spec.attention
            )
    except Exception as error:  # transformers checks config values by raising what it likes
        raise UnbuildableError(f"model: {_one_line(error)}") from error
    if spec.method == "qlora":
        _lay_out_in_4bit(model, spec)
    model.tie_weights()
    return model


def _lay_out_in_4bit(model: PreTrainedModel, spec: TrainSpec) -> None:
    """What ``from_pretrained(quantization_config=...)`` does around the loading of weights."""
    quantiser = AutoHfQuantizer.from_config(
        BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=spec.quant,
            bnb_4bit_use_double_quant=spec.double_quant,
            bnb_4bit_compute_dtype=DTYPES[spec.precision],
        ),
        pre_quantized=False,
    )
    quantiser.preprocess_model(model, device_map=None)
    quantiser.postprocess_model(model)
    model.hf_quantizer = quantiser


def materialise(model: PreTrainedModel, spec: TrainSpec, device: torch.device) -> None:
    """Give every parameter and buffer of an outline its bytes on ``device``, in place.

    Values come from the model's own initialisation under a fixed seed; buffers that are computed
    (rotary frequencies) come out right with it. 4-bit linears are quantised one by one.
    """
    dtype = DTYPES[spec.dtype]
    torch.manual_seed(SEED)
    made: dict[int, nn.Parameter] = {}  # by the outline's parameter: tied modules share one
    with torch.no_grad():
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device=device)
            outlines = {n: one for n, one in module._parameters.items() if one is not None}
            for name, one in outlines.items():
                if one.is_meta and id(one) not in made:
                    value = torch.empty(one.shape, dtype=dtype, device=device)
                    made[id(one)] = nn.Parameter(value, one.requires_grad)
                module._parameters[name] = made.get(id(one), one)
            model._init_weights(module)
            for name, one in outlines.items():
                if isinstance(one, Params4bit):
                    module._parameters[name] = _quantise(made.pop(id(one)), one)
    left = [
        name for name, one in (*model.named_parameters(), *model.named_buffers()) if one.is_meta
    ]
    if left:
        raise UnbuildableError(f"model: {left[0]} got no bytes, so its class cannot be built here")


def forget_tables() -> None:
    """Drop bitsandbytes' tables of double quantisation, which it would keep on the device for the
    life of the process, so that every case makes its own.
    """
    bitsandbytes.functional.name2qmap.clear()


def _quantise(weight: nn.Parameter, outline: Params4bit) -> nn.Parameter:
    """The 4-bit form of ``weight``, as transformers makes it when it loads a checkpoint."""
    quantised: nn.Parameter = Params4bit(weight.data, requires_grad=False, **outline.__dict__).to(
        weight.device
    )
    return quantised


def _one_line(error: BaseException) -> str:
    """The error in one line: of several lines the first two, which name the field and its fault."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = " ".join(lines[:2])[:_LONGEST_ERROR]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
