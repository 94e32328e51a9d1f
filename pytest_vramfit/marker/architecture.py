"""From what a user calls a model to its config values."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_vramfit import catalog
from pytest_vramfit.marker.values import shown

_ABOUT_THE_FILE = frozenset(
    {"_name_or_path", "architectures", "transformers_version", "torch_dtype", "dtype", "use_cache"}
)
"""Keys of a config.json that say where it came from or how it is loaded, not what the model is."""


_DEEPEST = 16
_LARGEST = 2**63


def resolve(model: object, *, rootdir: Path) -> tuple[str, dict[str, Any]]:
    """The name to show and the config values of ``model``.

    A catalogue name or hub id, a folder with a ``config.json`` (a relative one is taken from
    ``rootdir``), or a mapping of config values. Raises ValueError in words that follow
    "model=... ".
    """
    if isinstance(model, Mapping):
        config = _config_values(model)
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
        return folder.name, _read_folder(folder)
    if isinstance(model, os.PathLike) or str(text)[0] in "./~":
        raise ValueError(f"is no folder with a config.json ({folder / 'config.json'})")
    near = catalog.nearest(str(text))
    hint = f"nearest is {near!r}" if near else f"catalogue has {', '.join(catalog.names())}"
    hub = ", and models from the hub are not built yet" if "/" in str(text) else ""
    raise ValueError(f"is not in the catalogue and no folder with a config.json{hub}; the {hint}")


def _is_folder(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except (OSError, ValueError):  # a name too long for a path, or with a NUL
        return False


def _read_folder(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"has a config.json that cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"has a config.json that is not an object but a {type(values).__name__}")
    return _config_values(values)


def _config_values(values: Mapping[Any, Any]) -> dict[str, Any]:
    config = {key: value for key, value in values.items() if key not in _ABOUT_THE_FILE}
    if config.get("quantization_config") is not None:
        raise ValueError(
            "has a 'quantization_config': checkpoints that are quantised already are not built yet"
        )
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise ValueError("has no 'model_type', such as 'llama'")
    for key in config:
        if not isinstance(key, str):
            raise ValueError(f"has a key that is no text: {shown(key)}")
    return {key: _json_value(key, value, depth=0) for key, value in config.items()}


def _json_value(key: str, value: object, *, depth: int) -> object:
    """``value`` as JSON reads it back; ``key`` is the config's own that it stands under."""
    if depth > _DEEPEST:
        raise ValueError(f"has values nested too deep under {shown(key)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"has {shown(key)} = {value}, which is no number")
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError(f"has {shown(key)} = {shown(value)}, which is more than 64 bits hold")
    if isinstance(value, list | tuple):
        return [_json_value(key, one, depth=depth + 1) for one in value]
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"has a key that is no text under {shown(key)}: {shown(name)}")
        return {name: _json_value(key, one, depth=depth + 1) for name, one in value.items()}
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(f"has {shown(key)} of type {type(value).__name__}, which is no JSON value")
    return value
