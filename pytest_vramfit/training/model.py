"""The base model: built on ``meta``, then materialised module by module with random weights.

Nothing is downloaded and no more than one unquantised module lives on the device at a time, so a
7B model in 4 bit is ready in under a second with the bytes of a loaded checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import bitsandbytes.functional
import torch
from bitsandbytes.nn import Int8Params, Linear8bitLt, Params4bit
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel
from transformers.quantizers.auto import AutoHfQuantizer

from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.config import UnbuildableError, config_of, one_line

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SEED = 0


def outline(spec: TrainSpec) -> PreTrainedModel:
    """The model on ``meta``, with quantised linears in place where the spec has them; no bytes yet.

    Raises UnbuildableError.
    """
    _check_packages(spec)
    try:
        config = config_of(spec)
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, dtype=DTYPES[spec.dtype], attn_implementation=spec.attention
            )
    except UnbuildableError:
        raise
    except Exception as error:  # transformers checks config values by raising what it likes
        raise UnbuildableError(f"model: {one_line(error)}") from error
    if spec.method == "qlora":
        _lay_out_quantised(model, spec)
    model.tie_weights()
    return model


def _check_packages(spec: TrainSpec) -> None:
    """Raise UnbuildableError where what the spec asks for is not installed here."""
    needs = {
        "liger=True": ("liger_kernel", "liger-kernel", spec.liger),
        "attention='flash_attention_2'": (
            "flash_attn",
            "flash-attn",
            spec.attention == "flash_attention_2",
        ),
    }
    for asked, (module, package, wanted) in needs.items():
        if wanted and find_spec(module) is None:
            raise UnbuildableError(f"{asked} needs the package {package}, which is not installed")


def _lay_out_quantised(model: PreTrainedModel, spec: TrainSpec) -> None:
    """What ``from_pretrained(quantization_config=...)`` does around the loading of weights."""
    quantiser = AutoHfQuantizer.from_config(quantisation(spec), pre_quantized=False)
    quantiser.preprocess_model(model, device_map=None)
    quantiser.postprocess_model(model)
    model.hf_quantizer = quantiser


def quantisation(spec: TrainSpec) -> BitsAndBytesConfig:
    """How bitsandbytes keeps the base."""
    if spec.quant == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=spec.quant,
        bnb_4bit_use_double_quant=spec.double_quant,
        bnb_4bit_compute_dtype=DTYPES[spec.precision],
    )


def build(outline: PreTrainedModel, spec: TrainSpec, device: torch.device) -> PreTrainedModel:
    """The model of an outline with its bytes on ``device``: random weights, or its checkpoint's.

    Raises UnbuildableError.
    """
    if spec.weights == "random":
        materialise(outline, spec, device)
        return outline
    assert spec.checkpoint is not None
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            spec.checkpoint,
            revision=spec.revision or "main",
            dtype=DTYPES[spec.dtype],
            attn_implementation=spec.attention,
            quantization_config=quantisation(spec) if spec.method == "qlora" else None,
            device_map={"": device},
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, SafetensorError) as error:  # a file missing, or not as it should
        raise UnbuildableError(f"model: {one_line(error)}") from error
    model: PreTrainedModel
    model, seen = loaded
    # what transformers would make up
    lacking = sorted(seen["missing_keys"] | {name for name, *_ in seen["mismatched_keys"]})
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise UnbuildableError(
            f"model: its checkpoint has no {lacking[0]!r} of the config's shape{more}"
        )
    model.config.use_cache = False
    for one in (*model.parameters(), *model.buffers()):
        one.detach()  # so that the cpu engine's recorder sees what came right out of the file
    return model


def materialise(model: PreTrainedModel, spec: TrainSpec, device: torch.device) -> None:
    """Give every parameter and buffer of an outline its bytes on ``device``, in place.

    Values come from the model's own initialisation under a fixed seed; buffers that are computed
    (rotary frequencies) come out right with it. Quantised linears are quantised one by one.
    """
    dtype = DTYPES[spec.dtype]
    torch.manual_seed(SEED)
    # by identity, which tied modules share, and not by device: that may be meta too
    outlines = {id(one): one for one in (*model.parameters(), *model.buffers()) if one.is_meta}
    made: dict[int, nn.Parameter] = {}
    with torch.no_grad():
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if id(buffer) in outlines:
                    assert buffer is not None
                    module._buffers[name] = torch.empty_like(buffer, device=device)
            own = {n: one for n, one in module._parameters.items() if one is not None}
            for name, one in own.items():
                if id(one) in outlines and id(one) not in made:
                    value = torch.empty(one.shape, dtype=dtype, device=device)
                    made[id(one)] = nn.Parameter(value, one.requires_grad)
                module._parameters[name] = made.get(id(one), one)
            model._init_weights(module)
            for name, one in own.items():
                if isinstance(one, Params4bit | Int8Params):
                    module._parameters[name] = quantised(made.pop(id(one)), one)
    left = [
        name
        for name, one in (*model.named_parameters(), *model.named_buffers())
        if id(one) in outlines
    ]
    if left:
        raise UnbuildableError(f"model: {left[0]} got no bytes, so its class cannot be built here")


def quantisation_tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """What quantised weights have beside their values: scales, and bitsandbytes' tables."""
    for one in model.parameters():
        state = getattr(one, "quant_state", None)
        while state is not None:
            yield from (value for value in vars(state).values() if isinstance(value, torch.Tensor))
            state = state.state2
    for module in model.modules():
        if isinstance(module, Linear8bitLt):
            # the module takes them from its weight when it is first used
            scales = module.weight.SCB if module.state.SCB is None else module.state.SCB
            yield from () if scales is None else (scales,)
    yield from bitsandbytes.functional.name2qmap.values()


def forget_tables() -> None:
    """Drop bitsandbytes' tables of double quantisation, which it would keep on the device for the
    life of the process, so that every case makes its own.
    """
    bitsandbytes.functional.name2qmap.clear()


def quantised(weight: nn.Parameter, outline: Params4bit | Int8Params) -> nn.Parameter:
    """The quantised form of ``weight``, as transformers makes it when it loads a checkpoint."""
    # what `.to(device)` does to weights that come from elsewhere
    made = (
        Int8Params(weight.data, requires_grad=False)
        if isinstance(outline, Int8Params)
        else Params4bit(weight.data, requires_grad=False, **outline.__dict__)
    )
    parameter: nn.Parameter = made._quantize(weight.device)
    return parameter
