"""The config of a model, and what a spec asks for that the model or its libraries do not have."""

from __future__ import annotations

import difflib
from typing import Any

from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    PreTrainedConfig,
)

from pytest_vramfit import catalog
from pytest_vramfit.marker.architecture import config_values
from pytest_vramfit.spec import TrainSpec

_READ_THEIR_WEIGHTS = {"falcon_mamba", "mamba"}
"""Models that multiply by weights of linear modules themselves, without calling the modules."""
_LONGEST_ERROR = 300


class UnbuildableError(ValueError):
    """The spec names something that the model or its libraries do not have: one sentence."""


def config_of(spec: TrainSpec) -> PreTrainedConfig:
    """The config of a causal language model, as far as it can be told without building it."""
    values = dict(spec.config) or _config_of_checkpoint(spec)
    model_type = values.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING), n=1)
        own_code = ", and code that a model brings along is never run"
        hint = f"; the nearest is {near[0]!r}" if near else own_code
        raise UnbuildableError(f"model_type {model_type!r} is unknown to transformers{hint}")
    config: PreTrainedConfig = AutoConfig.for_model(model_type, **values)
    config.use_cache = False
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is None:
        raise UnbuildableError(
            f"model_type {model_type!r} is no causal language model to transformers"
        )
    if spec.attention == "sdpa" and not kind._supports_sdpa:
        raise UnbuildableError(
            f"{kind.__name__} does not have attention='sdpa'; write attention='eager'"
        )
    if spec.method == "qlora" and model_type in _READ_THEIR_WEIGHTS:
        raise UnbuildableError(
            f"model_type {model_type!r} reads the weights of its linear modules itself, so they "
            "cannot be quantised; write method='lora' or 'full'"
        )
    _check_counts(config, spec.seq)
    return config


def _check_counts(config: PreTrainedConfig, seq: int) -> None:
    """Raise UnbuildableError where counts do not go together; with many models transformers finds
    that in the first step only.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None)
    groups = getattr(text, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise UnbuildableError(
            f"model: num_attention_heads = {heads} must be a multiple of "
            f"num_key_value_heads = {groups}"
        )
    chosen = getattr(text, "num_experts_per_tok", None)
    for name in ("num_local_experts", "num_experts", "n_routed_experts"):
        experts = getattr(text, name, None)
        if isinstance(chosen, int) and experts and not 1 <= chosen <= experts:
            raise UnbuildableError(
                f"model: num_experts_per_tok = {chosen} must be from 1 to {name} = {experts}"
            )
    chunk = config.chunk_size_feed_forward
    if chunk and seq % chunk:
        raise UnbuildableError(
            f"model: seq = {seq} must be a multiple of chunk_size_feed_forward = {chunk}"
        )


def _config_of_checkpoint(spec: TrainSpec) -> dict[str, Any]:
    """The config values of a hub id, from the cache or the hub."""
    assert spec.checkpoint is not None
    try:
        values, _ = PreTrainedConfig.get_config_dict(
            spec.checkpoint, revision=spec.revision or "main"
        )
    except OSError as error:
        near = catalog.nearest(spec.checkpoint)
        raise UnbuildableError(
            f"model={spec.checkpoint!r} is not in the catalogue"
            + (f", whose nearest is {near!r}," if near else "")
            + f" and its config could not be read from the hub or its cache: {one_line(error)}"
        ) from error
    try:
        return config_values(values)
    except ValueError as error:
        raise UnbuildableError(f"model={spec.checkpoint!r} {error}") from None


def one_line(error: BaseException) -> str:
    """The error in one line: of several lines the first two, which name the field and its fault."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = " ".join(lines[:2])[:_LONGEST_ERROR]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
