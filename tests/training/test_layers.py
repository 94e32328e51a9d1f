"""What is traced of a few layers is, event for event, the trace of the whole model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_architectures import CONFIGS, EAGER
from test_trace_on_cpu import ARCHITECTURES, SETTINGS, config
from tracing import CARD, one_thread, shown  # noqa: F401

from pytest_vramfit.estimating import layers, run
from pytest_vramfit.estimating.depth import layers_of, with_layers

pytestmark = [
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning"),  # GPT-2's
    pytest.mark.filterwarnings("ignore:Merge lora module to .-bit linear:UserWarning"),
]

LAYERS = 13
UNLIKE = {"gemma2", "gemma3_text", "gpt_oss"}
"""Architectures whose layers take turns in how they attend."""
PHASES = ("eval", "save", "merge")


@pytest.fixture
def traced_layers(monkeypatch):
    """How many layers the models had that were traced."""
    numbers = []

    def trace(spec, *args):
        numbers.append(layers_of(spec))
        return whole(spec, *args)

    whole = run.trace
    monkeypatch.setattr(run, "trace", trace)
    return numbers


def assert_repeated(spec, traced_layers, *followed):
    """As the whole model is traced, without tracing it."""
    repeated = layers.Tracer().trace(spec, CARD, *followed)
    assert traced_layers in ([2, 3, 4], [2, 3, 4, 5])
    assert repeated == run.trace(spec, CARD, *followed)


@pytest.mark.parametrize(("model_type", "keywords"), ARCHITECTURES, ids=shown)
def test_every_architecture(model_type, keywords, spec_of, traced_layers):
    attention = "eager" if model_type in EAGER else "sdpa"
    spec = spec_of(**{"model": CONFIGS[model_type], "attention": attention, **keywords})
    spec = with_layers(spec, LAYERS)
    if model_type in UNLIKE:
        layers.Tracer().trace(spec, CARD)
        assert traced_layers == [LAYERS]
    else:
        assert_repeated(spec, traced_layers)


@pytest.mark.parametrize(
    "keywords", [one for one in SETTINGS if isinstance(one, dict) and "model" not in one], ids=shown
)
def test_every_setting(keywords, spec_of, traced_layers):
    assert_repeated(with_layers(spec_of(**keywords), LAYERS), traced_layers)


@pytest.mark.parametrize("number", [12, 28])
def test_any_number_of_layers(number, spec_of, traced_layers):
    assert_repeated(with_layers(spec_of(), number), traced_layers)


@pytest.mark.parametrize(
    "keywords", [{}, {"method": "lora", "checkpointing": True}, {"quant": "int8"}], ids=shown
)
def test_what_follows_the_steps(keywords, spec_of, traced_layers):
    assert_repeated(with_layers(spec_of(**keywords), LAYERS), traced_layers, PHASES, 3)


@pytest.mark.parametrize(
    ("number", "keywords"),
    [
        (11, {}),
        (LAYERS, {"targets": ["layers.3.self_attn.q_proj", "v_proj"]}),
        (LAYERS, {"targets": ["layers.12.self_attn.q_proj"]}),
        (
            LAYERS,
            {"method": "lora", "targets": "qv", "modules_to_save": ["layers.3.mlp.up_proj"]},
        ),
        (
            LAYERS,
            {"method": "full", "model": config("deepseek_v2"), "attention": "eager"},
        ),
    ],
    ids=shown,
)
def test_where_layers_are_not_alike_all_are_traced(number, keywords, spec_of, traced_layers):
    spec = with_layers(spec_of(**keywords), number)
    layers.Tracer().trace(spec, CARD)
    assert traced_layers == [number]


def test_nor_are_they_repeated_with_weights_of_a_checkpoint(spec_of, traced_layers):
    layers.Tracer().trace(replace(with_layers(spec_of(), LAYERS), weights="pretrained"), CARD)
    assert traced_layers == [LAYERS]


def test_a_short_model_is_traced_once_for_itself_and_for_longer_ones(spec_of, traced_layers):
    tracer = layers.Tracer()
    for number in (2, 4, LAYERS, 20, 3):
        tracer.trace(with_layers(spec_of(), number), CARD)
    assert traced_layers == [2, 4, 3]
    tracer.trace(with_layers(spec_of(seq=9), 4), CARD)
    tracer.trace(with_layers(spec_of(), 4), replace(CARD, capability=(9, 0)))
    tracer.trace(with_layers(spec_of(), 4), CARD, ("eval",), 2)
    assert traced_layers == [2, 4, 3, 4, 4, 4]
    tracer.trace(with_layers(spec_of(), 2), CARD)  # no longer kept
    assert traced_layers[-1] == 2
