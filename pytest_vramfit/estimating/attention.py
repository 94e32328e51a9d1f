"""Which kernel `scaled_dot_product_attention` runs on the target.

On ``meta`` PyTorch takes the decomposed one, which no device takes that has a better one. Sources
are under aten/src/ATen/native/transformers: cuda/sdp_utils.cpp for the choice, attention.cpp for
what is around the kernels.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch.nn import functional

from pytest_vramfit.estimating.target import AMPERE, SMALLER_SHARED_MEMORY, Target

aten = torch.ops.aten
Kernel = Literal["cudnn", "flash", "efficient", "cpu flash", "math"]

_CUDNN_FIRST = {9, 10}
"""Major capabilities on which it comes first, since PyTorch 2.11 brings a cuDNN that can."""


def kernel_of(
    target: Target,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    masked: bool,
    dropout: bool,
) -> Kernel:
    """The first in PyTorch's order that can run it."""
    if target.capability is None:
        return "cpu flash"
    assert target.torch is not None
    half = query.dtype in (torch.float16, torch.bfloat16)
    head, grouped = query.shape[-1], query.shape[1] != key.shape[1]
    same_heads = head == value.shape[-1]
    largest_of_cudnn = 128 if target.torch < (2, 14) else 256
    if (
        target.capability[0] in _CUDNN_FIRST
        and target.torch >= (2, 11)
        and half
        and same_heads
        and head % 8 == 0
        and head <= largest_of_cudnn
    ):
        return "cudnn"
    too_large = target.capability in SMALLER_SHARED_MEMORY and (
        192 < head <= 224 or (head > 224 and dropout)  # noqa: PLR2004 (in the source as here)
    )
    if (
        target.capability >= AMPERE
        and half
        and not masked
        and same_heads
        and head <= 256  # noqa: PLR2004
        and not too_large
    ):
        return "flash"
    has_groups = target.torch >= (2, 14)  # https://github.com/pytorch/pytorch/pull/191085
    has_type = target.capability >= AMPERE or query.dtype != torch.bfloat16
    alignment = 8 if half else 4 if target.capability >= AMPERE else 1
    if has_type and (has_groups or not grouped) and head % alignment == 0:
        return "efficient"
    return "math"


def scaled_dot_product_attention(
    target: Target,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As PyTorch's function, by the target's kernel."""
    kernel = kernel_of(
        target, query, key, value, masked=attn_mask is not None, dropout=dropout_p > 0
    )
    if kernel == "math":
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale)
    output: torch.Tensor
    if kernel == "cpu flash":
        output, *_ = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
        return output
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _as_summand(attn_mask, query.dtype)
    if kernel == "flash":
        output, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, return_debug_mask=False, scale=scale
        )
        return output
    trained = any(one.requires_grad for one in (query, key, value))
    operation = (
        aten._scaled_dot_product_cudnn_attention
        if kernel == "cudnn"
        else aten._scaled_dot_product_efficient_attention
    )
    output, *_ = operation(query, key, value, attn_mask, trained, dropout_p, is_causal, scale=scale)
    return output


def _as_summand(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of truths as what is added to scores, made anew in every call."""
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.full_like(zero, -math.inf))


def _math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """The decomposed kernel, ``_scaled_dot_product_attention_math``, in float32.

    Written out, because under a mode PyTorch adds the mask out of place, and otherwise in place.
    """
    dtype = query.dtype
    query, key, value = query.float(), key.float(), value.float()
    share = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    query = query * share
    if is_causal:
        mask = query.new_ones((query.shape[-2], key.shape[-2]), dtype=torch.bool).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = _as_summand(mask, query.dtype)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ (key.transpose(-2, -1) * share)
    if mask is not None:
        scores.add_(mask)
    weights = torch._safe_softmax(scores, -1)
    del scores
    if dropout_p > 0:
        weights = functional.dropout(weights, dropout_p)
    output = (weights @ value).to(dtype)
    weights.to(dtype)  # its second result, which is dropped
    return output
