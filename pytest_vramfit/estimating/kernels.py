"""Operations whose kernels allocate more than their results, or their results in another order.

For CUDA. ``meta`` shows the results only, in the order in which they are returned. Each function
makes what its operation returns and, on the way, what the kernel allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import bitsandbytes  # noqa: F401 (registers its operations)
import torch

aten = torch.ops.aten
bnb = torch.ops.bitsandbytes


def _native_dropout(
    values: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask before the result (aten/src/ATen/native/cuda/Dropout.cu)."""
    mask = torch.empty_like(values, dtype=torch.bool)
    return torch.empty_like(values), mask


def _softmax_backward(
    grad: torch.Tensor, output: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    """``grad * output`` for its time (aten/src/ATen/native/cuda/SoftMax.cu)."""
    result = torch.empty_like(grad, dtype=input_dtype)
    torch.empty_like(grad)
    return result


def _gemm_4bit(
    values: torch.Tensor,
    weight: torch.Tensor,
    shape: Sequence[int],
    absmax: torch.Tensor,
    blocksize: int,
    quant_type: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """The scales and the whole weight dequantised, alive during the product
    (``_dequant_linear_fallback`` in bitsandbytes/backends/cuda/ops.py).
    """
    if absmax_8bit is not None:
        assert absmax_offset is not None
        scales = torch.empty_like(absmax_8bit, dtype=torch.float32)
        scales = scales + absmax_offset
    dequantised = torch.empty(tuple(shape), dtype=values.dtype, device=values.device)
    return torch.nn.functional.linear(values, dequantised, bias)


def _quantize_4bit(
    values: torch.Tensor, blocksize: int, quant_type: str, quant_storage: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales before the weight (bitsandbytes/backends/cuda/ops.py)."""
    count = values.numel()
    absmax = values.new_empty((-(count // -blocksize),), dtype=torch.float32)
    packed = (count + 1) // (quant_storage.itemsize * 2)
    return values.new_empty((packed, 1), dtype=quant_storage), absmax


def _quantize_blockwise(
    values: torch.Tensor, code: torch.Tensor, blocksize: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales before the values (as above)."""
    absmax = values.new_empty((-(values.numel() // -blocksize),), dtype=torch.float32)
    return torch.empty_like(values, dtype=torch.uint8), absmax


def _int8_vectorwise_quant(
    values: torch.Tensor, threshold: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Which columns have outliers depends on the values; none is taken to have. To find them, the
    magnitudes and where they are large (bitsandbytes/backends/cuda/ops.py).
    """
    rows = values.numel() // values.shape[-1]
    scales = values.new_empty((rows,), dtype=torch.float32)
    quantised = torch.empty_like(values, dtype=torch.int8)
    if threshold == 0:
        return quantised, scales, None
    torch.empty_like(values), torch.empty_like(values, dtype=torch.bool)
    return quantised, scales, values.new_empty((0,), dtype=torch.int64)


def _int8_scaled_mm(
    values: torch.Tensor,
    weight: torch.Tensor,
    row_stats: torch.Tensor,
    col_stats: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sums in int32, then float16, then ``dtype`` (as above)."""
    sums = values.new_empty((*values.shape[:-1], weight.shape[0]), dtype=torch.int32)
    return torch.empty_like(sums, dtype=torch.float16).to(dtype or torch.float16)


def _int8_mixed_scaled_mm(
    values: torch.Tensor,
    quantised: torch.Tensor,
    weight: torch.Tensor,
    row_stats: torch.Tensor,
    col_stats: torch.Tensor,
    outlier_cols: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, without a column of outliers (bitsandbytes/backends/default/ops.py)."""
    output = _int8_scaled_mm(quantised, weight, row_stats, col_stats, bias, values.dtype)
    return output, values.new_empty((0,))


def _safe_softmax(values: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Where all of a row is masked is told by a truth for every element (attention.cpp)."""
    result = torch.empty_like(values, dtype=dtype)
    masked = torch.empty_like(values, dtype=torch.bool)
    masked.new_empty((*values.shape[:-1], 1))
    return result


_FEW_INDICES = 3072


def _embedding_dense_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> torch.Tensor:
    """Of more than a few tokens the gradients are sorted by token and added up in segments of ten,
    in float32 (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu).
    """
    count, width = indices.numel(), grad.shape[-1]
    if count <= _FEW_INDICES:
        return grad.new_empty((num_weights, width))
    numbers = [indices.new_empty((count,)) for _ in range(2)]
    result = grad.new_empty((num_weights, width))
    segments = min(count, num_weights)
    numbers += [indices.new_empty((size,)) for size in (count, segments, segments)]
    partial = count // 10 + segments
    numbers.append(indices.new_empty((partial,)))
    grad.new_empty((partial, width), dtype=torch.float32)
    return result


_CHUNK = 65_536


def _foreach_norm(
    tensors: Sequence[torch.Tensor],
    ord: float = 2,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """A sum for every 65,536 elements of the longest tensor, for each tensor
    (aten/src/ATen/native/cuda/ForeachReduceOp.cu).
    """
    longest = max(one.numel() for one in tensors)
    tensors[0].new_empty((len(tensors), -(longest // -_CHUNK)), dtype=torch.float32)
    return [one.new_empty((), dtype=dtype) for one in tensors]


def _grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A product for each group, of any type, with rows of whole 16 bytes: ``meta`` has it for
    bfloat16 alone (``create_grouped_gemm_output_tensor`` in GroupedMMUtils.h).
    """
    rows, columns = left.shape[-2], right.shape[-1]
    shape: tuple[int, ...] = (rows, columns)
    if left.dim() == right.dim():
        assert left.dim() > 2 or offs is not None  # noqa: PLR2004
        groups = left.shape[0] if left.dim() > 2 or offs is None else offs.shape[0]  # noqa: PLR2004
        shape = (groups, rows, columns)
    dtype = out_dtype or left.dtype
    aligned = -(columns // -(16 // dtype.itemsize)) * (16 // dtype.itemsize)
    return left.new_empty((*shape[:-1], aligned), dtype=dtype)[..., :columns]


EVERYWHERE: Mapping[object, Callable[..., Any]] = {
    aten._grouped_mm.default: _grouped_mm,
    bnb.int8_vectorwise_quant.default: _int8_vectorwise_quant,
    bnb.int8_mixed_scaled_mm.default: _int8_mixed_scaled_mm,
}
"""What ``meta`` does not have at all."""

CUDA: Mapping[object, Callable[..., Any]] = {
    **EVERYWHERE,
    aten.native_dropout.default: _native_dropout,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._safe_softmax.default: _safe_softmax,
    aten.embedding_dense_backward.default: _embedding_dense_backward,
    aten._foreach_norm.Scalar: _foreach_norm,
    bnb.gemm_4bit.default: _gemm_4bit,
    bnb.quantize_4bit.default: _quantize_4bit,
    bnb.quantize_blockwise.default: _quantize_blockwise,
    bnb.int8_scaled_mm.default: _int8_scaled_mm,
}
