"""The catalogue's configs, built by transformers on the meta device: no weights, no memory."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import pytest
import torch
from published import PARAMETERS
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from pytest_vramfit import catalog


def row(name: str) -> catalog.Model:
    model = catalog.find(name)
    assert model is not None
    return model


@cache
def build(name: str) -> PreTrainedModel:
    config = AutoConfig.for_model(**row(name).config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("name", catalog.names())
def test_model_has_the_row_s_number_of_parameters(name: str) -> None:
    assert sum(p.numel() for p in build(name).parameters()) == row(name).parameters


@pytest.mark.parametrize("name", catalog.names())
def test_config_keeps_every_value_of_the_row(name: str) -> None:
    """A key that transformers does not know, or overrules, would be a silent mistake."""
    config = build(name).config
    assert {key: getattr(config, key) for key in row(name).config} == dict(row(name).config)


@pytest.mark.parametrize("name", catalog.names())
def test_head_is_tied_where_the_row_says_so(name: str) -> None:
    model = build(name)
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tied is row(name).config["tie_word_embeddings"]


@pytest.mark.parametrize("name", catalog.names())
def test_padding_token_is_inside_the_vocabulary(name: str) -> None:
    config = build(name).config
    assert (config.pad_token_id or 0) < config.vocab_size


@pytest.mark.parametrize("name", catalog.names())
def test_longest_sequence_is_known_where_there_is_a_position_table(name: str) -> None:
    tables = [
        module.num_embeddings
        for path, module in build(name).named_modules()
        if isinstance(module, torch.nn.Embedding) and path.endswith(("wpe", "embed_positions"))
    ]
    longest = catalog.longest_sequence(row(name).config)
    assert (longest is not None) == bool(tables)
    assert all(longest is not None and longest <= rows for rows in tables)


@pytest.mark.parametrize(
    "model_type", ["biogpt", "gpt2", "gpt_bigcode", "gpt_neo", "openai-gpt", "opt"]
)
def test_longest_sequence_falls_back_on_transformers_default(model_type: str) -> None:
    default = AutoConfig.for_model(model_type).max_position_embeddings
    assert catalog.longest_sequence({"model_type": model_type}) == default


@pytest.mark.parametrize("name", PARAMETERS)
def test_row_agrees_with_a_count_published_elsewhere(name: str) -> None:
    count, _source = PARAMETERS[name]
    assert row(name).parameters == count


def test_rows_marked_published_are_those_of_the_table() -> None:
    text = files("pytest_vramfit.catalog").joinpath("models.json").read_text(encoding="utf-8")
    models = json.loads(text)["models"]
    assert {name for name, data in models.items() if data["published"]} == set(PARAMETERS)
