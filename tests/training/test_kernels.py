"""What stands in for a kernel of CUDA returns what the operation does on meta: shapes, types, strides;
for what meta does not have, what it does on a CPU.
"""

from __future__ import annotations

import torch
from tracing import CARD

from pytest_vramfit.estimating import attention, kernels

aten = torch.ops.aten
bnb = torch.ops.bitsandbytes
LOWERINGS = {**kernels.CUDA, **attention.lowerings(CARD)}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def meta(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


def indices(*shape):
    return meta(*shape, dtype=torch.int64)


def heads(batch, number, length, width, dtype=BF16):
    """As models have them: those of a token side by side."""
    return meta(batch, length, number, width, dtype=dtype).transpose(1, 2)


def int8(*shape):
    return meta(*shape, dtype=torch.int8)


def gemm_4bit(rows, columns, out, dtype=BF16, bias=False, nested=False):
    blocks = out * columns // 64
    absmax = meta(blocks if not nested else -(blocks // -256), dtype=FP32)
    more = (meta(blocks, dtype=torch.uint8), meta(256, dtype=FP32), meta(dtype=FP32))
    return (
        meta(*rows, columns, dtype=dtype),
        meta(out * columns // 2, 1, dtype=torch.uint8),
        [out, columns],
        absmax,
        64,
        "nf4",
        meta(out, dtype=dtype) if bias else None,
        *(more if nested else ()),
    )


def attended(query, key, value):
    return heads(*query), heads(*key), heads(*value)


SAME = (2, 4, 33, 64), (2, 4, 33, 64), (2, 4, 33, 64)
GROUPED = (1, 8, 130, 96), (1, 2, 130, 96), (1, 2, 130, 96)
WIDE = (1, 2, 16, 256), (1, 2, 16, 256), (1, 2, 16, 256)
ATTENDED = [attended(*SAME), attended(*GROUPED), attended(*WIDE)]


def backward_of(forward, rest):
    """Arguments of a backward pass: a gradient, what came in, what came out, and the rest."""
    for query, key, value in ATTENDED:
        result = forward(query, key, value)
        yield (torch.empty_like(result[0]), query, key, value, *rest(result))


def flash_rest(result):
    out, sums, _, _, rows, columns, state, offset, _ = result
    return out, sums, None, None, rows, columns, 0.1, True, state, offset


CALLS = {
    aten.native_dropout.default: [(meta(2, 3), 0.1, True), (meta(4, 3).t(), 0.1, True)],
}
