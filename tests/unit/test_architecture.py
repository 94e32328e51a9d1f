"""From what a user calls a model to its config values, and every way in which that fails."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_vramfit import catalog
from pytest_vramfit.marker.architecture import resolve
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.marker.keywords import MarkerError

LLAMA = {"model_type": "llama", "hidden_size": 64}
NO_MODEL = "must be a catalogue name, a folder with a config.json, or a dict of config values"
NOWHERE = "is not in the catalogue and no folder with a config.json"


def folder(parent: Path, text: str | None = None, name: str = "own") -> Path:
    """A folder with a config.json of this text."""
    made = parent / name
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(LLAMA) if text is None else text, encoding="utf-8")
    return made


def refusal(model: object, rootdir: Path) -> str:
    """What follows "model=... " in the error."""
    with pytest.raises(ValueError, match=r"^[a-z]") as refused:
        resolve(model, rootdir=rootdir)
    assert type(refused.value) is ValueError
    return str(refused.value)


def test_catalogue_name_in_any_spelling(tmp_path: Path) -> None:
    known = catalog.find("Qwen2.5-7B")
    assert known is not None
    expected = ("Qwen2.5-7B", dict(known.config))
    assert resolve("Qwen/Qwen2.5-7B-Instruct", rootdir=tmp_path) == expected
    assert resolve("qwen2.5-7b", rootdir=tmp_path) == expected


def test_catalogue_name_s_config_is_a_copy(tmp_path: Path) -> None:
    _, config = resolve("tiny", rootdir=tmp_path)
    config["hidden_size"] = 1
    assert resolve("tiny", rootdir=tmp_path)[1] != config


def test_folder_relative_to_the_rootdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not to where pytest was called."""
    folder(tmp_path / "root", name="models/own")
    monkeypatch.chdir(tmp_path)
    for written in ("models/own", "./models/own", "models/own/", Path("models/own")):
        assert resolve(written, rootdir=tmp_path / "root") == ("own", LLAMA)


def test_absolute_folder(tmp_path: Path) -> None:
    own = folder(tmp_path)
    assert resolve(str(own), rootdir=Path("/nowhere")) == ("own", LLAMA)
    assert resolve(own, rootdir=Path("/nowhere")) == ("own", LLAMA)


def test_folder_in_the_user_s_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    folder(tmp_path)
    assert resolve("~/own", rootdir=Path("/nowhere")) == ("own", LLAMA)


def test_catalogue_name_comes_before_a_folder_of_that_name(tmp_path: Path) -> None:
    folder(tmp_path, name="tiny")
    assert resolve("tiny", rootdir=tmp_path)[1] != LLAMA
    assert resolve("./tiny", rootdir=tmp_path)[1] == LLAMA


def test_dict_of_config_values(tmp_path: Path) -> None:
    assert resolve(LLAMA, rootdir=tmp_path) == ("custom llama", LLAMA)
    assert resolve(MappingProxyType(LLAMA), rootdir=tmp_path) == ("custom llama", LLAMA)


def test_dict_s_config_is_its_own_all_the_way_down(tmp_path: Path) -> None:
    """Whoever changes the dict later does not change a claim."""
    given = {**LLAMA, "rope": {"factors": [1, 2]}}
    _, config = resolve(given, rootdir=tmp_path)
    given["rope"]["factors"].append(3)  # type: ignore[index]
    assert config["rope"] == {"factors": [1, 2]}


def test_config_is_what_json_reads_back(tmp_path: Path) -> None:
    """A tuple and a list are one spelling, so one digest."""
    given = {**LLAMA, "sizes": (1, (2.5, None)), "deep": {"flags": (True, "x")}}
    _, config = resolve(given, rootdir=tmp_path)
    assert config == {**LLAMA, "sizes": [1, [2.5, None]], "deep": {"flags": [True, "x"]}}
    assert json.loads(json.dumps(config)) == config


@pytest.mark.parametrize(
    "noise",
    [
        {"_name_or_path": "/home/me/own"},
        {"architectures": ["LlamaForCausalLM"]},
        {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}},
        {"transformers_version": "4.40.0"},
        {"torch_dtype": "float16"},
        {"dtype": "bfloat16"},
        {"use_cache": False},
    ],
    ids=lambda noise: next(iter(noise)),
)
def test_keys_that_say_nothing_of_the_shape_are_dropped(
    noise: dict[str, object], tmp_path: Path
) -> None:
    """Also where they hold what no JSON can, such as a torch.dtype."""
    own = folder(tmp_path, json.dumps({**noise, **LLAMA}))
    assert resolve(own, rootdir=tmp_path)[1] == LLAMA
    assert resolve({**LLAMA, **dict.fromkeys(noise, object())}, rootdir=tmp_path)[1] == LLAMA


@pytest.mark.parametrize("model", [None, 7, True, b"tiny", ["tiny"], "", "  ", object()])
def test_what_is_no_model_at_all(model: object, tmp_path: Path) -> None:
    assert refusal(model, tmp_path) == NO_MODEL


def test_misspelled_name(tmp_path: Path) -> None:
    assert refusal("Qwen2.5-8B", tmp_path) == f"{NOWHERE}; the nearest is 'Qwen2.5-7B'"


def test_unknown_name_gets_the_whole_catalogue(tmp_path: Path) -> None:
    assert refusal("resnet50", tmp_path) == (
        f"{NOWHERE}; the catalogue has {', '.join(catalog.names())}"
    )


def test_config_of_an_unknown_hub_id_is_left_to_the_worker(tmp_path: Path) -> None:
    assert resolve("someone/Qwen2.5-7B", rootdir=tmp_path) == ("someone/Qwen2.5-7B", {})


@pytest.mark.parametrize("written", ["./nope", "../nope", "/nope", "~/nope"])
def test_path_without_a_folder_is_no_guess_at_a_name(written: str, tmp_path: Path) -> None:
    place = tmp_path / Path(written).expanduser() / "config.json"
    assert refusal(written, tmp_path) == f"is no folder with a config.json ({place})"


def test_path_object_is_never_a_catalogue_name(tmp_path: Path) -> None:
    place = tmp_path / "tiny" / "config.json"
    assert refusal(Path("tiny"), tmp_path) == f"is no folder with a config.json ({place})"


def test_home_of_nobody(tmp_path: Path) -> None:
    says = refusal("~nobody-of-this-name/model", tmp_path)
    assert says == "is in the home folder of a user that does not exist here"


def test_folder_without_a_config(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place = tmp_path / "empty" / "config.json"
    assert refusal("./empty", tmp_path) == f"is no folder with a config.json ({place})"


def test_folder_s_name_is_shown_on_one_line(tmp_path: Path) -> None:
    """Whatever it is called, and however it is written."""
    odd = folder(tmp_path, name="a\n\x1b[31mb")
    assert resolve(odd, rootdir=tmp_path)[0] == "a??[31mb"
    assert resolve("./a\n\x1b[31mb/../own", rootdir=folder(tmp_path).parent)[0] == "own"
    assert resolve(".", rootdir=tmp_path / "own")[0] == "own"
    assert "\n" not in refusal("./no\nwhere", tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "link to itself", "link to nothing", "device"])
def test_config_that_is_no_file(kind: str, tmp_path: Path) -> None:
    """Nobody writes into the pipe: to open it would wait for ever."""
    (tmp_path / "odd").mkdir()
    place = tmp_path / "odd" / "config.json"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        target = {"device": "/dev/zero", "link to itself": "config.json"}.get(kind, "nothing")
        place.symlink_to(target)
    assert refusal("./odd", tmp_path) == f"is no folder with a config.json ({place})"


def test_folder_that_is_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert refusal("./loop", tmp_path).startswith("is no folder with a config.json (")


def test_config_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "odd" / "config.json").mkdir(parents=True)
    place = tmp_path / "odd" / "config.json"
    assert refusal("./odd", tmp_path) == f"is no folder with a config.json ({place})"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("a\0b", id="NUL"),
        pytest.param("x" * 5_000, id="5000 characters"),
        pytest.param("x/" * 2_500, id="5000 characters of folders"),
        pytest.param("tiny\n", id="line break"),
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param("模型", id="other script"),
    ],
)
def test_strange_name(name: str, tmp_path: Path) -> None:
    begin = time.perf_counter()
    assert refusal(name, tmp_path).startswith(NOWHERE)
    assert time.perf_counter() - begin < 1


@pytest.mark.parametrize("name", ["./a\0b", "./" + "x" * 5_000], ids=["NUL", "long"])
def test_strange_path(name: str, tmp_path: Path) -> None:
    assert refusal(name, tmp_path).startswith("is no folder with a config.json (")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "{",
            (
                "has a config.json that cannot be read: Expecting property name enclosed in double "
                "quotes: line 1 column 2 (char 1)"
            ),
        ),
        ("", "has a config.json that cannot be read: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "has a config.json that is not an object but a list"),
        ("null", "has a config.json that is not an object but a NoneType"),
        ("{}", "has no 'model_type', such as 'llama'"),
        ('{"model_type": "llama", "a": NaN}', "has 'a' = nan, which is no number"),
        ('{"model_type": "llama", "a": {"b": [-Infinity]}}', "has 'a' = -inf, which is no number"),
        ('{"model_type": "llama", "a": 1e999}', "has 'a' = inf, which is no number"),
    ],
)
def test_bad_config_file(text: str, says: str, tmp_path: Path) -> None:
    assert refusal(folder(tmp_path, text), tmp_path) == says


def test_config_file_that_is_not_utf_8(tmp_path: Path) -> None:
    own = folder(tmp_path)
    (own / "config.json").write_bytes(b'{"model_type": "\xff"}')
    assert refusal(own, tmp_path) == (
        "has a config.json that cannot be read: 'utf-8' codec can't decode byte 0xff in position "
        "16: invalid start byte"
    )


def test_config_file_nested_too_deep_to_parse(tmp_path: Path) -> None:
    own = folder(tmp_path, '{"a": ' * 100_000)
    assert refusal(own, tmp_path).startswith("has a config.json that cannot be read: ")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{}".encode("utf-16"), "'utf-8' codec can't decode byte 0xff in position 0"),
        (b"\xef\xbb\xbf{}", "Unexpected UTF-8 BOM"),
        (b"\x7fELF\x02\x01\x01\0\0", "Expecting value: line 1 column 1"),
        (b"\0" * 100, "Expecting value: line 1 column 1"),
        (b"[" * 100_000, "maximum recursion depth exceeded"),
        (b'{"model_type": "llama", "a": ' + b"9" * 5_000 + b"}", "Exceeds the limit"),
    ],
    ids=["UTF-16", "byte-order mark", "binary", "zeros", "100,000 lists", "5,000 digits"],
)
def test_config_file_of_something_else(content: bytes, says: str, tmp_path: Path) -> None:
    own = folder(tmp_path)
    (own / "config.json").write_bytes(content)
    assert refusal(own, tmp_path).startswith(f"has a config.json that cannot be read: {says}")


def test_config_file_of_a_gigabyte(tmp_path: Path) -> None:
    """Refused without being read."""
    own = folder(tmp_path)
    with (own / "config.json").open("wb") as file:
        file.truncate(2**30)
    begin = time.perf_counter()
    assert refusal(own, tmp_path) == (
        "has a config.json that cannot be read: it has more than 16 MiB"
    )
    assert time.perf_counter() - begin < 1


def test_config_file_with_a_key_twice(tmp_path: Path) -> None:
    """The last one counts, as it does for transformers."""
    own = folder(tmp_path, '{"model_type": "llama", "hidden_size": 7, "hidden_size": 64}')
    assert resolve(own, rootdir=tmp_path)[1] == LLAMA


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads everything")
def test_config_file_without_the_right_to_read_it(tmp_path: Path) -> None:
    own = folder(tmp_path)
    (own / "config.json").chmod(0)
    assert "Permission denied" in refusal(own, tmp_path)


NAN = float("nan")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "has no 'model_type', such as 'llama'"),
        ({"model_type": ""}, "has no 'model_type', such as 'llama'"),
        ({"model_type": None}, "has no 'model_type', such as 'llama'"),
        ({"model_type": 3}, "has no 'model_type', such as 'llama'"),
        ({"model_type": "a\nb"}, "has 'model_type' = 'a\\nb', which is no name like 'llama'"),
        ({"model_type": "../x"}, "has 'model_type' = '../x', which is no name like 'llama'"),
        (
            {"model_type": "x" * 5_000},
            f"has 'model_type' = '{'x' * 76}..., which is no name like 'llama'",
        ),
        ({**LLAMA, "a": NAN}, "has 'a' = nan, which is no number"),
        ({**LLAMA, "a": {"b": [1, NAN]}}, "has 'a' = nan, which is no number"),
        ({**LLAMA, "a": 2**63}, "has 'a' = 9223372036854775808, which is more than 64 bits hold"),
        (
            {**LLAMA, "a": 10**5000},
            "has 'a' = <int, whose repr raises ValueError>, which is more than 64 bits hold",
        ),
        ({**LLAMA, "a": object}, "has 'a' of type type, which is no JSON value"),
        ({**LLAMA, "a": {1, 2}}, "has 'a' of type set, which is no JSON value"),
        ({**LLAMA, "a": [b"x"]}, "has 'a' of type bytes, which is no JSON value"),
        ({**LLAMA, 1: 2}, "has a key that is no text: 1"),
        ({**LLAMA, "a": {None: 2}}, "has a key that is no text under 'a': None"),
        ({**LLAMA, "x" * 5_000: NAN}, f"has '{'x' * 76}... = nan, which is no number"),
    ],
)
def test_bad_config_values(values: dict[object, object], says: str, tmp_path: Path) -> None:
    assert refusal(values, tmp_path) == says


def test_smallest_and_largest_integer(tmp_path: Path) -> None:
    given = {**LLAMA, "least": -(2**63), "most": 2**63 - 1}
    assert resolve(given, rootdir=tmp_path)[1] == given


def test_cyclic_dict_ends_in_a_sentence(tmp_path: Path) -> None:
    cyclic: dict[str, object] = {**LLAMA}
    cyclic["a"] = cyclic["b"] = [cyclic, cyclic]
    with pytest.raises(MarkerError) as refused:
        read_claim([{"model": cyclic}], rootdir=tmp_path)
    assert str(refused.value) == (
        "fits_vram: model={'model_type': 'llama', 'hidden_size': 64, 'a': [{...}, {...}], "
        "'b': [{...}, ... has values nested too deep under 'a'"
    )


def test_config_deeper_than_any_real_one(tmp_path: Path) -> None:
    """Sixteen levels are taken."""
    deep: object = 1
    for _ in range(16):
        deep = [deep]
    assert resolve({**LLAMA, "a": deep}, rootdir=tmp_path)[1] == {**LLAMA, "a": deep}
    assert refusal({**LLAMA, "a": [deep]}, tmp_path) == "has values nested too deep under 'a'"


def test_very_deep_dict_ends_in_a_sentence(tmp_path: Path) -> None:
    """One that Python itself cannot show."""
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(MarkerError) as refused:
        read_claim([{"model": {**LLAMA, "a": deep}}], rootdir=tmp_path)
    assert str(refused.value) == (
        "fits_vram: model=<dict, whose repr raises RecursionError> has values nested too deep "
        "under 'a'"
    )


def test_checkpoints_that_are_quantised_already_are_refused(tmp_path: Path) -> None:
    """Not silently trained as something else."""
    model = {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}
    assert refusal(model, tmp_path) == (
        "has a 'quantization_config': checkpoints that are quantised already are not built yet"
    )


class Index:
    """Another library's integer, as it looks from here."""

    def __index__(self) -> int:
        return 64

    def __repr__(self) -> str:
        return "Index(64)"


LAYERS = "an integer from 1 to 1,000"
HEADS = "an integer from 1 to 65,536"
WIDTH = "an integer from 1 to 1,048,576"
WORDS = "an integer from 1 to 268,435,456"


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("num_hidden_layers", 10**12, LAYERS),
        ("num_hidden_layers", 1_001, LAYERS),
        ("num_hidden_layers", 0, LAYERS),
        ("num_hidden_layers", -1, LAYERS),
        ("num_hidden_layers", 3.5, LAYERS),
        ("num_hidden_layers", 2.0, LAYERS),
        ("num_hidden_layers", "many", LAYERS),
        ("num_hidden_layers", "2", LAYERS),
        ("num_hidden_layers", "", LAYERS),
        ("num_hidden_layers", True, LAYERS),
        ("num_hidden_layers", False, LAYERS),
        ("n_layer", 10**12, LAYERS),
        ("n_layers", 10**12, LAYERS),
        ("num_layers", 10**12, LAYERS),
        ("encoder_layers", 10**12, LAYERS),
        ("decoder_layers", 0, LAYERS),
        ("hidden_size", 2**20 + 1, WIDTH),
        ("hidden_size", 10**18, WIDTH),
        ("hidden_size", 0, WIDTH),
        ("hidden_size", -64, WIDTH),
        ("hidden_size", 64.0, WIDTH),
        ("hidden_size", True, WIDTH),
        ("hidden_size", "wide", WIDTH),
        ("hidden_size", "64", WIDTH),
        ("n_embd", 0, WIDTH),
        ("d_model", -1, WIDTH),
        ("intermediate_size", 0, WIDTH),
        ("moe_intermediate_size", 10**9, WIDTH),
        ("ffn_dim", 1.5, WIDTH),
        ("n_inner", 10**10, WIDTH),
        ("head_dim", 0, WIDTH),
        ("num_attention_heads", 0, HEADS),
        ("num_attention_heads", -8, HEADS),
        ("num_attention_heads", 10**12, HEADS),
        ("num_attention_heads", "8", HEADS),
        ("num_key_value_heads", 0, HEADS),
        ("num_key_value_heads", 0.5, HEADS),
        ("n_head", 10**6, HEADS),
        ("decoder_attention_heads", 0, HEADS),
        ("vocab_size", 2**28 + 1, WORDS),
        ("vocab_size", 10**18, WORDS),
        ("vocab_size", 0, WORDS),
        ("vocab_size", -1, WORDS),
        ("vocab_size", "all", WORDS),
        ("num_labels", 10**12, "at most 1,048,576"),
        ("num_experts", 10**12, "at most 1,048,576"),
        ("num_local_experts", 10**9, "at most 1,048,576"),
        ("max_window_layers", 10**9, "at most 1,048,576"),
        ("num_nextn_predict_layers", 10**9, "at most 1,000"),
        ("depth", 10**9, "at most 1,000"),
        ("num_blocks", 1_001, "at most 1,000"),
        ("max_position_embeddings", 2**31, "at most 2,147,483,647"),
        ("n_positions", 10**12, "at most 2,147,483,647"),
        ("q_lora_rank", 10**12, "at most 2,147,483,647"),
        ("image_size", 10**12, "at most 2,147,483,647"),
    ],
    ids=str,
)
def test_absurd_shape(key: str, value: object, accepted: str, tmp_path: Path) -> None:
    """Also of a part of the model, and of one layer of many."""
    says = f"has '{key}' = {value!r}, which must be {accepted}"
    assert refusal({"model_type": "llama", key: value}, tmp_path) == says
    assert refusal({**LLAMA, "text_config": {key: value}}, tmp_path) == says
    assert refusal({**LLAMA, "deep": [{key: [[value]]}]}, tmp_path) == says
    written = json.dumps({"model_type": "llama", key: value})
    assert refusal(folder(tmp_path, written), tmp_path) == says


SHARE = "a number from 0 up to, not including, 1"


@pytest.mark.parametrize(
    ("key", "value", "accepted"),
    [
        ("attention_dropout", 5, SHARE),
        ("attention_dropout", -0.1, SHARE),
        ("attention_dropout", 1.0, SHARE),
        ("attention_dropout", None, SHARE),
        ("attention_probs_dropout_prob", 2, SHARE),
        ("hidden_dropout_prob", 1.5, SHARE),
        ("resid_pdrop", 5, SHARE),
        ("dropout", 100, SHARE),
        ("dropout_rate", -1, SHARE),
        ("decoder_layerdrop", 1, SHARE),
        ("drop_path_rate", 1.5, SHARE),
        ("initializer_range", -0.5, "a number of at least 0"),
        ("init_std", -1, "a number of at least 0"),
        ("return_dict", False, "True, as the loss is read by its name"),
        ("return_dict", None, "True, as the loss is read by its name"),
        ("return_dict", 1, "True, as the loss is read by its name"),
        ("chunk_size_feed_forward", -1, "an integer from 0 to 1,048,576"),
        ("word_embed_proj_dim", 0, WIDTH),
    ],
)
def test_value_that_breaks_the_first_step(
    key: str, value: object, accepted: str, tmp_path: Path
) -> None:
    """Also of a part of the model, and of one layer of many."""
    says = f"has '{key}' = {value!r}, which must be {accepted}"
    assert refusal({**LLAMA, key: value}, tmp_path) == says
    assert refusal({**LLAMA, "text_config": {key: value}}, tmp_path) == says
    assert refusal({**LLAMA, "deep": [{key: value}]}, tmp_path) == says


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 1_000, "hidden_size": 2**20, "vocab_size": 2**28},
        {"num_attention_heads": 65_536, "num_key_value_heads": None, "head_dim": None},
        {"intermediate_size": [64, 128], "n_inner": None},
        {"num_kv_shared_layers": 0, "num_nextn_predict_layers": -1, "shared_expert_size": 0},
        {"num_experts": 0, "num_labels": 2**20, "chunk_size": -1, "kernel_size": [3, 3]},
        {"max_position_embeddings": 2**31 - 1, "sliding_window": 2**40, "rope_theta": 10**11},
        {"pad_token_id": -1, "num_hidden_layers_note": "24", "use_num_heads": True},
        {"attention_dropout": 0, "layerdrop": 0.999, "drop_path_rate": [0.0, 0.1]},
        {"token_dropout": True, "classifier_dropout": None, "dropout": "told by transformers"},
        {"initializer_range": 0.0, "return_dict": True, "chunk_size_feed_forward": 0},
    ],
    ids=lambda values: next(iter(values)),
)
def test_value_at_its_bound_and_flags_beside_values(
    values: dict[str, object], tmp_path: Path
) -> None:
    assert resolve({**LLAMA, **values}, rootdir=tmp_path)[1] == {**LLAMA, **values}


def test_catalogue_is_within_the_bounds(tmp_path: Path) -> None:
    for name in catalog.names():
        _, config = resolve(name, rootdir=tmp_path)
        assert resolve(config, rootdir=tmp_path)[1] == config


@pytest.mark.parametrize("value", [Index(), b"64", {64}, range(64), 64j, Path("64"), iter([64])])
def test_shape_of_another_type_is_named(value: object, tmp_path: Path) -> None:
    assert refusal({**LLAMA, "hidden_size": value}, tmp_path) == (
        f"has 'hidden_size' of type {type(value).__name__}, which is no JSON value"
    )


def test_scalar_of_numpy(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    assert refusal({**LLAMA, "hidden_size": numpy.int64(64)}, tmp_path) == (
        "has 'hidden_size' of type int64, which is no JSON value"
    )


def bombs() -> Iterator[object]:
    """Few containers with more values than there are atoms, and as many without end."""
    wide: object = 1
    for _ in range(15):
        wide = [wide] * 1_000
    yield wide
    keyed: object = 1
    for _ in range(15):
        keyed = dict.fromkeys("abcdefgh", keyed)
    yield keyed
    yield [0] * 200_000
    yield {str(i): i for i in range(200_000)}
    nodes: list[list[object]] = [[] for _ in range(30)]
    for node in nodes:
        node.extend(nodes)
    yield nodes[0]


@pytest.mark.parametrize("bomb", list(bombs()), ids=["lists", "dicts", "list", "dict", "graph"])
def test_more_values_than_can_be_looked_at(bomb: object, tmp_path: Path) -> None:
    """In little time, the value's showing included."""
    begin = time.perf_counter()
    with pytest.raises(MarkerError) as refused:
        read_claim([{"model": {**LLAMA, "a": bomb}}], rootdir=tmp_path)
    assert str(refused.value) in {
        f"fits_vram: model=<dict of more than 10,000 values> has {why}"
        for why in ("more than 100,000 values", "values nested too deep under 'a'")
    }
    with pytest.raises(MarkerError) as refused:
        read_claim([{"model": "tiny", "rank": bomb}], rootdir=tmp_path)
    assert "rank=<" in str(refused.value)
    assert time.perf_counter() - begin < 2


def test_config_may_have_very_many_values(tmp_path: Path) -> None:
    """Such as the labels of a classifier that it was once."""
    labels = {**LLAMA, "id2label": {str(i): f"label {i}" for i in range(21_843)}}
    assert resolve(labels, rootdir=tmp_path)[1] == labels
