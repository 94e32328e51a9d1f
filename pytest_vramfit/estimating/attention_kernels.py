"""What the kernels of attention allocate beside their results, and how they lay these out.

Sources are under aten/src/ATen/native/transformers: cuda/attention.cu and
cuda/attention_backward.cu, and the kernels' own files where they are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pytest_vramfit.estimating.target import AMPERE, SMALLER_SHARED_MEMORY, Target

aten = torch.ops.aten


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
    smaller = capability in SMALLER_SHARED_MEMORY
    turing = capability < AMPERE
    if widest <= 64 or (not half and (smaller or turing)):  # noqa: PLR2004
        return 64, 64, True
    if widest > 128:  # noqa: PLR2004
        return 128, 64, not half
    if half and smaller and not (widest <= 96 and capability[0] == AMPERE[0]):  # noqa: PLR2004
        return 64, 64, False
    return 128, 128 if half and not smaller and not turing else 64, True


def _gradients(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Of query, key and value, with the heads of a token side by side."""
    grads = []
    for one in inputs:
        batch, heads, length, head = one.shape
        grads.append(one.new_empty((batch, length, heads, head)).transpose(1, 2))
    return tuple(grads)


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
