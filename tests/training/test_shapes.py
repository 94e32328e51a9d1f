"""Remembering what operations return changes no event of a trace."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_iter
from tracing import CARD, CPU, described, one_thread  # noqa: F401

from pytest_vramfit.estimating import shapes
from pytest_vramfit.estimating.run import trace
from pytest_vramfit.estimating.shapes import Shapes

aten = torch.ops.aten

CASES = [
    {"optimizer": "adafactor", "checkpointing": "reentrant"},
    {"method": "full", "optimizer": "adamw_8bit", "accumulation": 2},
    {"method": "lora", "dora": True, "modules_to_save": ["lm_head"]},
    {"attention": "eager", "precision": "fp16", "checkpointing": True},
    {"quant": "int8", "optimizer": "paged_adamw_8bit", "batch": 2},
]


@pytest.mark.parametrize("keywords", CASES, ids=str)
def test_a_trace_has_the_same_events_without_it(keywords, spec_of, monkeypatch):
    spec = spec_of(**keywords)
    remembering = trace(spec, CARD)
    monkeypatch.setattr(shapes, "_is_pure", lambda _: False)
    monkeypatch.setattr(shapes, "_changes_values_only", lambda _: False)
    assert trace(spec, CARD) == remembering


def test_so_it_is_for_the_cpu(spec_of, monkeypatch):
    spec = spec_of(checkpointing=True)
    remembering = trace(spec, CPU)
    monkeypatch.setattr(shapes, "_is_pure", lambda _: False)
    monkeypatch.setattr(shapes, "_changes_values_only", lambda _: False)
    assert trace(spec, CPU) == remembering


def meta(*shape, **keywords):
    return torch.ones(*shape, device="meta", **keywords)


class Calls:
    """An operation that counts how often it is called."""

    def __init__(self, operation):
        self._operation = operation
        self._schema = operation._schema
        self.tags = operation.tags
        self.number = 0

    def __call__(self, *args, **kwargs):
        self.number += 1
        return self._operation(*args, **kwargs)


NEVER = {
    "view": (aten.view.default, ([16],)),
    "_unsafe_view": (aten._unsafe_view.default, ([16],)),
    "t": (aten.t.default, ()),
    "slice": (aten.slice.Tensor, (0, 1, 3)),
    "expand": (aten.expand.default, ([4, 4],)),
    "detach": (aten.detach.default, ()),
    "alias": (aten.alias.default, ()),
    "split": (aten.split.Tensor, (2,)),
    "as_strided": (aten.as_strided.default, ([2, 2], [4, 1])),
    "unsqueeze_": (aten.unsqueeze_.default, (0,)),
    "resize_": (aten.resize_.default, ([4, 4],)),
}


@pytest.mark.parametrize("name", NEVER)
def test_views_and_what_changes_shapes_are_never_remembered(name):
    operation, args = NEVER[name]
    calls, remembered, one = Calls(operation), Shapes(), meta(4, 4)
    for number in (1, 2):
        result = remembered.call(calls, (one, *args), {})
        first = result[0] if isinstance(result, list | tuple) else result
        assert first.untyped_storage()._cdata == one.untyped_storage()._cdata
        assert calls.number == number


ONCE = {
    "mul": (aten.mul.Tensor, (meta(4, 1), meta(1, 3)), {}),
    "transposed": (aten.add.Tensor, (meta(4, 3).t(), meta(3, 4)), {}),
    "_to_copy": (aten._to_copy.default, (meta(4),), {"dtype": torch.bfloat16}),
    "native_layer_norm": (aten.native_layer_norm.default, (meta(2, 4), [4], None, None, 1e-5), {}),
    "sum": (aten.sum.dim_IntList, (meta(4, 4), [0]), {"dtype": torch.float64}),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_makes_tensors_is_called_once_and_makes_new_ones_each_time(name):
    operation, args, kwargs = ONCE[name]
    calls, remembered = Calls(operation), Shapes()
    results = [remembered.call(calls, args, kwargs) for _ in range(3)]
    assert calls.number == 1
    assert [described(one) for one in results] == [described(operation(*args, **kwargs))] * 3
    every = [one for one in tree_iter(results) if isinstance(one, torch.Tensor)]
    assert len({one.untyped_storage()._cdata for one in every}) == len(every)


DIFFERENT = {
    "shape": [(meta(4, 4), meta(4, 4)), (meta(4, 4), meta(4))],
    "strides": [(meta(4, 3).t(), 1.0), (meta(3, 4), 1.0)],
    "type": [(meta(4), meta(4)), (meta(4), meta(4, dtype=torch.float64))],
    "number's type": [(meta(4, dtype=torch.int64), one) for one in (1, 1.0)],
    "truth or number": [(meta(4, dtype=torch.bool), one) for one in (True, 1)],
    "number of a tensor's dimensions": [
        (meta(4, dtype=torch.bfloat16), one) for one in (meta(()), meta(1))
    ],
}


IN_PLACE = {
    "add_": (aten.add_.Tensor, (meta(4),)),
    "mul_": (aten.mul_.Scalar, (2.0,)),
    "uniform_": (aten.uniform_.default, (0.0, 1.0)),
    "copy_": (aten.copy_.default, (meta(4, 4),)),
    "zero_": (aten.zero_.default, ()),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_changes_values_is_called_once_for_each_shape(name):
    operation, args = IN_PLACE[name]
    calls, remembered = Calls(operation), Shapes()
    for one in (meta(4, 4), meta(4, 4), meta(3, 4, 4), meta(4, 4)):
        assert remembered.call(calls, (one, *args), {}) is one
    assert calls.number == 2


def test_a_list_whose_values_change_is_returned_by_nobody():
    calls, remembered = Calls(aten._foreach_add_.List), Shapes()
    for _ in range(2):
        assert remembered.call(calls, ([meta(4), meta(5)], [meta(4), meta(1)]), {}) is None
    assert calls.number == 1


def test_wrong_shapes_are_refused_every_time():
    remembered = Shapes()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broadcast"):
            remembered.call(aten.add_.Tensor, (meta(4), meta(3)), {})


def test_values_beside_meta_do_change():
    remembered, counter = Shapes(), torch.zeros(())
    for _ in range(3):
        assert remembered.call(aten.add_.Tensor, (counter, 1), {}) is counter
    assert counter == 3


@pytest.mark.parametrize("name", DIFFERENT)
def test_calls_that_differ_are_different_calls(name):
    remembered = Shapes()
    for _ in range(2):
        for args in DIFFERENT[name]:
            seen = remembered.call(aten.add.Tensor, args, {})
            assert described(seen) == described(aten.add.Tensor(*args))


def test_what_changes_an_argument_beside_its_result_is_never_remembered():
    calls, remembered = Calls(aten._native_batch_norm_legit.default), Shapes()
    args = (meta(2, 3), None, None, meta(3), meta(3), True, 0.1, 1e-5)
    for number in (1, 2):
        remembered.call(calls, args, {})
        assert calls.number == number


def test_what_is_beside_meta_is_never_remembered():
    calls, remembered = Calls(aten.add.Tensor), Shapes()
    for one in (1.0, 2.0):
        result = remembered.call(calls, (torch.full((2,), one), one), {})
        assert result.tolist() == [2 * one, 2 * one]
    assert calls.number == 2
