"""Real weights: a checkpoint costs what random weights cost, and nothing in it is ever run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import bitsandbytes
import pytest
import torch
from bitsandbytes.nn import Int8Params, Params4bit
from measuring import LEAST, measured, objections
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training import model
from pytest_vramfit.training.config import UnbuildableError

CPU = torch.device("cpu")
SHAPE = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
METHODS = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "nf4": {},
    "fp4, single": {"quant": "fp4", "double_quant": False},
    "int8": {"quant": "int8"},
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A checkpoint in fp32, as safetensors."""
    folder = tmp_path_factory.mktemp("checkpoint")
    values = dict(SHAPE)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(written, tmp_path):
    """A copy of it, to break."""
    return shutil.copytree(written, tmp_path / "mine")


def built(spec):
    return model.build(model.outline(spec), spec, CPU)


def refusal(spec, call=built):
    with pytest.raises(UnbuildableError) as error:
        call(spec)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("method", METHODS)
def test_the_steps_have_the_bytes_of_random_weights(method, spec_of, written):
    random, real = (
        measured(spec_of(model=str(written), weights=weights, **METHODS[method]))
        for weights in ("random", "pretrained")
    )
    same = {"load_peak_bytes": 0}
    assert replace(real.memory, **same) == replace(random.memory, **same)
    # both have at the least the whole model, one with a file's tensor at a time beside it
    assert abs(real.memory.load_peak_bytes - random.memory.load_peak_bytes) < 3 * 4 * 512 * 128
    spec = spec_of(model=str(written), **METHODS[method])
    assert real.memory.load_peak_bytes >= sum(one.nbytes for one in built(spec).parameters())


@pytest.mark.parametrize("method", METHODS)
def test_it_trains(method, spec_of, written):
    spec = spec_of(model=str(written), weights="pretrained", **METHODS[method])
    assert objections(spec) == []


@pytest.mark.parametrize(
    "keywords",
    [
        {"dora": True, "modules_to_save": ["lm_head"], "checkpointing": "reentrant"},
        {"quant": "int8", "modules_to_save": ["embed_tokens"], "kbit_upcast": False},
        {"method": "full", "optimizer": "adafactor", "checkpointing": "reentrant"},
        # PEFT leaves the gradients of inputs to k-bit preparation
        {"checkpointing": "reentrant", "kbit_upcast": False},
        {"checkpointing": "reentrant", "kbit_upcast": False, "quant": "int8"},
    ],
    ids=str,
)
def test_it_trains_with_other_settings(keywords, spec_of, written):
    assert objections(spec_of(model=str(written), weights="pretrained", **keywords)) == []


@pytest.mark.parametrize("method", METHODS)
def test_the_weights_are_those_of_the_file(method, spec_of, written):
    spec = spec_of(model=str(written), weights="pretrained", **METHODS[method])
    file = load_file(written / "model.safetensors")
    parameters = dict(built(spec).named_parameters())
    assert parameters.keys() == file.keys()
    quantised = [name for name, one in parameters.items() if one.dtype in {torch.int8, torch.uint8}]
    assert len(quantised) == (14 if spec.quant else 0)
    for name, one in parameters.items():
        stored = file[name].to(model.DTYPES[spec.dtype])
        if isinstance(one, Params4bit):
            expected, state = bitsandbytes.functional.quantize_4bit(
                stored, quant_type=spec.quant, compress_statistics=spec.double_quant
            )
            assert torch.equal(one.data, expected), name
            assert torch.equal(one.quant_state.absmax, state.absmax), name
        elif isinstance(one, Int8Params):
            expected, constants, _ = bitsandbytes.functional.int8_vectorwise_quant(stored.half())
            assert torch.equal(one.data, expected), name
            assert torch.equal(one.SCB, constants), name
        else:
            assert torch.equal(one, stored), name


def test_shards_are_read(spec_of, written, tmp_path):
    AutoModelForCausalLM.from_pretrained(written).save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    spec = spec_of(model=str(tmp_path), weights="pretrained", method="full")
    file = load_file(written / "model.safetensors")
    for name, one in built(spec).named_parameters():
        assert torch.equal(one, file[name]), name


def test_random_weights_are_not_those_of_the_folder(spec_of, written):
    spec = spec_of(model=str(written), method="full")
    file = load_file(written / "model.safetensors")
    assert not torch.equal(built(spec).lm_head.weight, file["lm_head.weight"])


def test_an_evaluation_phase_sees_the_real_weights(spec_of, written):
    spec = spec_of(model=str(written), weights="pretrained", method="lora", targets="qv")
    real, random = (
        measured(one, replace(LEAST, phases=("eval",)))
        for one in (spec, replace(spec, weights="random"))
    )
    assert real.phases == random.phases
    assert real.evidence.loss != random.evidence.loss


def test_pickled_weights_are_refused(spec_of, checkpoint):
    weights = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    torch.save(weights, checkpoint / "pytorch_model.bin")
    says = refusal(spec_of(model=str(checkpoint), weights="pretrained"))
    assert says.startswith("model: OSError: ")
    assert "safetensors" in says


def without_weights(folder):
    (folder / "model.safetensors").unlink()


def truncated(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def garbage(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)


@pytest.mark.parametrize("fault", [without_weights, truncated, garbage])
@pytest.mark.parametrize("method", ["lora", "nf4"])
def test_a_broken_checkpoint_is_refused_in_one_sentence(fault, method, spec_of, checkpoint):
    fault(checkpoint)
    spec = spec_of(model=str(checkpoint), weights="pretrained", **METHODS[method])
    assert refusal(spec).startswith("model: ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lm_head.weight": None}, "'lm_head.weight' of the config's shape"),
        ({"lm_head.weight": torch.zeros(512, 64)}, "'lm_head.weight' of the config's shape"),
        (
            {"model.norm.weight": None, "model.layers.1.mlp.up_proj.weight": torch.zeros(8, 8)},
            "'model.layers.1.mlp.up_proj.weight' of the config's shape and 1 more",
        ),
    ],
    ids=["missing", "of another shape", "both"],
)
def test_a_weight_that_would_be_made_up_is_refused(change, says, spec_of, checkpoint):
    """transformers would initialise it, with no more than a warning."""
    weights = {**load_file(checkpoint / "model.safetensors"), **change}
    held = {name: one for name, one in weights.items() if one is not None}
    save_file(held, checkpoint / "model.safetensors", metadata={"format": "pt"})
    spec = spec_of(model=str(checkpoint), weights="pretrained", method="lora")
    assert refusal(spec) == f"model: its checkpoint has no {says}"


def test_a_tied_head_need_not_be_in_the_file(spec_of, tmp_path):
    values = {**SHAPE, "tie_word_embeddings": True}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    spec = spec_of(model=str(tmp_path), weights="pretrained", method="full")
    assert objections(spec) == []


CODE = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import LlamaConfig as Config, LlamaForCausalLM as Model
"""


@pytest.fixture
def with_code(checkpoint, tmp_path):
    """A checkpoint that brings code along; and what that code would leave behind."""
    marker = tmp_path / "ran"
    (checkpoint / "mine.py").write_text(CODE.format(marker=str(marker)), encoding="utf-8")

    def with_code(model_type):
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        config["model_type"] = model_type
        config["auto_map"] = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
        (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return checkpoint, marker

    return with_code


@pytest.mark.parametrize("weights", ["random", "pretrained"])
def test_code_beside_a_known_architecture_is_not_run(weights, with_code, spec_of):
    folder, marker = with_code("llama")
    assert objections(spec_of(model=str(folder), weights=weights, method="lora")) == []
    assert not marker.exists()


@pytest.mark.parametrize("weights", ["random", "pretrained"])
@pytest.mark.parametrize("known", [True, False])
def test_an_architecture_that_only_its_own_code_knows_is_refused(
    weights, known, with_code, spec_of
):
    """Also where the worker reads the config."""
    folder, marker = with_code("zzzzzzzz")
    spec = spec_of(model=str(folder), weights=weights)
    if not known:
        spec = replace(spec, config={}, checkpoint=str(folder))
    assert refusal(spec) == (
        "model_type 'zzzzzzzz' is unknown to transformers, and code that a model brings along is "
        "never run"
    )
    assert not marker.exists()


def unknown(spec_of, folder, **keywords) -> TrainSpec:
    """As a hub id is, whose config only the worker can read."""
    return replace(spec_of(**keywords), config={}, checkpoint=str(folder))


def test_a_config_that_the_worker_reads_is_the_same_model(spec_of, written):
    known = spec_of(model=str(written))
    assert measured(unknown(spec_of, written)).memory == measured(known).memory


def test_config_and_weights_that_the_worker_reads_train(spec_of, written):
    pretrained = replace(unknown(spec_of, written, method="lora"), weights="pretrained")
    assert objections(pretrained) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"quantization_config": {"load_in_4bit": True}},
            (
                "model={!r} has a 'quantization_config': checkpoints that are quantised already "
                "are not built yet"
            ),
        ),
        ({"model_type": None}, "model={!r} has no 'model_type', such as 'llama'"),
        (
            {"num_hidden_layers": 10**12},
            (
                "model={!r} has 'num_hidden_layers' = 1000000000000, which must be an integer from "
                "1 to 1,000"
            ),
        ),
        ({"model_type": "t5"}, "model_type 't5' is no causal language model to transformers"),
        (
            {"num_key_value_heads": 3},
            "model: num_attention_heads = 4 must be a multiple of num_key_value_heads = 3",
        ),
    ],
)
def test_a_config_that_the_worker_refuses(change, says, spec_of, checkpoint):
    values = {**json.loads((checkpoint / "config.json").read_text(encoding="utf-8")), **change}
    (checkpoint / "config.json").write_text(json.dumps(values), encoding="utf-8")
    assert refusal(unknown(spec_of, checkpoint), model.outline) == says.format(str(checkpoint))


def test_a_hub_id_that_cannot_be_read_gets_the_nearest_name(spec_of, monkeypatch):
    asked = []

    def offline(name, revision):
        asked.append((name, revision))
        raise OSError("We couldn't connect to 'https://huggingface.co'\nand more\nthan that")

    monkeypatch.setattr(PreTrainedConfig, "get_config_dict", offline)
    spec = replace(spec_of(), config={}, checkpoint="qwen/Qwen2.5-7B-mine", revision="v1")
    assert refusal(spec) == (
        "model='qwen/Qwen2.5-7B-mine' is not in the catalogue, whose nearest is 'Qwen2.5-7B', and "
        "its config could not be read from the hub or its cache: OSError: We couldn't connect to "
        "'https://huggingface.co' and more"
    )
    assert asked == [("qwen/Qwen2.5-7B-mine", "v1")]


def test_a_revision_is_that_of_the_weights_too(spec_of, monkeypatch, written):
    asked = []

    def read(name, **keywords):
        asked.append((name, keywords["revision"], keywords["trust_remote_code"]))
        raise OSError("no")

    monkeypatch.setattr(model.AutoModelForCausalLM, "from_pretrained", read)
    spec = spec_of(model=str(written), weights="pretrained")
    for revision in (None, "v1"):
        refusal(replace(spec, checkpoint="a/b", revision=revision))
    assert asked == [("a/b", "main", False), ("a/b", "v1", False)]
