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


LOWERINGS: Mapping[object, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
    aten._softmax_backward_data.default: _softmax_backward,
    bnb.gemm_4bit.default: _gemm_4bit,
    bnb.quantize_4bit.default: _quantize_4bit,
    bnb.quantize_blockwise.default: _quantize_blockwise,
}
