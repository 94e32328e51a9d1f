"""A model that no library could build is an ERROR of its own test, in one sentence and soon."""

from __future__ import annotations

import re

import pytest
from inner import HEAD, Ran, RunOnce

READ_BY_PYTEST = r"""
model(num_hidden_layers=10**12)
    has 'num_hidden_layers' = 1000000000000, which must be an integer from 1 to 1,000
model(num_hidden_layers=0)
    has 'num_hidden_layers' = 0, which must be an integer from 1 to 1,000
model(hidden_size=-1)
    has 'hidden_size' = -1, which must be an integer from 1 to 1,048,576
model(hidden_size=3.5)
    has 'hidden_size' = 3.5, which must be an integer from 1 to 1,048,576
model(hidden_size="many")
    has 'hidden_size' = 'many', which must be an integer from 1 to 1,048,576
model(hidden_size=True)
    has 'hidden_size' = True, which must be an integer from 1 to 1,048,576
model(hidden_size=float("nan"))
    has 'hidden_size' = nan, which is no number
model(hidden_size=float("-inf"))
    has 'hidden_size' = -inf, which is no number
model(hidden_size=b"64")
    has 'hidden_size' of type bytes, which is no JSON value
model(hidden_size=Unshowable())
    has 'hidden_size' of type Unshowable, which is no JSON value
model(num_attention_heads=10**9)
    has 'num_attention_heads' = 1000000000, which must be an integer from 1 to 65,536
model(vocab_size=10**18)
    has 'vocab_size' = 1000000000000000000, which must be an integer from 1 to 268,435,456
model(vocab_size=10**30)
    has 'vocab_size' = 1000000000000000000000000000000, which is more than 64 bits hold
model(num_labels=10**12)
    has 'num_labels' = 1000000000000, which must be at most 1,048,576
model(return_dict=False)
    has 'return_dict' = False, which must be True, as the loss is read by its name
model(attention_dropout=5)
    has 'attention_dropout' = 5, which must be a number from 0 up to, not including, 1
model(text_config={"num_hidden_layers": 10**12})
    has 'num_hidden_layers' = 1000000000000, which must be an integer from 1 to 1,000
model(model_type="gpt2", n_layer=10**12)
    has 'n_layer' = 1000000000000, which must be an integer from 1 to 1,000
model(model_type="llama\nllama")
    has 'model_type' = 'llama\nllama', which is no name like 'llama'
model(model_type=None)
    has no 'model_type', such as 'llama'
model(quantization_config={"quant_method": "gptq"})
    has a 'quantization_config': checkpoints that are quantised already are not built yet
model(**{"rope_parameters": {1: 2}})
    has a key that is no text under 'rope_parameters': 1
CYCLIC_DICT
    has values nested too deep under 'a'
CYCLIC_LIST
    has values nested too deep under 'a'
BOMB
    has more than 100,000 values
folder("[" * 10**5)
    has a config.json that cannot be read: maximum recursion depth exceeded
folder("{}")
    has no 'model_type', such as 'llama'
folder("\xff")
    has a config.json that cannot be read: 'utf-8' codec can't decode byte 0xff
folder(None)
    is no folder with a config.json
folder('{"model_type": "llama", "num_hidden_layers": 1000000000000}')
    has 'num_hidden_layers' = 1000000000000, which must be an integer from 1 to 1,000
"""
TOLD_BY_TRANSFORMERS = r"""
model(hidden_size=65)
    The hidden size (65) is not a multiple of the number of attention heads (2)
model(num_key_value_heads=3)
    model: num_attention_heads = 2 must be a multiple of num_key_value_heads = 3
model(num_hidden_layers=[2, 2])
    Field 'num_hidden_layers' expected int, got list (value: [2, 2])
model(hidden_size={"a": 1})
    Field 'hidden_size' expected int, got dict (value: {'a': 1})
model(vocab_size=None)
    Field 'vocab_size' expected int, got NoneType (value: None)
model(rms_norm_eps="small")
    Field 'rms_norm_eps' expected float, got str (value: 'small')
model(hidden_act="wobble")
    'wobble'
model(rope_parameters="x")
    Field 'rope_parameters' with value 'x'
model(rope_parameters={"rope_type": "wobble"})
    'wobble'
model(rope_parameters={"rope_type": "yarn"})
    Missing required keys in `rope_parameters` for 'rope_type'='yarn': {'factor'}
model(use_return_dict=False)
    property 'use_return_dict' of 'LlamaConfig' object has no setter
model(chunk_size_feed_forward=5)
    model: seq = 512 must be a multiple of chunk_size_feed_forward = 5
model(model_type="mixtral", num_local_experts=4, num_experts_per_tok=5)
    model: num_experts_per_tok = 5 must be from 1 to num_local_experts = 4
model(pad_token_id=10**9)
    Padding_idx must be within num_embeddings
model(max_position_embeddings="x")
    Field 'max_position_embeddings' expected int, got str (value: 'x')
model(text_config={"hidden_size": 8})
    model: AttributeError
model(**{"self": 1})
    got multiple values for argument 'self'
{"model_type": "t5"}
    model_type 't5' is no causal language model to transformers
{"model_type": "clip"}
    model_type 'clip' is no causal language model to transformers
{"model_type": "wobble", "auto_map": {"AutoModelForCausalLM": "own.Own"}}
    model_type 'wobble' is unknown to transformers, and code that a model brings along is never run
{"model_type": "lama"}
    model_type 'lama' is unknown to transformers; the nearest is 'llama'
{"model_type": "bloom"}
    BloomForCausalLM does not have attention='sdpa'; write attention='eager'
"""
"""Models, each above what its sentence has to say."""

ROW = re.compile(r"^(\S.*)\n    (.+)$", re.MULTILINE)
READ = dict(ROW.findall(READ_BY_PYTEST))
BUILT = dict(ROW.findall(TOLD_BY_TRANSFORMERS))

SUITE = (
    HEAD
    + r"""
import os
from pathlib import Path

class Unshowable:
    def __repr__(self): raise RuntimeError

def model(**changed):
    small = dict.fromkeys(["hidden_size", "intermediate_size", "vocab_size"], 64)
    small |= dict.fromkeys(["num_hidden_layers", "num_attention_heads", "num_key_value_heads"], 2)
    return {"model_type": "llama", **small, **changed}

def folder(text):
    made = Path(f"folder{len([*Path().glob('folder*')])}").absolute()
    made.mkdir()
    if text is None:
        os.mkfifo(made / "config.json")
    else:
        (made / "config.json").write_text(text, encoding="latin-1")
    return str(made)

CYCLIC_DICT = model()
CYCLIC_DICT["a"] = CYCLIC_DICT
CYCLIC_LIST = model(a=[])
CYCLIC_LIST["a"].append(CYCLIC_LIST["a"])
BOMB = model(a=1)
for _ in range(14):
    BOMB["a"] = [BOMB["a"]] * 1_000

@pytest.mark.fits_vram(**TINY)
def test_first(): pass

@pytest.mark.fits_vram(model=model(auto_map={"AutoConfig": "own.Own"}), seq=16, steps=1, warmup=2)
def test_own_code_beside_a_known_type(): pass

"""
)
SUITE += "\n".join(
    f"@pytest.mark.fits_vram(model={model})\ndef test_{i}(): pass"
    for i, model in enumerate([*READ, *BUILT])
)
SLOW = """
def pytest_runtest_logreport(report):
    if report.duration > 2 and "test_first" not in report.nodeid:
        print("TOO SLOW", report.nodeid, report.duration)
"""


@pytest.fixture
def ran(run_once: RunOnce) -> Ran:
    return run_once("--vramfit=cpu", "-s", test_wrong=SUITE, conftest=SLOW)


def sentence(ran: Ran, number: int) -> str:
    """The text of one test, which is one line."""
    assert ran.word(f"test_{number}") == "ERROR"
    (line,) = ran.text(f"test_{number}").splitlines()
    return line


@pytest.mark.parametrize(("number", "model"), list(enumerate(READ)), ids=list(READ))
def test_read_by_pytest(ran: Ran, number: int, model: str) -> None:
    line = sentence(ran, number)
    assert line.startswith("fits_vram: model=")
    assert READ[model] in line


@pytest.mark.parametrize(("number", "model"), list(enumerate(BUILT, len(READ))), ids=list(BUILT))
def test_told_by_transformers(ran: Ran, number: int, model: str) -> None:
    """A refusal, not a crash of the worker."""
    line = sentence(ran, number)
    assert BUILT[model] in line
    assert ran.cases[f"test_{number}"] == "refused"


def test_code_of_a_known_type_is_left_alone(ran: Ran) -> None:
    """transformers has the model itself, and builds that."""
    assert ran.cases["test_own_code_beside_a_known_type"] == "fits"


def test_nothing_takes_long(ran: Ran) -> None:
    assert "TOO SLOW" not in ran.output
    assert "INTERNALERROR" not in ran.output


def test_without_an_engine_as_far_as_pytest_reads_it(run_once: RunOnce) -> None:
    ran = run_once(test_wrong=SUITE)
    words = [ran.word(f"test_{i}") for i in range(len(READ) + len(BUILT))]
    assert words == ["ERROR"] * len(READ) + ["SKIPPED"] * len(BUILT)
