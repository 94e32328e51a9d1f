"""What a checkpoint allocates on its way to a card: transformers' warm-up, then weights by name."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch
from tracing import CARD, CPU

from pytest_vramfit.estimating import loading
from pytest_vramfit.estimating.run import trace
from pytest_vramfit.events import Action
from pytest_vramfit.measurement import UnsupportedError
from pytest_vramfit.training import model

LAYERS = 11
ELEMENTS = {"full": 4, "lora": 2, "nf4": 0.5, "int8": 1}
"""The bytes of an element of a linear layer as transformers reckons them."""
CASES = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "nf4": {},
    "int8": {"quant": "int8"},
}


@pytest.fixture(params=CASES)
def case(request, spec_of):
    spec = spec_of(**CASES[request.param])
    spec = replace(spec, weights="pretrained", config={**spec.config, "num_hidden_layers": LAYERS})
    return request.param, spec


def loaded(traced):
    """The events up to where the base is there."""
    end = traced.events.index((Action.MARK, traced.marks.index("weights"), 0))
    return traced.events[:end]


def parameters_of(spec):
    return dict(model.outline(spec).named_parameters())


def warm_up_bytes(name, spec):
    quantised = spec.method == "qlora"
    total = 0
    for of, one in parameters_of(spec).items():
        linear = "proj" in of
        width = ELEMENTS[name] if linear or not quantised else 2
        total += one.numel() * width
    return int(total)


def test_a_block_of_the_model_s_size_is_given_back_before_any_weight(case):
    name, spec = case
    first, second, *_ = loaded(trace(spec, CARD))
    assert first == (Action.ALLOCATE, first[1], warm_up_bytes(name, spec))
    assert second[:2] == (Action.FREE, first[1])


def test_the_block_leaves_some_of_what_the_driver_does_not_keep(spec_of):
    spec = replace(spec_of(method="lora"), weights="pretrained")
    total = math.ceil(1.2 * 2**30) + 4096 + 10**6
    card = replace(CARD, total_bytes=total, reserved_bytes=10**6)
    first, *_ = loaded(trace(spec, card))
    assert first[2] == 4096


def test_parameters_come_in_the_order_of_their_names(case):
    """The tenth layer after the second, whatever the order of modules."""
    _, spec = case
    outline = model.outline(spec)
    names = {id(one): name for name, one in outline.named_parameters()}
    layers = [
        int(found[1])
        for one in loading.in_order(outline)
        if (found := re.search(r"layers\.(\d+)\.", names[id(one)]))
    ]
    assert layers == sorted(layers)
    assert layers[-1] == LAYERS - 1
    first = [names[id(one)] for one in loading.in_order(outline)]
    of_a_layer = [one for one in first if ".layers.0." in one]
    assert of_a_layer == sorted(of_a_layer)
    assert first.index(of_a_layer[0]) > 0  # embeddings


def test_every_weight_is_there_once_and_the_last_in_its_place(case):
    """Between them lie the quantised forms."""
    _, spec = case
    width = torch.finfo(model.DTYPES[spec.dtype]).bits // 8
    _, _, *events = loaded(trace(spec, CARD))
    sizes = iter([size // width for action, _, size in events if action is Action.ALLOCATE])
    for one in loading.in_order(model.outline(spec)):
        assert one.numel() in sizes  # goes on from where the one before was found


def test_experts_that_are_put_together_are_not_predicted(spec_of):
    config = {"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2}
    spec = replace(spec_of(model=config, method="lora"), weights="pretrained")
    with pytest.raises(UnsupportedError) as refused:
        trace(spec, CARD)
    assert str(refused.value).startswith("weights='pretrained': parts of its checkpoint are put")
    trace(replace(spec, weights="random"), CARD)


def test_the_steps_need_what_they_need_with_random_weights(case):
    """Only where blocks lie, and so what is reserved, depends on how they came."""
    _, spec = case
    real, random = (trace(replace(spec, weights=w), CARD) for w in ("pretrained", "random"))
    after = [one.events[len(loaded(one)) :] for one in (real, random)]
    sizes = [[size for action, _, size in one if action is Action.ALLOCATE] for one in after]
    assert sizes[0] == sizes[1]


def test_on_a_cpu_there_is_no_such_thing(spec_of):
    spec = spec_of()
    real, random = (trace(replace(spec, weights=w), CPU) for w in ("pretrained", "random"))
    assert real.events == random.events
