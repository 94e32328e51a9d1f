"""From what a user calls a model to its config values, and every way in which that fails."""

from __future__ import annotations

import json
import os
import time
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


def test_unknown_hub_id(tmp_path: Path) -> None:
    assert refusal("someone/Qwen2.5-7B", tmp_path) == (
        f"{NOWHERE}, and models from the hub are not built yet; the nearest is 'Qwen2.5-7B'"
    )


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
