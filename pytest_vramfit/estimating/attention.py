"""Which kernel `scaled_dot_product_attention` runs on the target, and what it allocates.

On ``meta`` PyTorch takes the decomposed one, which no device takes that has a better one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch.nn import functional

from pytest_vramfit.estimating.target import Target

aten = torch.ops.aten
Kernel = Literal["flash", "efficient", "cpu flash", "math"]

_AMPERE = (8, 0)
_EFFICIENT_HAS_GROUPS = (2, 14)
"""Since then the memory-efficient kernel takes heads that share keys, repeated
(https://github.com/pytorch/pytorch/pull/191085).
"""
_FLASH_HEAD = 256
"""The largest head of the flash kernels."""
_ALIGNED = 8
_LSE_BLOCK = 32


def kernel_of(target: Target, query: torch.Tensor, key: torch.Tensor, *, masked: bool) -> Kernel:
    """The first in PyTorch's order that can run it.

    aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: flash for half precisions from Ampere on,
    without a mask, heads of up to 256 (on Hopper and later cuDNN's, of the same memory); then the
    memory-efficient one.
    """
    if target.capability is None:
        return "cpu flash"
    half = query.dtype in (torch.float16, torch.bfloat16)
    head = query.shape[-1]
    if not masked and half and target.capability >= _AMPERE and head <= _FLASH_HEAD:
        return "flash"
    bf16_before_ampere = query.dtype == torch.bfloat16 and target.capability < _AMPERE
    grouped = query.shape[1] != key.shape[1]
    assert target.torch is not None
    groups_unknown = grouped and target.torch < _EFFICIENT_HAS_GROUPS
    if not bf16_before_ampere and not groups_unknown and head % 4 == 0:
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
    kernel = kernel_of(target, query, key, masked=attn_mask is not None)
    output: torch.Tensor
    if kernel == "flash":
        output, *_ = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, return_debug_mask=False, scale=scale
        )
    elif kernel == "efficient":
        trained = any(one.requires_grad for one in (query, key, value))
        bias = None
        if attn_mask is not None:
            bias = _as_bias(attn_mask, query, key)
        if enable_gqa:
            groups = query.shape[1] // key.shape[1]
            key = key.repeat_interleave(groups, 1)
            value = value.repeat_interleave(groups, 1)
        output, *_ = aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, trained, dropout_p, is_causal, scale=scale
        )
    elif kernel == "cpu flash":
        output, *_ = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
    else:
        output = functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return output


def _as_bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as what the memory-efficient kernel adds: in the query's type, rows padded to 16 bytes
    (``preprocess_mask`` and ``pad_bias`` in attention.cpp).
    """
    if mask.dtype == torch.bool:
        mask = torch.full_like(mask, -math.inf, dtype=query.dtype).masked_fill(mask, 0)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """The output, each row's sum of exponentials in float32, and two states of the generator."""
    batch, heads, length, _ = query.shape
    output = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    sums = query.new_empty((batch, heads, length), dtype=torch.float32)
    state = query.new_empty((2,), dtype=torch.uint64)
    offset = query.new_empty((), dtype=torch.uint64)
    debug = query.new_empty((0,))
    return output, sums, None, None, length, key.shape[2], state, offset, debug


def _flash_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, ...]:
    """Three gradients and, for its time, one scratch: dQ in float32, a sum for each row, and where
    queries share keys dK and dV of all heads (cudnn-frontend, ``sdpa_backward``).
    """
    batch, heads, length, head = query.shape
    grads = (torch.empty_like(query), torch.empty_like(key), torch.empty_like(value))
    scratch = batch * heads * length * (4 * head + 4)
    if key.shape[1] != heads:
        scratch += 2 * query.itemsize * batch * heads * key.shape[2] * head
    query.new_empty((scratch,), dtype=torch.uint8)
    return grads


LOWERINGS: Mapping[object, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention.default: _flash,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}
