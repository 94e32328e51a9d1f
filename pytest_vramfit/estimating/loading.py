"""How a checkpoint comes to a CUDA device, on ``meta``: what ``from_pretrained`` allocates."""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.nn import Int8Params, Params4bit
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, dot_natural_key

from pytest_vramfit.estimating.target import Target
from pytest_vramfit.measurement import UnsupportedError
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.model import DTYPES, quantised

_LEFT_FREE_BYTES = 1.2 * 2**30


def load(outline: PreTrainedModel, spec: TrainSpec, target: Target) -> None:
    """Give an outline's parameters and buffers their bytes, in place.

    Each parameter comes in the dtype that is asked for, and is quantised on the device before the
    next one comes (``convert_and_load_state_dict_in_model`` in transformers'
    core_model_loading.py). Without quantisation four threads load, in an order of their own, but
    then no block is given back in between.

    Raises UnsupportedError where tensors of the checkpoint are put together on the device, as those
    of single experts are: how many of them are there at a time is the threads' affair.
    """
    if any(isinstance(one, WeightConverter) for one in get_model_conversion_mapping(outline)):
        raise UnsupportedError(
            "weights='pretrained': parts of its checkpoint are put together while it is loaded, "
            "which needs memory that cannot be predicted; run it with --gpu, or weights='random'"
        )
    _warm_up(outline, spec, target)
    made: dict[int, nn.Parameter] = {}
    with torch.no_grad():
        for one in in_order(outline):
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


def in_order(outline: nn.Module) -> list[nn.Parameter]:
    """The parameters by their names, whose numbers count as such, each once."""
    named = sorted(outline.named_parameters(), key=lambda one: dot_natural_key(one[0]))
    return [parameter for _, parameter in named]


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
    most_bytes = max(0, target.usable_bytes - _LEFT_FREE_BYTES)
    torch.empty(int(min(needed_bytes, most_bytes) // 2), dtype=torch.float16, device="meta")
