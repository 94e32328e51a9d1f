"""The memory of well-known GPUs, so that a test can name the card it is meant for.

The data lie in ``gpus.json`` beside this file and are read on the first look-up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

__all__ = ["Gpu", "ambiguous", "find", "memory_bytes_of", "names", "nearest"]

_BRANDS = {"nvidia", "geforce", "tesla"}
"""Words that a name may leave out. Not Quadro: an RTX 6000 is another card."""

_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One row of the catalogue.

    ``name`` is what NVML calls the card, without NVIDIA, and with the memory where NVML
    has one name for several. ``memory_bytes`` is the total that NVML reports, all of the
    card and more than CUDA offers. ``capability`` is CUDA's compute capability.
    ``also`` are further spellings of the name. ``sources`` are addresses: where NVML or
    nvidia-smi shows this total, and last the list with the capability.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    also: tuple[str, ...]
    sources: tuple[str, ...]
    note: str
    reserved_bytes: int | None = None
    """What the driver keeps for itself, where it was seen."""
    outside_bytes: int | None = None
    """What a training process has beside PyTorch's allocator, where it was measured."""


@cache
def _gpus() -> Mapping[str, Gpu]:
    text = files(__package__).joinpath("gpus.json").read_text(encoding="utf-8")
    return {
        name: Gpu(
            name=name,
            memory_bytes=row["memory_mib"] * 2**20,
            capability=(row["capability"][0], row["capability"][1]),
            also=tuple(row["also"]),
            sources=tuple(row["sources"]),
            note=row["note"],
            reserved_bytes=_mib(row.get("reserved_mib")),
            outside_bytes=_mib(row.get("outside_mib")),
        )
        for name, row in json.loads(text)["gpus"].items()
    }


def _mib(number: int | None) -> int | None:
    return None if number is None else number * 2**20


def _words(name: str) -> tuple[str, ...]:
    """The words and numbers of a name, which is all that tells one card from another."""
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    while words and words[0] in _BRANDS:
        del words[0]
    if words and words[-1] == "gpu":
        del words[-1]
    return tuple(words)


@cache
def _spellings() -> Mapping[tuple[str, ...], Gpu]:
    """Every accepted spelling, by its words."""
    return {_words(name): gpu for gpu in _gpus().values() for name in (gpu.name, *gpu.also)}


def find(name: str) -> Gpu | None:
    """Return the GPU called ``name``, or None where the catalogue has none or several.

    Upper and lower case are the same, and so are spaces, hyphens and nothing between the
    words. NVIDIA, GeForce and Tesla before the name and GPU behind it may be left out:
    "RTX 5070 Ti" and "nvidia-rtx-5070-ti" are found. "A100" is not: see ambiguous().
    """
    return _spellings().get(_words(name))


def names() -> tuple[str, ...]:
    """Return every catalogue name, in the order of the data file."""
    return tuple(_gpus())


def ambiguous(name: str) -> tuple[str, ...]:
    """Return the catalogue names that go on where ``name`` ends, in the order of the data file.

    They are what a name that is not found may have meant: "A100" is the 40 GB and the
    80 GB cards. A single name is no answer either: the catalogue need not have them all.
    """
    words = _words(name)
    if not words or words in _spellings():
        return ()
    known = {gpu.name for spelling, gpu in _spellings().items() if spelling[: len(words)] == words}
    return tuple(one for one in names() if one in known)


def nearest(name: str) -> str | None:
    """Return the catalogue name spelled most like ``name``, or None if none is close.

    For messages only: the card is a guess. It has every number of ``name``, as another
    number is another card, and is a laptop's where ``name`` says so.
    """
    words = _words(name)
    numbers = {word for word in words if word.isdigit()}
    alike = {
        " ".join(spelling): gpu.name
        for spelling, gpu in _spellings().items()
        if numbers <= set(spelling) and ("laptop" in spelling or "laptop" not in words)
    }
    close = get_close_matches(" ".join(words), alike, n=1) if numbers else []
    return alike[close[0]] if close else None


def memory_bytes_of(name: str) -> int:
    """Return the total memory in bytes of the GPU called ``name``, as find() reads names.

    Raises:
        ValueError: no GPU of the catalogue is called so, or several are; in words that
            follow "must be", which name a size as the other thing that a card may be.

    """
    gpu = find(name)
    if gpu is not None:
        return gpu.memory_bytes
    begun = ambiguous(name)
    near = begun[0] if len(begun) == 1 else nearest(name)
    if len(begun) > 1:
        known = f"one known GPU (is it {_listed(begun)}?)"
    elif near:
        known = f"a known GPU (did you mean {near!r}?)"
    else:
        known = "a known GPU such as 'RTX 5070 Ti'"
    raise ValueError(f"{known} or a size such as '16303MiB'")


def _listed(found: tuple[str, ...]) -> str:
    """``'a', 'b' or 'c'``; of many, the first few and how many more."""
    first = [repr(name) for name in found[:_MOST_NAMED]]
    more = f"{len(found) - len(first)} more" if len(found) > len(first) else first.pop()
    return f"{', '.join(first)} or {more}"
