"""From what a user calls a model to its config values."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_vramfit import catalog
from pytest_vramfit.marker.checkpoint import is_hub_id
from pytest_vramfit.marker.values import shown

_ABOUT_THE_FILE = frozenset(
    {
        "_commit_hash",
        "_name_or_path",
        "architectures",
        "auto_map",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Keys of a config.json that say where it came from or how it is loaded, not what the model is.

``auto_map`` names code that a model brings along, which is never run.
"""

_LARGEST_FILE = 16 * 2**20
"""Bytes of a config.json: one with 21,000 labels has 2 MB."""
_DEEPEST = 16
_MOST_VALUES = 100_000
_LARGEST = 2**63
_MODEL_TYPE = re.compile(r"[\w.-]{1,80}")

_SHAPES = [
    (re.compile(keys), least, most)
    for keys, least, most in (
        (r"num_hidden_layers|num_layers|n_layers?|(en|de)coder_layers", 1, 1_000),
        (r"(num|n)_\w*(layers?|blocks)|depth", None, 1_000),
        (r"hidden_size|d_model|n_embd|embedding_size|(moe_)?intermediate_size", 1, 2**20),
        (r"d_ff|n_inner|((en|de)coder_)?ffn_dim|ffn_hidden_size|head_dim|d_kv", 1, 2**20),
        (r"word_embed_proj_dim", 1, 2**20),
        (r"(num|n)_(attention_|key_value_|kv_)?heads?|\w+_attention_heads", 1, 2**16),
        (r"vocab_size", 1, 2**28),
        (r"chunk_size_feed_forward", 0, 2**20),
        (r"n_positions|max_position_embeddings", None, 2**31 - 1),
        (r"(num|n)_\w+|\w+_(layers|heads|experts)", None, 2**20),
        (r"\w+_(size|dim|rank)", None, 2**31 - 1),
    )
]
"""Names of shapes, with the least and the most that a model could have; the first that fits counts.

transformers goes through layers, experts and labels one by one, before anybody could stop it. Where
there is a least, the value must be an integer; elsewhere there may be flags of all kinds. None
leaves a shape to transformers.
"""

_NUMBERS: list[tuple[re.Pattern[str], Callable[[float], bool], str]] = [
    (
        re.compile(r"\w*(dropout|pdrop|layerdrop)(_(prob|rate|p))?|\w*drop_(path_)?rate"),
        lambda x: 0 <= x < 1,
        "a number from 0 up to, not including, 1",
    ),
    (re.compile(r"initializer_range|init_std"), lambda x: x >= 0, "a number of at least 0"),
]
"""Names of other numbers, and which of them let a model be initialised and trained.

Some are flags, or None where the model has no such part; only ``attention_dropout`` is always used.
"""


def resolve(model: object, *, rootdir: Path) -> tuple[str, dict[str, Any]]:
    """The name to show and the config values of ``model``.

    A catalogue name or hub id, a folder with a ``config.json`` (a relative one is taken from
    ``rootdir``), or a mapping of config values. A hub id that the catalogue does not know has no
    config values here: the worker reads them. Raises ValueError in words that follow "model=... ".
    """
    if isinstance(model, Mapping):
        config = config_values(model)
        return f"custom {config['model_type']}", config
    if not isinstance(model, str | os.PathLike) or not str(model).strip():
        raise ValueError(
            "must be a catalogue name, a folder with a config.json, or a dict of config values"
        )
    text = os.fspath(model)
    if isinstance(model, str) and (known := catalog.find(model)) is not None:
        return known.name, dict(known.config)
    try:
        folder = rootdir / Path(str(text)).expanduser()
    except RuntimeError:  # pathlib's answer to the home folder of nobody it knows
        raise ValueError("is in the home folder of a user that does not exist here") from None
    if _is_folder(folder):
        name = Path(os.path.normpath(folder)).name  # also of "." and ".."
        return _printable(name or str(folder)), _read_folder(folder)
    if isinstance(model, os.PathLike) or str(text)[0] in "./~":
        place = _printable(str(folder / "config.json"))
        raise ValueError(f"is no folder with a config.json ({place})")
    if is_hub_id(text):
        return str(text), {}
    near = catalog.nearest(str(text))
    hint = f"nearest is {near!r}" if near else f"catalogue has {', '.join(catalog.names())}"
    raise ValueError(f"is not in the catalogue and no folder with a config.json; the {hint}")


def _printable(path: str) -> str:
    """A path on one line, whatever characters it has: a name may even begin a new one."""
    return "".join(one if one.isprintable() else "?" for one in path)


def _is_folder(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except (OSError, ValueError):  # a name too long for a path, or with a NUL
        return False


def _read_folder(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads(_text(folder / "config.json"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"has a config.json that cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"has a config.json that is not an object but a {type(values).__name__}")
    return config_values(values)


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        read = opened.read(_LARGEST_FILE + 1)
    if len(read) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE // 2**20} MiB")
    return read.decode()


def config_values(values: Mapping[Any, Any]) -> dict[str, Any]:
    """What a config.json says about the model itself, checked for shapes that no model has.

    Raises ValueError in words that follow "model=... ".
    """
    config = {key: value for key, value in values.items() if key not in _ABOUT_THE_FILE}
    if config.get("quantization_config") is not None:
        raise ValueError(
            "has a 'quantization_config': checkpoints that are quantised already are not built yet"
        )
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ValueError("has no 'model_type', such as 'llama'")
    if not _MODEL_TYPE.fullmatch(model_type):
        raise ValueError(f"has 'model_type' = {shown(model_type)}, which is no name like 'llama'")
    for key in config:
        if not isinstance(key, str):
            raise ValueError(f"has a key that is no text: {shown(key)}")
    reader = _Reader()
    return {key: reader.value(key, value, name=key) for key, value in config.items()}


class _Reader:
    """Reads the values of one config as JSON would read them back."""

    def __init__(self) -> None:
        self._values = 0
        """How many were read: containers may stand in each other many times over."""

    def value(self, key: str, value: object, *, name: str, depth: int = 0) -> object:
        """One value. ``key`` is the config's own that it stands under, ``name`` its very own."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise ValueError(f"has more than {_MOST_VALUES:,} values")
        if depth > _DEEPEST:
            raise ValueError(f"has values nested too deep under {shown(key)}")
        if isinstance(value, list | tuple):
            return [self.value(key, one, name=name, depth=depth + 1) for one in value]
        if isinstance(value, dict):
            for inner in value:
                if not isinstance(inner, str):
                    raise ValueError(
                        f"has a key that is no text under {shown(key)}: {shown(inner)}"
                    )
            return {
                inner: self.value(key, one, name=inner, depth=depth + 1)
                for inner, one in value.items()
            }
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ValueError(
                f"has {shown(key)} of type {type(value).__name__}, which is no JSON value"
            )
        _check_number(key, value)
        _check_shape(name, value)
        _check_use(name, value)
        return value


def _check_number(key: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"has {shown(key)} = {value}, which is no number")
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"has {shown(key)} = {shown(value)}, which is more than 64 bits hold")


def _check_shape(name: str, value: object) -> None:
    """Refuse a shape that no model has, before anybody tries to build it."""
    for names, least, most in _SHAPES if value is not None else ():
        if not names.fullmatch(name):
            continue
        number = value if isinstance(value, int) and not isinstance(value, bool) else None
        if least is not None and (number is None or not least <= number <= most):
            words = f"an integer from {least} to {most:,}"
        elif number is not None and number > most:
            words = f"at most {most:,}"
        else:
            return
        raise ValueError(f"has {shown(name)} = {shown(value)}, which must be {words}")


def _check_use(name: str, value: object) -> None:
    """Refuse what transformers builds a model with, whose first step then breaks."""
    if name == "return_dict" and value is not True:
        says = "must be True, as the loss is read by its name"
        raise ValueError(f"has {shown(name)} = {shown(value)}, which {says}")
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    missing = value is None and name == "attention_dropout"
    for names, holds, words in _NUMBERS:
        if names.fullmatch(name) and (missing or (number is not None and not holds(number))):
            raise ValueError(f"has {shown(name)} = {shown(value)}, which must be {words}")
