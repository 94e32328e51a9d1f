"""The shapes of well-known models, so that a test can name one and needs no Hub.

The data lie in ``models.json`` beside this file and are read on the first look-up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

__all__ = ["Model", "family", "find", "longest_sequence", "names", "nearest"]

# Model types with a learned position table: the config key of its length, and the
# length that transformers takes where the config does not say.
_LEARNED_POSITIONS = {
    "biogpt": ("max_position_embeddings", 1024),
    "gpt2": ("n_positions", 1024),
    "gpt_bigcode": ("n_positions", 1024),
    "gpt_neo": ("max_position_embeddings", 2048),
    "openai-gpt": ("n_positions", 512),
    "opt": ("max_position_embeddings", 2048),
}

# The size in a name, and what follows it: "-7B-v0.3", "-8x7B", "-medium".
_SIZE = re.compile(r"-((\d+x)?[\d.]+[bm]|medium|large|xl)(-.*)?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """One row of the catalogue.

    ``config`` is read-only and holds Hugging Face config values:
    ``transformers.AutoConfig.for_model(**model.config)`` builds the config.
    ``parameters`` is a number of elements, a tied head counted once.
    ``hub_ids`` are the Hub repositories known to have exactly this shape.
    """

    name: str
    config: Mapping[str, object] = field(hash=False)
    parameters: int
    hub_ids: tuple[str, ...]
    sources: tuple[str, ...]
    note: str


@cache
def _models() -> Mapping[str, Model]:
    import json
    from importlib.resources import files

    text = files(__name__).joinpath("models.json").read_text(encoding="utf-8")
    return {
        name: Model(
            name=name,
            config=MappingProxyType(row["config"]),
            parameters=row["parameters"],
            hub_ids=tuple(row["hub_ids"]),
            sources=tuple(row["sources"]),
            note=row["note"],
        )
        for name, row in json.loads(text)["models"].items()
    }


@cache
def _spellings() -> Mapping[str, Model]:
    """Every accepted spelling in lower case."""
    spellings: dict[str, Model] = {}
    for model in _models().values():
        organisations = {hub_id.partition("/")[0] for hub_id in model.hub_ids}
        for name in (model.name, f"{model.name}-Instruct"):
            accepted = (name, *(f"{organisation}/{name}" for organisation in organisations))
            spellings.update((spelling.lower(), model) for spelling in accepted)
        spellings.update((hub_id.lower(), model) for hub_id in model.hub_ids)
    return spellings


def find(name: str) -> Model | None:
    """Return the model called ``name``, or None where the catalogue has none.

    Upper and lower case are the same. ``name`` is a catalogue name, with or without
    ``-Instruct``, alone or behind an organisation that publishes this shape, or one of
    the row's Hub ids. Another organisation's model is not found, whatever it is called:
    a fine-tune may have another vocabulary.
    """
    return _spellings().get(name.lower())


def family(model: Model) -> tuple[Model, ...]:
    """Return the models of the same name but for the size, and of the same type, smallest first."""
    key = _SIZE.sub("", model.name), model.config["model_type"]
    models = _models().values()
    alike = (one for one in models if (_SIZE.sub("", one.name), one.config["model_type"]) == key)
    return tuple(sorted(alike, key=lambda one: one.parameters))


def names() -> tuple[str, ...]:
    """Return every catalogue name, in the order of the data file."""
    return tuple(_models())


def nearest(name: str) -> str | None:
    """Return the catalogue name spelled most like ``name``, or None if none is close.

    For messages only: the model is a guess. Hub ids count as spellings, case and
    organisation do not. A spelling that begins with ``name``, or that ``name`` begins
    with, comes before any other: google/gemma-3-4b-it is nearer to Gemma-3-4B than to
    the known google/gemma-3-1b-it.
    """
    from difflib import get_close_matches

    bare = {spelling.rpartition("/")[2]: model.name for spelling, model in _spellings().items()}
    wanted = name.rpartition("/")[2].lower()
    begun = [known for known in bare if known.startswith(wanted) or wanted.startswith(known)]
    close = get_close_matches(wanted, begun, n=1) or get_close_matches(wanted, bare, n=1)
    return bare[close[0]] if close else None


def longest_sequence(config: Mapping[str, object]) -> int | None:
    """Return the longest sequence, in tokens, that the model's position table has room for.

    ``config`` holds Hugging Face config values. The answer is None for a model type
    without learned positions (rotary ones), which has no such limit.

    Raises:
        TypeError: the config's number of positions is not a positive integer.

    """
    learned = _LEARNED_POSITIONS.get(str(config.get("model_type")))
    if learned is None:
        return None
    key, default = learned
    # transformers takes max_position_embeddings as another name of n_positions.
    positions = config.get("max_position_embeddings", config.get(key, default))
    if not isinstance(positions, int) or isinstance(positions, bool) or positions < 1:
        raise TypeError(f"the number of positions must be a positive integer, got {positions!r}")
    return positions
