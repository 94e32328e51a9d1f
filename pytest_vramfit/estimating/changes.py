"""Changes to a training step that may save memory, by how little they change what is trained.

A kind of change yields its degrees, the gentlest first, and nothing where it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_vramfit import catalog
from pytest_vramfit.spec import TrainSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Another spec, and what makes it of the one at hand: keywords of the marker."""

    keywords: Mapping[str, Any]
    spec: TrainSpec


Kind = Callable[[TrainSpec], Iterator[Change]]

_SMALLER_STATES = {
    "adamw": ("adamw_8bit", "paged_adamw_8bit"),
    "adamw_fused": ("adamw_8bit", "paged_adamw_8bit"),
    "adamw_8bit": ("paged_adamw_8bit",),
    "paged_adamw": ("paged_adamw_8bit",),
}
_LEAST_RANK = 4
_TARGETS = {"attention": {"q_proj", "k_proj", "v_proj", "o_proj"}, "qv": {"q_proj", "v_proj"}}
"""Presets of adapted modules, each fewer than the one before, by their usual names."""
_SHARES_OF_SEQ = ((3, 4), (1, 2), (3, 8), (1, 4))
_ADAPTERS: Mapping[str, Any] = {
    "rank": 16,
    "alpha": 32.0,
    "dropout": 0.05,
    "targets": "all-linear",
    "adapter_dtype": "fp32",
}
_QUANTISATION: Mapping[str, Any] = {"quant": "nf4", "double_quant": True, "kbit_upcast": True}
"""The marker's defaults, as those of adapters."""


def _changed(spec: TrainSpec, **keywords: Any) -> Change:
    return Change(keywords=keywords, spec=replace(spec, **keywords))


def _fused_attention(spec: TrainSpec) -> Iterator[Change]:
    if spec.attention == "eager":
        yield _changed(spec, attention="sdpa")


def _checkpointing(spec: TrainSpec) -> Iterator[Change]:
    if not spec.checkpointing:
        yield _changed(spec, checkpointing=True)


def _smaller_batch(spec: TrainSpec) -> Iterator[Change]:
    """With as many more micro-batches, so that a step has the same tokens."""
    batch = spec.batch
    while batch > 1:
        batch = 1 if batch % 2 else batch // 2
        accumulation = spec.accumulation * spec.batch // batch
        yield _changed(spec, batch=batch, accumulation=accumulation)


def _smaller_states(spec: TrainSpec) -> Iterator[Change]:
    for optimizer in _SMALLER_STATES.get(spec.optimizer, ()):
        yield _changed(spec, optimizer=optimizer)


def _double_quant(spec: TrainSpec) -> Iterator[Change]:
    if spec.double_quant is False:
        yield _changed(spec, double_quant=True)


def _no_upcast(spec: TrainSpec) -> Iterator[Change]:
    # the gradient scaler refuses fp16 weights, which saved modules would then have
    if spec.kbit_upcast and not (spec.modules_to_save and spec.scaler):
        yield _changed(spec, kbit_upcast=False)


def _no_dora(spec: TrainSpec) -> Iterator[Change]:
    if spec.dora:
        yield _changed(spec, dora=False)


def _lower_rank(spec: TrainSpec) -> Iterator[Change]:
    if spec.rank is None or spec.alpha is None:
        return
    scale, rank = spec.alpha / spec.rank, spec.rank // 2
    while rank >= _LEAST_RANK:
        # the marker's default follows the rank, another alpha stays
        alpha = 2.0 * rank if scale == 2 else spec.alpha  # noqa: PLR2004
        yield Change(keywords={"rank": rank}, spec=replace(spec, rank=rank, alpha=alpha))
        rank //= 2


def _fewer_targets(spec: TrainSpec) -> Iterator[Change]:
    if spec.targets is None:
        return
    fewer = list(_TARGETS)
    if spec.targets in _TARGETS:
        fewer = fewer[fewer.index(str(spec.targets)) + 1 :]
    elif spec.targets != "all-linear":
        fewer = [preset for preset in fewer if _TARGETS[preset] < set(spec.targets)]
    for preset in fewer:
        yield _changed(spec, targets=preset)


def _shorter(spec: TrainSpec) -> Iterator[Change]:
    for part, whole in _SHARES_OF_SEQ:
        if (seq := spec.seq * part // whole) > 1:
            yield _changed(spec, seq=seq)


def _method(spec: TrainSpec) -> Iterator[Change]:
    """To adapters, and to four bits."""
    if spec.quant == "int8":
        spec_of_4_bit = replace(spec, quant="nf4", double_quant=True)
        yield Change(keywords={"quant": "nf4"}, spec=spec_of_4_bit)
    adapted = spec
    if spec.method == "full":
        # weights that are not trained need no fp32
        dtype = spec.precision if spec.dtype == "fp32" else spec.dtype
        adapted = replace(spec, method="lora", dtype=dtype, **_ADAPTERS)
        yield Change(keywords={"method": "lora"}, spec=adapted)
    if adapted.method == "lora":
        quantised = replace(adapted, method="qlora", **_QUANTISATION)
        yield Change(keywords={"method": "qlora"}, spec=quantised)


def smaller_models(spec: TrainSpec) -> Iterator[Change]:
    """Of the catalogue's same family, the largest first."""
    known = catalog.find(spec.model)
    if known is None:
        return
    for model in reversed(catalog.family(known)):
        if model.parameters < known.parameters:
            # what the weights are does not matter to what they take
            yield Change(
                keywords={"model": model.name},
                spec=replace(
                    spec,
                    model=model.name,
                    config=dict(model.config),
                    weights="random",
                    checkpoint=None,
                    revision=None,
                ),
            )


CHANGES: tuple[Kind, ...] = (
    _fused_attention,
    _checkpointing,
    _smaller_batch,
    _smaller_states,
    _double_quant,
    _no_upcast,
    _no_dora,
    _lower_rank,
    _fewer_targets,
    _shorter,
    _method,
)
"""All but the smaller model, the gentlest kind first."""
