"""The table of ``fits_vram``'s keywords: what each accepts, and what this version has built."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_vramfit.catalog import gpus
from pytest_vramfit.marker import values
from pytest_vramfit.marker.elsewhere import ELSEWHERE
from pytest_vramfit.marker.values import Read
from pytest_vramfit.quantity import Headroom, parse_duration, parse_size
from pytest_vramfit.spec import CHECKS, PHASES


class MarkerError(ValueError):
    """A wrong ``fits_vram`` marker: one sentence with the key, the value and what is accepted."""


class NotYetError(MarkerError):
    """A keyword or value of the interface whose part this version does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keyword:
    """One keyword of the marker."""

    read: Read
    built: Callable[[Any], bool] = lambda _: True
    """Whether this version has the part that the (canonical) value asks for."""
    part: str = ""
    """The missing part, for the "not yet" sentence."""


TARGET_PRESETS = ("all-linear", "attention", "qv")


def _targets(value: object) -> Any:
    words = f"{', '.join(map(repr, TARGET_PRESETS))} or a list of module names"
    if not isinstance(value, str):
        return values.names(words)(value)
    if value in TARGET_PRESETS:
        return value
    near = values.nearest(value, TARGET_PRESETS)
    as_list = value.replace(",", " ").split() or ["q_proj"]
    raise ValueError(
        f"{words} (did you mean {near!r}?)" if near else f"{words}, such as {values.shown(as_list)}"
    )


_OPTIMIZERS = {
    "adamw": ("adamw_torch", "adamw_hf"),
    "adamw_fused": ("adamw_torch_fused",),
    "adamw_8bit": ("adamw_bnb_8bit",),
    "paged_adamw": ("paged_adamw_32bit",),
    "paged_adamw_8bit": (),
    "sgd": (),
    "adafactor": (),
}
"""Our names, each with Trainer's other names for the same optimizer."""


def _optimizer(value: object) -> str:
    for name, others in _OPTIMIZERS.items():
        if isinstance(value, str) and value in {name, *others}:
            return name
    return str(values.choice(*_OPTIMIZERS)(value))


def _alloc_conf(value: object) -> str:
    """Allocator settings without blanks. Their form only: names are for PyTorch to know."""
    bare = "".join(value.split()) if isinstance(value, str) else ""
    if not re.fullmatch(rf"{_SETTING}(,{_SETTING})*", bare):
        raise ValueError("settings such as 'expandable_segments:True,max_split_size_mb:128'")
    if re.search(r"\bbackend:(?!native(,|$))", bare):
        raise ValueError("settings of PyTorch's own allocator: its statistics are what is measured")
    return bare


def _revision(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w./-]{1,100}", value, re.ASCII):
        raise ValueError("a branch, tag or commit, such as 'main'")
    return value


def _phases(value: object) -> tuple[str, ...]:
    """What follows the training steps, in the order it is measured; ``train`` is always there."""
    read = values.names(f"a list of {values.either(_PHASES)}", *_PHASES)(value)
    return tuple(phase for phase in PHASES if phase in read)


def _dtype_or(*more: object) -> Read:
    return values.choice("bf16", "fp16", "fp32", *more)


def _is(*built: object) -> Callable[[Any], bool]:
    return lambda value: any(values.same(value, one) for one in built)


def card(value: object) -> tuple[int, str | None]:
    """The bytes of a ``card``, and the catalogue's name of it where it was given by one."""
    found = gpus.find(value) if isinstance(value, str) else None
    return card_bytes(value), found.name if found else None


def card_bytes(value: object) -> int:
    """The bytes of a ``card``: a GPU of the catalogue by its name, or a size."""
    if isinstance(value, str) and value.strip()[:1].isalpha():
        return gpus.memory_bytes_of(value)
    try:
        size_bytes = parse_size(value)
    except ValueError:
        # of 4090 or "3080 Ti", as people call their cards
        near = gpus.nearest(str(value)) if isinstance(value, int | str) else None
        if near is None:
            raise
        raise ValueError(f"a size such as '16303MiB' or a GPU (did you mean {near!r}?)") from None
    if size_bytes > _LARGEST_CARD:
        raise ValueError(f"a size of at most {_LARGEST_CARD // 2**40}TiB")
    return size_bytes


_LARGEST_CARD = 16 * 2**40
"""NVIDIA's largest GPUs have less than 300 GiB, the memory of machines has some TiB."""
_WEEK = 7 * 24 * 3600
"""In seconds. Waiting for a thread takes no more than some centuries (threading.TIMEOUT_MAX)."""
_PHASES = ("train", *PHASES)
_SETTING = r"[a-z0-9_]+:(?:\[[!-Z^-~]*\]|[!-+\--Z^-~]+)"
"""Of the allocator: a name and a value, or a list of them, in printable ASCII."""
_FALSE_TRUE = values.choice(False, True)
_RATIO = values.number("a number above 0, or None", lambda x: x > 0, none=True)

KEYWORDS: dict[str, Keyword] = {
    "model": Keyword(read=lambda value: value),
    "revision": Keyword(read=values.optional(_revision)),
    "weights": Keyword(read=values.choice("random", "pretrained")),
    "method": Keyword(read=values.choice("full", "lora", "qlora")),
    "rank": Keyword(read=values.integer(1, 65_536)),
    "alpha": Keyword(read=values.number("a number above 0", lambda x: x > 0)),
    "dropout": Keyword(
        read=values.number("a number from 0 up to, not including, 1", lambda x: 0 <= x < 1)
    ),
    "targets": Keyword(read=_targets),
    "modules_to_save": Keyword(
        read=values.optional(values.names("None or a list of names")),
    ),
    "dora": Keyword(read=_FALSE_TRUE),
    "rslora": Keyword(read=_FALSE_TRUE),
    "adapter_dtype": Keyword(read=_dtype_or()),
    "quant": Keyword(read=values.choice("nf4", "fp4", "int8")),
    "double_quant": Keyword(read=_FALSE_TRUE),
    "kbit_upcast": Keyword(read=_FALSE_TRUE),
    "seq": Keyword(read=values.integer(2, 2**24)),
    "batch": Keyword(read=values.integer(1, 2**20)),
    "accumulation": Keyword(read=values.integer(1, 2**16)),
    "precision": Keyword(read=_dtype_or()),
    "autocast": Keyword(read=_FALSE_TRUE),
    "dtype": Keyword(read=_dtype_or("auto")),
    "optimizer": Keyword(read=_optimizer),
    "max_grad_norm": Keyword(
        read=values.number("a number above 0, or None", lambda x: x > 0, none=True)
    ),
    "checkpointing": Keyword(read=values.choice(False, True, "reentrant")),
    "attention": Keyword(read=values.choice("sdpa", "eager", "flash_attention_2")),
    "liger": Keyword(read=_FALSE_TRUE),
    "compile": Keyword(read=_FALSE_TRUE),
    "alloc_conf": Keyword(read=values.optional(_alloc_conf)),
    "lengths": Keyword(read=values.choice("full", "varied")),
    "config": Keyword(read=values.text("a path"), built=_is(None), part="training-config files"),
    "format": Keyword(read=values.text("a text"), built=_is(None), part="training-config files"),
    "step": Keyword(read=values.text("a text"), built=_is(None), part="own training steps"),
    "step_args": Keyword(read=lambda value: value, built=_is(None), part="own training steps"),
    "card": Keyword(read=values.optional(card)),
    "overflow": Keyword(read=values.choice("oom", "spill")),
    "headroom": Keyword(read=Headroom.parse),
    "step_ratio": Keyword(read=_RATIO),
    "gpu_ratio": Keyword(read=_RATIO),
    "peak_ratio": Keyword(read=_RATIO),
    "max_step": Keyword(read=values.optional(parse_duration)),
    "require": Keyword(
        read=values.optional(values.names(f"a list of {values.either(CHECKS)}", *CHECKS))
    ),
    "steps": Keyword(read=values.integer(1, 10_000)),
    "warmup": Keyword(read=values.integer(2, 10_000)),
    "phases": Keyword(read=_phases),
    "eval_batch": Keyword(read=values.integer(1, 2**20)),
    "timeout": Keyword(
        read=values.number(
            "a number of seconds above 0, at most 604,800 (a week)", lambda x: 0 < x <= _WEEK
        )
    ),
}


def read_keyword(key: str, value: object) -> Any:
    """The canonical value of one keyword. Raises MarkerError."""
    if key not in KEYWORDS:
        raise MarkerError(f"fits_vram has no keyword {values.shown(key)}; {_hint(key)}")
    keyword = KEYWORDS[key]
    try:
        read = keyword.read(value)
    except ValueError as error:
        raise MarkerError(f"fits_vram: {key}={values.shown(value)} must be {error}") from None
    if not keyword.built(read):
        raise NotYetError(
            f"fits_vram: {key}={values.shown(value)} asks for {keyword.part}: not built yet"
        )
    return read


def _hint(key: str) -> str:
    if key in ELSEWHERE:
        return f"here it is {ELSEWHERE[key]}"
    near = values.nearest(key, list(KEYWORDS), cutoff=0.6)
    return f"did you mean {near!r}?" if near else f"it takes {', '.join(KEYWORDS)}"
