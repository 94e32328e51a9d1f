"""What stands in for a kernel of CUDA returns what the operation does on meta: shapes, types and
strides. Where meta does not have the operation, what it returns on a CPU.
"""

from __future__ import annotations

import pytest
import torch
from tracing import CARD, described

from pytest_vramfit.estimating import attention_kernels, kernels

aten = torch.ops.aten
bnb = torch.ops.bitsandbytes
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LOWERINGS = {**kernels.CUDA, **attention_kernels.lowerings(CARD)}


def of(*shape, dtype=BF16, device="meta"):
    return torch.zeros(shape, dtype=dtype, device=device)


def gemm_4bit(rows, columns, out, dtype=BF16, *, bias=False, nested=False):
    blocks = out * columns // 64
    of_blocks = (of(blocks, dtype=torch.uint8), of(256, dtype=FP32), of(dtype=FP32))
    return (
        of(*rows, columns, dtype=dtype),
        of(out * columns // 2, 1, dtype=torch.uint8),
        [out, columns],
        of(-(blocks // -256) if nested else blocks, dtype=FP32),
        64,
        "nf4",
        of(out, dtype=dtype) if bias else None,
        *(of_blocks if nested else ()),
    )


def int8_scaled_mm(rows, *more):
    count = of(*rows).numel()
    return (
        of(*rows, 16, dtype=torch.int8),
        of(32, 16, dtype=torch.int8),
        of(count, dtype=FP32),
        of(32, dtype=FP32),
        *more,
    )


VALUES = [of(2, 3), of(2, 3, dtype=FP32), of(2, 1, 3).expand(2, 5, 3), of(2, 3, 4, dtype=FP16)]
TRANSPOSED = of(4, 3).t()
OFFSETS = of(3, dtype=torch.int32)
CALLS = {
    aten.native_dropout.default: [(one, 0.1, True) for one in (*VALUES, TRANSPOSED)],
    aten._softmax_backward_data.default: [
        (one, one, -1, dtype) for one in VALUES for dtype in (one.dtype, FP32)
    ],
    aten._safe_softmax.default: [(one, -1, dtype) for one in VALUES for dtype in (None, FP32)],
    aten.embedding_dense_backward.default: [
        (of(2, count, 16, dtype=dtype), of(2, count, dtype=torch.int64), 33, -1, False)
        for count in (7, 4000)
        for dtype in (BF16, FP32)
    ],
    aten._foreach_norm.Scalar: [
        ([of(4), of(70_000, dtype=FP32), of(2, 3)],),
        ([of(4), of(7)], 2, FP32),
        ([of(4), of(7)], float("inf")),
    ],
    aten._grouped_mm.default: [
        (of(10, 16), of(3, 16, 24), OFFSETS),
        (of(10, 16), of(3, 24, 16).transpose(1, 2), OFFSETS),
        (of(10, 16).t(), of(10, 24), OFFSETS),
        (of(3, 10, 16), of(3, 16, 24)),
        (of(3, 10, 16), of(16, 24), OFFSETS),
    ],
    bnb.gemm_4bit.default: [
        gemm_4bit((2, 7), 64, 32),
        gemm_4bit((7,), 64, 32, FP16, bias=True, nested=True),
        gemm_4bit((1, 1), 128, 32, FP32, nested=True),
    ],
    bnb.quantize_4bit.default: [
        (of(*shape, dtype=dtype), 64, "nf4", storage)
        for shape in ((16, 12), (3, 3))
        for dtype in (BF16, FP32)
        for storage in (torch.uint8, BF16)
    ],
    bnb.quantize_blockwise.default: [
        (of(*shape, dtype=dtype), of(256, dtype=FP32), 256)
        for shape in ((16, 33), (3,))
        for dtype in (BF16, FP32)
    ],
    bnb.int8_scaled_mm.default: [
        int8_scaled_mm((7,)),
        int8_scaled_mm((2, 7), None, BF16),
        int8_scaled_mm((7,), of(32, dtype=FP16), FP32),
    ],
    bnb.int8_vectorwise_quant.default: [(of(7, 16, dtype=FP16),), (of(2, 7, 16, dtype=FP16), 0.0)],
}


def assert_alike(operation, *args):
    assert described(LOWERINGS[operation](*args)) == described(operation(*args))


def named(operations):
    return [pytest.param(one, id=one.name().partition("::")[2]) for one in operations]


@pytest.mark.parametrize("operation", named(CALLS))
def test_it_returns_what_the_operation_does_on_meta(operation):
    for args in CALLS[operation]:
        assert_alike(operation, *args)


@pytest.mark.xfail(reason="the kernels write their results in a row, whatever comes in")
@pytest.mark.parametrize(
    ("operation", "rest"),
    [
        (aten._softmax_backward_data.default, (TRANSPOSED, -1, FP32)),
        (aten._safe_softmax.default, (-1,)),
    ],
    ids=str,
)
def test_so_it_does_for_what_is_transposed(operation, rest):
    assert_alike(operation, TRANSPOSED, *rest)


def int8_matmul(device):
    values = of(7, 16, device=device)
    weight, scales = of(32, 16, dtype=torch.int8, device=device), of(32, dtype=FP32, device=device)
    quantised, sums, columns = bnb.int8_vectorwise_quant(values.half())
    return values, quantised, weight, sums, scales, columns


ON_CPU = {
    bnb.int8_vectorwise_quant.default: [
        lambda device: (of(7, 16, dtype=FP16, device=device), 6.0),
    ],
    bnb.int8_mixed_scaled_mm.default: [int8_matmul],
    aten._grouped_mm.default: [
        lambda device: (
            of(12, 16, dtype=FP32, device=device),
            of(3, 16, 24, dtype=FP32, device=device),
            torch.tensor([4, 8, 12], dtype=torch.int32).to(device),
        ),
    ],
}


@pytest.mark.parametrize("operation", named(ON_CPU))
def test_it_returns_what_the_operation_does_on_a_cpu(operation):
    for make in ON_CPU[operation]:
        seen = LOWERINGS[operation](*make("meta"))
        assert described(seen) == described(operation(*make("cpu")))


def test_every_stand_in_is_compared():
    of_attention = {one for one in LOWERINGS if "attention" in one.name()}
    assert len(of_attention) == 6
    assert {*CALLS, *ON_CPU} | of_attention == {*LOWERINGS}
