"""Stand-ins for attention kernels return what the operations do on meta: shapes, types, strides."""

from __future__ import annotations

import pytest
import torch
from tracing import CARD, described

from pytest_vramfit.estimating import attention_kernels

aten = torch.ops.aten
LOWERINGS = attention_kernels.lowerings(CARD)


def assert_alike(operation, *args):
    assert described(LOWERINGS[operation](*args)) == described(operation(*args))


def of(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def heads(batch, number, length, width):
    """As most models have them: those of a token side by side."""
    return of(batch, length, number, width).transpose(1, 2)


SAME = [heads(2, 4, 33, 64) for _ in range(3)]
WIDE = [heads(1, 2, 16, 256) for _ in range(3)]
GROUPED = [heads(1, number, 130, 96) for number in (8, 2, 2)]
REPEATED = [heads(2, 4, 33, 64), of(2, 4, 33, 64), of(2, 4, 33, 64)]
"""Keys and values as models repeat them for the queries that share them."""
APART = [of(2, 4, 33, 64) for _ in range(3)]
"""Head by head, as models have them that turn only a part of each, and put it beside the rest."""
INPUTS = {"same": SAME, "wide": WIDE, "grouped": GROUPED}
FOLLOWS = pytest.mark.xfail(reason="the kernels lay out results as what came in")
IN_ROW = pytest.param(APART, id="apart", marks=FOLLOWS)
WITH_LAYOUTS = [
    *(pytest.param(one, id=name) for name, one in INPUTS.items()),
    pytest.param(REPEATED, id="repeated", marks=FOLLOWS),
    IN_ROW,
]


@pytest.mark.parametrize(
    "inputs", [*(pytest.param(one, id=name) for name, one in INPUTS.items()), IN_ROW]
)
def test_flash_attention_returns_what_it_does_on_meta(inputs):
    assert_alike(aten._scaled_dot_product_flash_attention.default, *inputs, 0.1, True)


@pytest.mark.parametrize("inputs", WITH_LAYOUTS)
def test_so_does_its_backward_pass(inputs):
    output, *more = aten._scaled_dot_product_flash_attention(*inputs, 0.1, True)
    assert_alike(
        aten._scaled_dot_product_flash_attention_backward.default,
        *(torch.empty_like(output), *inputs, output, *more[:5], 0.1, True, *more[5:7]),
    )


@pytest.mark.parametrize(
    "inputs", [*(pytest.param(one, id=name) for name, one in INPUTS.items()), IN_ROW]
)
def test_cudnn_s_attention_returns_what_it_does_on_meta(inputs):
    """But for the last, which nobody asked for: nothing there, no elements here."""
    operation = aten._scaled_dot_product_cudnn_attention.default
    args = (*inputs, None, True, 0.1, True)
    *seen, nothing = LOWERINGS[operation](*args)
    *expected, _ = operation(*args)
    assert described(seen) == described(expected)
    assert nothing.numel() == 0


@pytest.mark.parametrize("inputs", WITH_LAYOUTS)
def test_so_does_cudnn_s_backward_pass(inputs):
    output, sums, *more = aten._scaled_dot_product_cudnn_attention(*inputs, None, True, 0.1, True)
    assert_alike(
        aten._scaled_dot_product_cudnn_attention_backward.default,
        *(torch.empty_like(output), *inputs, output, sums, *more[4:6], None, *more[:4], 0.1, True),
    )


WITHOUT_GROUPS = {"same": SAME, "wide": WIDE, "repeated": REPEATED, "apart": APART}
"""PyTorch's meta does not know groups before 2.14."""


@pytest.mark.parametrize("keeps_sums", [True, False])
@pytest.mark.parametrize("name", WITHOUT_GROUPS)
def test_memory_efficient_attention_returns_what_it_does_on_meta(name, keeps_sums):
    inputs = WITHOUT_GROUPS[name]
    operation = aten._scaled_dot_product_efficient_attention.default
    assert_alike(operation, *inputs, None, keeps_sums, 0.1, True)


@pytest.mark.parametrize("name", WITHOUT_GROUPS)
def test_so_does_the_backward_pass_of_memory_efficient_attention(name):
    inputs = WITHOUT_GROUPS[name]
    output, *more = aten._scaled_dot_product_efficient_attention(*inputs, None, True, 0.1, True)
    assert_alike(
        aten._scaled_dot_product_efficient_attention_backward.default,
        *(torch.empty_like(output), *inputs, None, output, *more),
        *(0.1, [True, True, True, False], True),
    )
