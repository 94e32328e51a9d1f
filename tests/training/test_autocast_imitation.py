"""Autocast on meta casts what PyTorch's does: with the CPU's lists as on a CPU, operation by
operation, with CUDA's as its header says.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from operations import OPERATIONS, Tensors
from torch import linalg
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from tracing import CARD, CPU

from pytest_vramfit.estimating import autocast
from pytest_vramfit.estimating.dispatch import Dispatch, replaced
from pytest_vramfit.estimating.trace import Trace

LOW = torch.bfloat16
FP32 = torch.float32
TYPES = {"fp32": (FP32,), "bf16": (LOW,), "fp32, bf16": (FP32, LOW), "bf16, fp32": (LOW, FP32)}
UNNAMED = "PyTorch's names of these functions begin with linalg_, the lists' do not"
WRONG_ON_CPU = {
    "cdist": "runs in float32 on a CPU too",
    "grid_sample": "runs in float32 on a CPU, whatever it gets",
    "layer_norm": "keeps its statistics in the type of its input on a CPU",
    "native_layer_norm": "keeps its statistics in the type of its input on a CPU",
    "linalg_multi_dot": UNNAMED,
    "linalg_vecdot": UNNAMED,
}


def names(known_wrong, within=OPERATIONS):
    """Of operations."""
    marks = {name: [pytest.mark.xfail(reason=reason)] for name, reason in known_wrong.items()}
    return [pytest.param(one, marks=marks.get(one, ())) for one in OPERATIONS if one in within]


def seen(name, dtypes, device, target=None):
    """The type of the result, and what the graph keeps of it; None where PyTorch refuses."""
    kept = []

    def keep(tensor):
        kept.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    tensors = Tensors(device, *dtypes, trained=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one),
        torch.autocast("cpu", LOW),
    ):
        if target is None:
            try:
                return OPERATIONS[name](tensors).dtype, kept
            except RuntimeError:
                return None
        with Dispatch(target):
            return OPERATIONS[name](tensors).dtype, kept


@pytest.mark.parametrize("name", names(WRONG_ON_CPU))
def test_with_the_cpu_s_lists_it_is_what_a_cpu_does(name):
    real = {given: seen(name, dtypes, "cpu") for given, dtypes in TYPES.items()}
    works = {given: TYPES[given] for given, found in real.items() if found}
    assert "fp32" in works
    assert {given: seen(name, one, "meta", CPU) for given, one in works.items()} == {
        given: real[given] for given in works
    }


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
BY_LINALG = ("linalg_multi_dot", "linalg_vecdot", "linalg_vector_norm")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param(autocast.CUDA.lower, LOWER, marks=pytest.mark.xfail(reason=UNNAMED)),
        (autocast.CUDA.fp32, IN_FP32 | NORM),
        pytest.param(
            autocast.CUDA.fp32_result, FP32_RESULT, marks=pytest.mark.xfail(reason=UNNAMED)
        ),
        pytest.param(
            autocast.CUDA.promote,
            PROMOTE,
            marks=pytest.mark.xfail(reason="index_put_ and scatter_add_ are not cast: in place"),
        ),
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
    misnamed = {name.removeprefix("linalg_") for name in BY_LINALG}
    in_place = {"index_put_", "scatter_add_"}
    assert listed - misnamed - in_place <= OPERATIONS.keys()


def by_rule(name, dtypes):
    """The type that the header's lists say."""
    operation = COMPOSED.get(name, name)
    if operation in LOWER or (operation in PROMOTE and FP32 not in dtypes):
        return LOW
    return FP32


@pytest.mark.parametrize("name", names(dict.fromkeys(BY_LINALG, UNNAMED), within=CUDA_NAMES))
def test_with_cuda_s_lists_it_is_what_the_header_says(name):
    found = {given: seen(name, dtypes, "meta", CARD) for given, dtypes in TYPES.items()}
    assert {given: one[0] for given, one in found.items()} == {
        given: by_rule(name, dtypes) for given, dtypes in TYPES.items()
    }


LATER = {
    "1 / x": (lambda x: 1 / x, "Python composes it of reciprocal, unseen"),
    "normalize": (lambda x: functional.normalize(x, dim=-1), "Python composes it of norm, unseen"),
    "linalg.norm": (linalg.norm, "PyTorch composes it of linalg_vector_norm"),
    "sum(input=)": (lambda x: torch.sum(input=x), "the tensor is looked for among the positions"),
}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, id=name, marks=pytest.mark.xfail(reason=reason))
        for name, (call, reason) in LATER.items()
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
        pytest.param(
            lambda x: torch.softmax(x, -1, LOW),
            marks=pytest.mark.xfail(reason="a type by its position is not seen"),
        ),
    ],
    ids=["softmax(dtype=)", "cumsum(dtype=)", "softmax(, , dtype)"],
)
def test_a_type_that_the_caller_names_stays(call):
    with torch.autocast("cpu", LOW), Dispatch(CARD):
        assert call(torch.ones(4, 4, device="meta")).dtype == LOW


@pytest.mark.parametrize("target", [CPU, CARD], ids=["CPU", "card"])
def test_nothing_is_cast_while_it_is_off(target):
    with Dispatch(target):
        for dtype in (LOW, FP32):
            one = torch.ones(4, 4, dtype=dtype, device="meta")
            assert {(one @ one).dtype, one.exp().dtype, one.sum().dtype} == {dtype}
        with torch.autocast("cpu", LOW), torch.autocast("cpu", enabled=False):
            assert (one @ one).dtype == FP32


class Copies(TorchDispatchMode):
    """Counts the casts."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def weight_of(kind, device):
    trained = torch.ones(4, 4, device=device, requires_grad=True)
    return {
        "trained": trained,
        "frozen": trained.detach(),
        "view of a trained one": trained.view(4, 4),
        "computed": trained * 2,
        "trained in float16": trained.detach().half().requires_grad_(),
    }[kind]


def casts(weight, values):
    """After two products, after two in an inner autocast, after one in the next autocast."""
    counts = []
    with Copies() as copies:
        with torch.autocast("cpu", LOW):
            for _ in range(2):
                functional.linear(values, weight)
            counts.append(copies.number)
            with torch.autocast("cpu", LOW):
                for _ in range(2):
                    functional.linear(values, weight)
            counts.append(copies.number)
        with torch.autocast("cpu", LOW):
            functional.linear(values, weight)
        counts.append(copies.number)
    return counts


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("trained", [1, 1, 2]),
        ("frozen", [2, 4, 5]),
        ("view of a trained one", [2, 4, 5]),
        ("computed", [2, 4, 5]),
        ("trained in float16", [2, 4, 5]),
    ],
)
def test_a_trained_float32_weight_is_copied_once_until_the_outermost_autocast_ends(kind, expected):
    values = torch.ones(2, 4, dtype=LOW)
    assert casts(weight_of(kind, "cpu"), values) == expected
    dispatch = Dispatch(CPU)
    with dispatch, replaced(CPU, dispatch, Trace({})):
        assert casts(weight_of(kind, "meta"), values.to("meta")) == expected


def test_gradients_come_in_the_types_of_what_was_cast():
    """The cast is above autograd: its gradient is cast back."""
    values = torch.ones(2, 4, device="meta", requires_grad=True)
    with torch.autocast("cpu", LOW), Dispatch(CPU):
        hidden = values * 2
        result = functional.linear(hidden, torch.ones(3, 4, device="meta"))
    (product,) = (one for one, _ in result.grad_fn.next_functions if one is not None)
    assert (result.dtype, product.name()) == (LOW, "ToCopyBackward0")
    of_hidden, of_values = torch.autograd.grad(result.sum(), (hidden, values))
    assert (of_hidden.dtype, of_values.dtype) == (FP32, FP32)
