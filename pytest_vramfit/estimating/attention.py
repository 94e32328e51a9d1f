"""Which kernel `scaled_dot_product_attention` runs on the target, and what it allocates.

On ``meta`` PyTorch takes the decomposed one, which no device takes that has a better one. Sources
are under aten/src/ATen/native/transformers: cuda/sdp_utils.cpp for the choice, cuda/attention.cu
and cuda/attention_backward.cu for what is allocated, attention.cpp for what is around them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch.nn import functional

from pytest_vramfit.estimating.target import Target

aten = torch.ops.aten
Kernel = Literal["cudnn", "flash", "efficient", "cpu flash", "math"]

_AMPERE = (8, 0)
_SMALLER_SHARED_MEMORY = {(8, 6), (8, 9), (12, 0), (12, 1)}
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
    too_large = target.capability in _SMALLER_SHARED_MEMORY and (
        192 < head <= 224 or (head > 224 and dropout)  # noqa: PLR2004 (in the source as here)
    )
    if (
        target.capability >= _AMPERE
        and half
        and not masked
        and same_heads
        and head <= 256  # noqa: PLR2004
        and not too_large
    ):
        return "flash"
    has_groups = target.torch >= (2, 14)  # https://github.com/pytorch/pytorch/pull/191085
    has_type = target.capability >= _AMPERE or query.dtype != torch.bfloat16
    alignment = 8 if half else 4 if target.capability >= _AMPERE else 1
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


def _output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The kernels write it with the heads of a token side by side."""
    batch, heads, length, _ = query.shape
    return query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[Any, ...]:
    """The output and each row's sum of exponentials; the generator's state is on the host."""
    batch, heads, length, _head = query.shape
    output = _output(query, value)
    sums = query.new_empty((batch, heads, length), dtype=torch.float32)
    state, offset = (torch.empty(size, dtype=torch.uint64, device="cpu") for size in ((2,), ()))
    return output, sums, None, None, length, key.shape[2], state, offset, query.new_empty((0,))


def _flash_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, ...]:
    """Three gradients; for their time dQ in float32, a sum for each row, and dK and dV of all heads
    where queries share them.
    """
    batch, heads, length, head = query.shape
    rows = _up(length, 128)
    grads = _gradients(query, key, value)
    scratch = [
        query.new_empty((batch, heads, rows), dtype=torch.float32),
        query.new_empty((batch, rows, heads, _up(head, 32)), dtype=torch.float32),
    ]
    if key.shape[1] != heads:
        scratch += [query.new_empty((batch, key.shape[2], heads, head)) for _ in range(2)]
    return grads


def _cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> tuple[Any, ...]:
    """As flash, with the generator's state on the device."""
    batch, heads, length, _head = query.shape
    output = _output(query, value)
    sums = query.new_empty((batch, heads, length, 1), dtype=torch.float32)
    states = (query.new_empty((), dtype=torch.int64) for _ in range(2))
    return output, sums, None, None, length, key.shape[2], *states, query.new_empty((0,))


def _cudnn_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, ...]:
    """Three gradients and, for their time, one scratch: dQ in float32, a sum for each row, and dK
    and dV of all heads where queries share them (cudnn-frontend, ``sdpa_backward``).
    """
    batch, heads, length, head = query.shape
    grads = _gradients(query, key, value)
    scratch = batch * heads * length * (4 * head + 4)
    if key.shape[1] != heads:
        scratch += 2 * query.itemsize * batch * heads * key.shape[2] * head
    query.new_empty((scratch,), dtype=torch.uint8)
    return grads


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    *_: Any,
    **__: Any,
) -> tuple[torch.Tensor, ...]:
    """The output, each row's sum of exponentials in blocks of 32; above heads of 128 the output in
    float32 for its time (mem_eff_attention/kernel_forward.h). The generator's state is on the host.
    """
    batch, heads, length, head = query.shape
    output = _output(query, value)
    rows = _up(length, 32) if compute_log_sumexp else 0
    sums = query.new_empty((batch, heads, rows), dtype=torch.float32)
    if query.dtype != torch.float32 and max(head, value.shape[-1]) > 128:  # noqa: PLR2004
        torch.empty_like(output, dtype=torch.float32)
    return output, sums, *(torch.empty((), dtype=torch.int64, device="cpu") for _ in range(2))


def efficient_backward(target: Target) -> Callable[..., Any]:
    """The backward pass of the memory-efficient kernel on a target."""
    assert target.capability is not None
    capability = target.capability

    def backward(
        grad: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        batch, heads, length, _head = query.shape
        grad.transpose(1, 2).contiguous()
        grads = _gradients(query, key, value)
        if query.dtype == torch.float32:  # the sums of a product, by PyTorch's operations
            torch.empty_like(grad)
        scratch = [query.new_empty((batch, heads, length), dtype=torch.float32)]
        if key.shape[1] != heads:
            sizes = [(batch, key.shape[2], heads, one.shape[-1]) for one in (key, value)]
            scratch += [query.new_empty(size) for size in sizes]
        workspace = _efficient_workspace(capability, query, key, value)
        scratch.append(query.new_empty((workspace,), dtype=torch.uint8))
        return *grads, None

    return backward


def _efficient_workspace(
    capability: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> int:
    """Bytes in which blocks of keys add up dQ, and dK and dV where these do not stay in registers
    (``workspace_size`` in mem_eff_attention/kernel_backward.h).
    """
    batch, heads, length, head = query.shape
    widest = max(head, value.shape[-1])
    half = query.dtype != torch.float32
    rows, columns, in_registers = _efficient_blocks(capability, widest, half=half)
    floats = -(length // -rows) * -(head // -columns) * (4 + rows * columns)
    if half and not in_registers:
        splits = max(1, min(-(key.shape[2] // -columns), 200 // (batch * heads)))
        floats += splits * columns * (_up(head, rows) + _up(value.shape[-1], rows))
    return batch * heads * _up(floats, 4) * 4


def _efficient_blocks(
    capability: tuple[int, int], widest: int, *, half: bool
) -> tuple[int, int, bool]:
    """Rows and columns of a block, and whether dK and dV stay in registers: of the first kernel
    that is wide enough and finds its shared memory (sizes in the wheel of 2.14.1).
    """
    smaller = capability in _SMALLER_SHARED_MEMORY
    turing = capability < _AMPERE
    if widest <= 64 or (not half and (smaller or turing)):  # noqa: PLR2004
        return 64, 64, True
    if widest > 128:  # noqa: PLR2004
        return 128, 64, not half
    if half and smaller and not (widest <= 96 and capability[0] == _AMPERE[0]):  # noqa: PLR2004
        return 64, 64, False
    return 128, 128 if half and not smaller and not turing else 64, True


def _gradients(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of query, key and value, with the heads of a token side by side."""
    shapes = ((batch, length, heads, head) for batch, heads, length, head in map(_shape, inputs))
    grads = [one.new_empty(shape) for one, shape in zip(inputs, shapes, strict=True)]
    return tuple(one.transpose(1, 2) for one in grads)


def _shape(tensor: torch.Tensor) -> torch.Size:
    return tensor.shape


def _up(size: int, step: int) -> int:
    return -(size // -step) * step


def lowerings(target: Target) -> Mapping[object, Callable[..., Any]]:
    """What the kernels allocate, by operation."""
    return {
        aten._scaled_dot_product_flash_attention.default: _flash,
        aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
        aten._scaled_dot_product_cudnn_attention.default: _cudnn,
        aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
        aten._scaled_dot_product_efficient_attention.default: _efficient,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward(target),
    }
