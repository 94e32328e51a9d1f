"""CUDA's lists of autocast are those of PyTorch's header, and casts are as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from operations import OPERATIONS, Tensors, deprecated
from torch import linalg
from torch.nn import functional
from tracing import CARD

from pytest_vramfit.estimating import autocast
from pytest_vramfit.estimating.dispatch import Dispatch

LOW = torch.bfloat16
FP32 = torch.float32


def of_header(macro):
    """The operations of one of the lists in PyTorch's header."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text(encoding="utf-8").replace("\\\n", "")
    (listed,) = re.findall(rf"#define {macro}\(_\)(.*)", text)
    return set(re.findall(r"_\((\w+)", listed))


LOWER = of_header("AT_FORALL_LOWER_PRECISION_FP")
IN_FP32 = of_header("AT_FORALL_FP32")
FP32_RESULT = of_header("AT_FORALL_FP32_SET_OPT_DTYPE")
PROMOTE = of_header("AT_FORALL_PROMOTE")
COMPOSED = {
    "__matmul__": "matmul",
    "__pow__": "pow",
    "__rmatmul__": "matmul",
    "__rpow__": "pow",
    "cross_entropy": "nll_loss",
    "grid_sample": "grid_sampler",
    "square": "pow",
}
"""What Python calls otherwise, or what PyTorch itself makes of an operation of the header."""
LEFT_OUT = {
    "_convolution": "the convolutions that Python has call it",
    "convolution": "as above",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention calls it",
    "nll_loss2d": "nll_loss calls it",
    "_thnn_fused_gru_cell": "recurrent",
    "_thnn_fused_lstm_cell": "recurrent",
    "gru_cell": "recurrent",
    "lstm_cell": "recurrent",
    "rnn_relu_cell": "recurrent",
    "rnn_tanh_cell": "recurrent",
    "frobenius_norm": "a norm of matrices",
    "linalg_matrix_norm": "a norm of matrices",
    "nuclear_norm": "a norm of matrices",
    "_upsample_bicubic2d_aa": "for images",
    "_upsample_bilinear2d_aa": "for images",
    "_upsample_nearest_exact1d": "for images",
    "_upsample_nearest_exact2d": "for images",
    "_upsample_nearest_exact3d": "for images",
    "upsample_bicubic2d": "for images",
    "upsample_bilinear2d": "for images",
    "upsample_linear1d": "for images",
    "upsample_nearest1d": "for images",
    "upsample_nearest2d": "for images",
    "upsample_nearest3d": "for images",
    "upsample_trilinear3d": "for images",
}
"""Of the header: what a language model does not call by this name, and why."""
NORM = {"norm"}
"""The header has it apart, for its result becomes float32 in another way."""
CUDA_NAMES = [
    name
    for name in OPERATIONS
    if COMPOSED.get(name, name) in LOWER | IN_FP32 | FP32_RESULT | PROMOTE | NORM
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (autocast.CUDA.lower, LOWER),
        (autocast.CUDA.fp32, IN_FP32 | NORM),
        (autocast.CUDA.fp32_result, FP32_RESULT),
        (autocast.CUDA.promote, PROMOTE),
    ],
    ids=["lower", "fp32", "fp32 result", "promote"],
)
def test_cuda_s_lists_are_those_of_pytorch_s_header(ours, theirs):
    assert {COMPOSED.get(one, one) for one in ours} == theirs - LEFT_OUT.keys()


def test_what_is_left_out_is_in_the_header():
    assert LEFT_OUT.keys() <= LOWER | IN_FP32 | FP32_RESULT | PROMOTE


def test_every_operation_of_the_lists_is_tried():
    listed = {
        name
        for lists in (autocast.CUDA, autocast.CPU)
        for name in lists.lower | lists.fp32 | lists.fp32_result | lists.promote
    }
    assert listed <= OPERATIONS.keys()


def by_rule(name, dtypes):
    """The type that the header's lists say."""
    operation = COMPOSED.get(name, name)
    if operation in LOWER or (operation in PROMOTE and FP32 not in dtypes):
        return LOW
    return FP32


TYPES = ((FP32,), (LOW,), (FP32, LOW), (LOW, FP32))


@deprecated
@pytest.mark.parametrize("name", CUDA_NAMES)
def test_every_operation_is_cast_as_the_header_says(name):
    with torch.autocast("cpu", LOW), Dispatch(CARD):
        found = [OPERATIONS[name](Tensors("meta", *dtypes)).dtype for dtypes in TYPES]
    assert found == [by_rule(name, dtypes) for dtypes in TYPES]


UNSEEN = {
    "1 / x": (lambda x: 1 / x, "Python composes it of reciprocal, unseen"),
    "normalize": (lambda x: functional.normalize(x, dim=-1), "Python composes it of norm, unseen"),
    "linalg.norm": (linalg.norm, "PyTorch composes it of linalg_vector_norm"),
}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, id=name, marks=pytest.mark.xfail(reason=reason))
        for name, (call, reason) in UNSEEN.items()
    ],
)
def test_what_is_composed_of_listed_operations_is_cast_too(call):
    with torch.autocast("cpu", LOW), Dispatch(CARD):
        assert call(torch.ones(4, 4, dtype=LOW, device="meta")).dtype == FP32


@pytest.mark.parametrize(
    "call",
    [
        lambda x: functional.softmax(x, -1, dtype=LOW),
        lambda x: x.cumsum(0, dtype=LOW),
        lambda x: torch.softmax(x, -1, LOW),
    ],
    ids=["softmax(dtype=)", "cumsum(dtype=)", "softmax(, , dtype)"],
)
def test_a_type_that_the_caller_names_stays(call):
    with torch.autocast("cpu", LOW), Dispatch(CARD):
        assert call(torch.ones(4, 4, device="meta")).dtype == LOW
