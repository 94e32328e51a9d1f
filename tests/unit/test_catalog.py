"""The catalogue's look-up rules and its data, without torch or transformers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_vramfit import catalog

ROWS = [model for name in catalog.names() if (model := catalog.find(name))]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        pytest.param("Qwen2.5-7B", "Qwen2.5-7B", id="catalogue name"),
        pytest.param("qwen2.5-7b", "Qwen2.5-7B", id="another case"),
        pytest.param("Qwen2.5-7B-Instruct", "Qwen2.5-7B", id="name and Instruct"),
        pytest.param("meta-llama/Llama-3.1-8B-Instruct", "Llama-3-8B", id="Hub id"),
        pytest.param("META-LLAMA/meta-llama-3-8b", "Llama-3-8B", id="Hub id in another case"),
        pytest.param("google/gemma-2-2b-it", "Gemma-2-2B", id="chat variant"),
        pytest.param("meta-llama/Llama-3-8B", "Llama-3-8B", id="known organisation and name"),
        pytest.param(
            "deepseek-ai/deepseek-coder-1.3b-instruct", "deepseek-coder-1.3b", id="and Instruct"
        ),
        pytest.param("gpt2", "gpt2", id="Hub id without organisation"),
        pytest.param("tiny", "tiny", id="model without a checkpoint"),
    ],
)
def test_find_accepts(spelling: str, name: str) -> None:
    model = catalog.find(spelling)
    assert model is not None
    assert model.name == name


@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param("someone/Qwen2.5-7B", id="unknown organisation"),
        pytest.param("someone/tiny", id="organisation of a model without a checkpoint"),
        pytest.param("meta-llama/Qwen2.5-7B", id="organisation of another row"),
        pytest.param("unsloth/phi-4", id="mirror of another shape"),
        pytest.param("google/gemma-3-4b-it", id="text part plus a vision tower"),
        pytest.param("Qwen2.5-8B", id="no such model"),
        pytest.param("", id="empty"),
    ],
)
def test_find_refuses(spelling: str) -> None:
    assert catalog.find(spelling) is None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_spelling_of_a_row_leads_to_another(row: catalog.Model) -> None:
    names = [row.name, f"{row.name}-Instruct"]
    organisations = {hub_id.split("/")[0] for hub_id in row.hub_ids}
    spellings = [
        *names,
        *row.hub_ids,
        *(f"{organisation}/{name}" for organisation in organisations for name in names),
    ]
    assert {catalog.find(spelling) for spelling in spellings} == {row}


def test_find_returns_a_row_for_every_name() -> None:
    assert tuple(row.name for row in ROWS) == catalog.names()


def test_names_are_unique_whatever_the_case() -> None:
    assert len({name.lower() for name in catalog.names()}) == len(catalog.names())


def test_hub_ids_are_unique_whatever_the_case() -> None:
    hub_ids = [hub_id.lower() for row in ROWS for hub_id in row.hub_ids]
    assert len(set(hub_ids)) == len(hub_ids)


def test_hub_ids_are_an_organisation_and_a_name() -> None:
    assert all(hub_id.count("/") == 1 for row in ROWS for hub_id in row.hub_ids)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_has_sources(row: catalog.Model) -> None:
    assert row.sources
    assert all(row.sources)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_has_parameters(row: catalog.Model) -> None:
    assert row.parameters > 0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_config_says_its_type_and_whether_the_head_is_tied(row: catalog.Model) -> None:
    assert isinstance(row.config["model_type"], str)
    assert isinstance(row.config["tie_word_embeddings"], bool)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_config_holds_plain_values(row: catalog.Model) -> None:
    assert {type(value) for value in row.config.values()} <= {str, int, bool, type(None)}


def test_config_is_read_only() -> None:
    with pytest.raises(TypeError):
        ROWS[0].config["vocab_size"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        pytest.param("Qwen2.5-8B", "Qwen2.5-7B", id="wrong size"),
        pytest.param("Qwen2.5-7", "Qwen2.5-7B", id="unit left out"),
        pytest.param("llama-3.2-1", "Llama-3.2-1B", id="another case"),
        pytest.param("someone/Qwen2.5-7B", "Qwen2.5-7B", id="unknown organisation"),
        pytest.param("gemma-2-2b-itt", "Gemma-2-2B", id="near a Hub id"),
        pytest.param("Llama-3.1-8B", "Llama-3-8B", id="Hub id without organisation"),
        pytest.param("tinny", "tiny", id="short name"),
        pytest.param("google/gemma-3-4b-it", "Gemma-3-4B", id="name with an ending"),
        pytest.param("mistral-7b", "Mistral-7B-v0.3", id="name without its ending"),
    ],
)
def test_nearest_suggests(spelling: str, name: str) -> None:
    assert catalog.nearest(spelling) == name


@pytest.mark.parametrize("spelling", ["", "someone/", "resnet50", "xyz", "tiny-and-much-more"])
def test_nearest_suggests_nothing_where_nothing_is_close(spelling: str) -> None:
    assert catalog.nearest(spelling) is None


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        pytest.param({"model_type": "gpt2"}, 1024, id="gpt2 default"),
        pytest.param({"model_type": "gpt2", "n_positions": 512}, 512, id="gpt2"),
        pytest.param({"model_type": "gpt2", "max_position_embeddings": 512}, 512, id="gpt2 alias"),
        pytest.param({"model_type": "opt"}, 2048, id="opt default"),
        pytest.param({"model_type": "opt", "max_position_embeddings": 64}, 64, id="opt"),
        pytest.param({"model_type": "opt", "n_positions": 64}, 2048, id="opt, gpt2's key"),
        pytest.param({"model_type": "gpt_neo"}, 2048, id="gpt_neo default"),
        pytest.param({"model_type": "llama", "max_position_embeddings": 64}, None, id="rotary"),
        pytest.param({}, None, id="no type"),
    ],
)
def test_longest_sequence(config: dict[str, object], tokens: int | None) -> None:
    assert catalog.longest_sequence(config) == tokens


def test_longest_sequence_refuses_a_number_of_positions_that_is_none() -> None:
    with pytest.raises(TypeError, match="'1024'"):
        catalog.longest_sequence({"model_type": "gpt2", "n_positions": "1024"})


def test_import_needs_neither_torch_nor_transformers_nor_pytest() -> None:
    code = (
        "import sys, pytest_vramfit.catalog\n"
        "print(sorted({'torch', 'transformers', 'pytest'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Llama-2-13B", ["Llama-2-7B", "Llama-2-13B", "Llama-2-70B"]),
        ("Llama-3-8B", ["Llama-3-8B", "Llama-3-70B"]),
        ("Llama-3.2-1B", ["Llama-3.2-1B", "Llama-3.2-3B"]),
        ("gpt2-xl", ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"]),
        pytest.param("Qwen3-30B-A3B", ["Qwen3-30B-A3B"], id="another type than Qwen3-32B"),
        pytest.param("Mistral-7B-v0.3", ["Mistral-7B-v0.3"], id="another type than Mixtral-8x7B"),
        ("tiny", ["tiny"]),
    ],
)
def test_a_family_has_one_name_and_one_type_and_goes_by_size(name: str, family: list[str]) -> None:
    model = catalog.find(name)
    assert model is not None
    assert [one.name for one in catalog.family(model)] == family


def test_every_model_is_in_its_family_and_in_no_other() -> None:
    families = {catalog.family(row) for row in ROWS}
    assert sorted(row.name for one in families for row in one) == sorted(catalog.names())
