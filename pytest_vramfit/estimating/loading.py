"""How a checkpoint comes to a CUDA device, on ``meta``: what ``from_pretrained`` allocates."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.nn import Int8Params, Params4bit
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import dot_natural_key

from pytest_vramfit.estimating.target import Target
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.model import DTYPES, quantised

_LEFT_FREE_BYTES = 1.2 * 2**30


def load(outline: PreTrainedModel, spec: TrainSpec, target: Target) -> None:
    """Give an outline's parameters and buffers their bytes, in place and in a checkpoint's order.

    By name, each tensor in the dtype that is asked for; one that is quantised is so on the device
    before the next one comes (``convert_and_load_state_dict_in_model`` in transformers'
    core_model_loading.py). Where nothing is quantised four threads load at a time, in an order that
    is theirs; then it matters little, as all of it stays.
    """
    _warm_up(outline, spec, target)
    made: dict[int, nn.Parameter] = {}
    by_name = sorted(outline.named_parameters(), key=lambda named: dot_natural_key(named[0]))
    with torch.no_grad():
        for _, one in by_name:
            value = torch.empty(one.shape, dtype=DTYPES[spec.dtype], device="meta")
            parameter = nn.Parameter(value, one.requires_grad)
            del value
            is_quantised = isinstance(one, Params4bit | Int8Params)
            made[id(one)] = quantised(parameter, one) if is_quantised else parameter
            del parameter
        for module in outline.modules():
            for name, outlined in module._parameters.items():
                module._parameters[name] = outlined if outlined is None else made[id(outlined)]
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer if buffer is None else torch.empty_like(buffer)


def _warm_up(outline: PreTrainedModel, spec: TrainSpec, target: Target) -> None:
    """One block of the model's size, given back at once, of which the weights get pieces
    (``caching_allocator_warmup`` in transformers' modeling_utils.py).
    """
    quantiser: Any = getattr(outline, "hf_quantizer", None)
    needed_bytes = 0.0
    for name, one in outline.named_parameters():
        size = DTYPES[spec.dtype].itemsize
        if isinstance(one, Params4bit | Int8Params):
            size = quantiser.param_element_size(outline, name, one)
        needed_bytes += one.numel() * size
    most_bytes = max(0, target.total_bytes - _LEFT_FREE_BYTES)
    torch.empty(int(min(needed_bytes, most_bytes) // 2), dtype=torch.float16, device="meta")
