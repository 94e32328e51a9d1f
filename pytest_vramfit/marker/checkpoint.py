"""Where real weights, or a config that nothing here knows, are read from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from pytest_vramfit import catalog

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def is_hub_id(model: object) -> bool:
    """Whether the model could be a repository of the hub: ``organisation/name``."""
    return isinstance(model, str) and _HUB_ID.fullmatch(model) is not None and model[0] != "."


def resolve(model: object, *, rootdir: Path) -> str:
    """The folder or the hub id of ``model``'s checkpoint.

    Raises ValueError in words that follow "model=... ".
    """
    if isinstance(model, Mapping):
        raise ValueError("has no checkpoint; name a folder or a model of the hub")
    text = os.fspath(str(model) if not isinstance(model, os.PathLike) else model)
    known = catalog.find(text) if isinstance(model, str) else None
    if known is None:
        folder = rootdir / Path(text).expanduser()
        return str(folder.resolve()) if (folder / "config.json").is_file() else text
    if is_hub_id(text):
        # as the hub spells it: its cache does not know another case
        return next((one for one in known.hub_ids if one.lower() == text.lower()), text)
    if not known.hub_ids:
        raise ValueError("has no checkpoint that the catalogue knows; name a folder or a hub id")
    return known.hub_ids[0]
