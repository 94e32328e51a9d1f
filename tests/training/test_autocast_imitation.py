"""Autocast on meta casts what PyTorch's does on a CPU, operation by operation: what is returned,
what the graph keeps, and how often weights are cast.
"""

from __future__ import annotations

import pytest
import torch
from operations import OPERATIONS, Tensors, deprecated, named
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from tracing import CARD, CPU

from pytest_vramfit.estimating.dispatch import Dispatch, replaced
from pytest_vramfit.estimating.trace import Trace

LOW = torch.bfloat16
FP32 = torch.float32
TYPES = {"fp32": (FP32,), "bf16": (LOW,), "fp32, bf16": (FP32, LOW), "bf16, fp32": (LOW, FP32)}
WRONG = {
    "cdist": "runs in float32 on a CPU too",
    "grid_sample": "runs in float32 on a CPU, whatever it gets",
    "layer_norm": "keeps its statistics in the type of its input on a CPU",
    "native_layer_norm": "keeps its statistics in the type of its input on a CPU",
}


def seen(name, dtypes, device, target=None):
    """The type of the result, and what the graph keeps of it; None where a CPU refuses."""
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


@deprecated
@pytest.mark.parametrize("name", named(OPERATIONS, WRONG))
def test_every_operation_is_cast_as_on_a_cpu(name):
    real = {given: seen(name, dtypes, "cpu") for given, dtypes in TYPES.items()}
    works = {given: TYPES[given] for given, found in real.items() if found}
    assert "fp32" in works
    assert {given: seen(name, one, "meta", CPU) for given, one in works.items()} == {
        given: real[given] for given in works
    }


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
