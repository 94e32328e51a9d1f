"""From the markers of one test to its :class:`~pytest_vramfit.spec.Claim`.

Every way in which a marker can be wrong ends in one MarkerError of one sentence, raised here or
in :mod:`pytest_vramfit.marker.keywords`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pytest_vramfit import catalog
from pytest_vramfit.marker import architecture, checkpoint
from pytest_vramfit.marker.keywords import MarkerError, read_keyword
from pytest_vramfit.marker.values import either, shown
from pytest_vramfit.quantity import NO_HEADROOM
from pytest_vramfit.spec import Claim, Dtype, Limits, Schedule, TrainSpec

_ADAPTER = (
    "rank",
    "alpha",
    "dropout",
    "targets",
    "adapter_dtype",
    "modules_to_save",
    "dora",
    "rslora",
)
_QUANTISATION = ("quant", "double_quant", "kbit_upcast")
_RATIOS = ("step_ratio", "gpu_ratio", "peak_ratio")
_SOURCES = ("model", "config", "step")


def read_claim(layers: Sequence[Mapping[str, object]], *, rootdir: Path) -> Claim:
    """The claim of one test, from its markers' keywords.

    ``layers`` go from the outermost (module) to the innermost (parameters); later ones win key by
    key, and ``model``, ``config`` and ``step`` displace each other, with a ``revision``, which
    ``weights="random"`` displaces where it was that of the weights only. A folder given as
    ``model`` is taken from ``rootdir``. Raises MarkerError.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        values = {key: read_keyword(key, value) for key, value in layer.items()}
        if any(values.get(source) is not None for source in _SOURCES):
            gone = (*_SOURCES, "revision")  # it is of the model that was displaced
            merged = {key: value for key, value in merged.items() if key not in gone}
        merged.update(values)
    _drop_displaced(merged, layers)
    if "model" not in merged:
        raise MarkerError("fits_vram needs a model, such as fits_vram(model='Qwen2.5-7B')")
    card_bytes, card = merged.get("card") or (None, None)
    overflow = merged.get("overflow", "oom")
    if overflow == "spill":
        _check_spill(merged)
    return Claim(
        spec=_spec(merged, _last(layers), rootdir),
        limits=Limits(
            card_bytes=card_bytes,
            card=card,
            overflow=overflow,
            headroom=merged.get("headroom", NO_HEADROOM),
            max_step_ns=merged.get("max_step"),
            require=frozenset(merged.get("require") or ()),
            **{name: merged[name] for name in _RATIOS if name in merged},
        ),
        schedule=Schedule(
            warmup=merged.get("warmup", 3),
            steps=merged.get("steps", 5),
            timeout_s=merged.get("timeout", 600.0),
            phases=merged.get("phases", ()),
            eval_batch=merged.get("eval_batch", 8),
        ),
    )


def _check_spill(merged: Mapping[str, Any]) -> None:
    """Raise MarkerError where no card is to be emulated that could overflow, or it could not."""
    if merged.get("card") is None:
        raise MarkerError(
            "fits_vram: overflow='spill' needs the card that is to overflow: "
            "card='RTX 5070 Ti' in the marker, or --vramfit-card"
        )
    settings = merged.get("alloc_conf") or ""
    if "expandable_segments:true" in settings.lower():
        raise MarkerError(
            f"fits_vram: overflow='spill' does not go with alloc_conf={settings!r}: such segments "
            "cannot be served from host memory"
        )


def _drop_displaced(merged: dict[str, Any], layers: Sequence[Mapping[str, object]]) -> None:
    """Take away what has no meaning beside what an inner layer says. On one layer, or where the
    inner one wrote it, it is a mistake: MarkerError.
    """
    last = _last(layers)

    def drop(key: str, beside: tuple[str, ...], says: str) -> None:
        if last[key] >= max(last.get(one, -1) for one in beside):
            raise MarkerError(f"fits_vram: {key}={shown(layers[last[key]][key])} {says}")
        del merged[key]

    method = merged.get("method", "qlora")
    for keys, methods in ((_ADAPTER, ("lora", "qlora")), (_QUANTISATION, ("qlora",))):
        for key in keys if method not in methods else ():
            if key in merged:
                only = f"only with {either(methods)}"
                drop(key, ("method",), f"has no meaning with method={method!r}, {only}")
    if merged.get("quant") == "int8" and "double_quant" in merged:
        says = "has no meaning with quant='int8', only with 'nf4' or 'fp4'"
        drop("double_quant", ("quant",), says)
    phases = merged.get("phases", ())
    if "merge" in phases and method == "full":
        says = "has no meaning with method='full': there are no adapters to merge"
        drop("phases", ("method",), says)
        merged["phases"] = tuple(one for one in phases if one != "merge")
    if "eval_batch" in merged and "eval" not in phases:
        drop("eval_batch", ("phases",), "has no meaning without phases=['eval']")


def _last(layers: Sequence[Mapping[str, object]]) -> dict[str, int]:
    """The number of the innermost layer that has each keyword."""
    return {key: number for number, layer in enumerate(layers) for key in layer}


def _spec(merged: Mapping[str, Any], last: Mapping[str, int], rootdir: Path) -> TrainSpec:
    method = merged.get("method", "qlora")
    precision = merged.get("precision", "bf16")
    autocast = merged.get("autocast", True) and precision != "fp32"
    seq = merged.get("seq", 512)
    try:
        name, config = architecture.resolve(merged["model"], rootdir=rootdir)
    except ValueError as error:
        raise MarkerError(f"fits_vram: model={shown(merged['model'])} {error}") from None
    source, revision = _checkpoint(merged, last, name, config, rootdir)
    try:
        longest = catalog.longest_sequence(config)
    except TypeError as error:
        raise MarkerError(f"fits_vram: model={shown(merged['model'])}: {error}") from None
    if longest is not None and seq > longest:
        raise MarkerError(
            f"fits_vram: seq={seq} must be at most {longest:,}, the learned positions of {name}"
        )
    fields: dict[str, Any] = {}
    if method != "full":
        rank = merged.get("rank", 16)
        fields |= {
            "rank": rank,
            "alpha": merged.get("alpha", 2.0 * rank),
            "dropout": merged.get("dropout", 0.05),
            "targets": merged.get("targets", "all-linear"),
            "adapter_dtype": merged.get("adapter_dtype", "fp32"),
        }
        if fields["adapter_dtype"] == precision == "fp16" and autocast:
            raise MarkerError(
                "fits_vram: adapter_dtype='fp16' cannot be trained with precision='fp16' and "
                "autocast, because the gradient scaler refuses fp16 weights; use "
                "adapter_dtype='fp32'"
            )
        fields |= {
            "modules_to_save": merged.get("modules_to_save"),
            "dora": merged.get("dora", False),
            "rslora": merged.get("rslora", False),
        }
    if method == "qlora":
        quant = merged.get("quant", "nf4")
        fields |= {
            "quant": quant,
            "double_quant": None if quant == "int8" else merged.get("double_quant", True),
            "kbit_upcast": merged.get("kbit_upcast", True),
        }
    dtype = _base_dtype(method, precision, autocast, merged.get("dtype", "auto"))
    if fields.get("modules_to_save") and not fields.get("kbit_upcast"):
        _check_saved_dtype(dtype, precision, autocast=autocast)
    return TrainSpec(
        model=name,
        config=config,
        method=method,
        seq=seq,
        batch=merged.get("batch", 1),
        accumulation=merged.get("accumulation", 1),
        precision=precision,
        dtype=dtype,
        optimizer=merged.get("optimizer", "adamw"),
        autocast=autocast,
        max_grad_norm=merged.get("max_grad_norm", 1.0),
        checkpointing=merged.get("checkpointing", False),
        attention=merged.get("attention", "sdpa"),
        weights=merged.get("weights", "random"),
        checkpoint=source,
        revision=revision,
        liger=merged.get("liger", False),
        compile=merged.get("compile", False),
        alloc_conf=merged.get("alloc_conf"),
        lengths=merged.get("lengths", "full"),
        **fields,
    )


def _checkpoint(
    merged: Mapping[str, Any],
    last: Mapping[str, int],
    name: str,
    config: Mapping[str, Any],
    rootdir: Path,
) -> tuple[str | None, str | None]:
    """The checkpoint that the worker reads, if any, and its revision."""
    revision = merged.get("revision")
    weights = merged.get("weights", "random")
    found = None
    if not config or weights == "pretrained":
        try:
            found = checkpoint.resolve(merged["model"], rootdir=rootdir)
        except ValueError as error:
            raise MarkerError(f"fits_vram: model={shown(merged['model'])} {error}") from None
    if revision is None or checkpoint.is_hub_id(found):
        return found, revision
    if weights == "random" and last.get("weights", -1) > last["revision"]:
        return found, None  # an inner layer does without the weights that it was the revision of
    raise MarkerError(
        f"fits_vram: revision={revision!r} has no meaning here: nothing of {name} is read from "
        "the hub"
    )


def _check_saved_dtype(dtype: Dtype, precision: Dtype, *, autocast: bool) -> None:
    if dtype == precision == "fp16" and autocast:
        raise MarkerError(
            "fits_vram: modules_to_save cannot be trained in dtype='fp16' with precision='fp16' "
            "and autocast, because the gradient scaler refuses fp16 weights; use dtype='fp32'"
        )


def _base_dtype(method: str, precision: Dtype, autocast: bool, asked: str) -> Dtype:  # noqa: FBT001
    """The dtype that ``dtype`` asks for, where the arithmetic can then be in ``precision``."""
    if asked == "auto":
        return "fp32" if method == "full" and autocast else precision
    if method == "full" and asked == precision == "fp16" and autocast:
        raise MarkerError(
            "fits_vram: dtype='fp16' cannot be trained in full with precision='fp16' and autocast, "
            "because the gradient scaler refuses fp16 weights; use dtype='fp32'"
        )
    # a 4-bit linear computes in the dtype it is told to, any other one in that of its weights
    follows_weights = method != "qlora" or precision == "fp32"
    if not autocast and follows_weights and asked != precision:
        raise MarkerError(
            f"fits_vram: dtype={asked!r} must be {precision!r} where precision={precision!r} and "
            f"nothing is cast automatically, or the arithmetic would be in {asked}"
        )
    return cast("Dtype", asked)
