"""From the markers of one test to its :class:`~pytest_vramfit.spec.Claim`.

Every way in which a marker can be wrong ends in one MarkerError of one sentence, raised here or
in :mod:`pytest_vramfit.marker.keywords`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pytest_vramfit import catalog
from pytest_vramfit.marker import architecture
from pytest_vramfit.marker.keywords import MarkerError, read_keyword
from pytest_vramfit.marker.values import either, shown
from pytest_vramfit.quantity import NO_HEADROOM
from pytest_vramfit.spec import Claim, Dtype, Limits, Schedule, TrainSpec

_ADAPTER = ("rank", "alpha", "dropout", "targets", "adapter_dtype")
_QUANTISATION = ("quant", "double_quant", "kbit_upcast")
_RATIOS = ("step_ratio", "gpu_ratio", "peak_ratio")
_SOURCES = ("model", "config", "step")


def read_claim(layers: Sequence[Mapping[str, object]], *, rootdir: Path) -> Claim:
    """The claim of one test, from its markers' keywords.

    ``layers`` go from the outermost (module) to the innermost (parameters); later ones win key by
    key, and ``model``, ``config`` and ``step`` displace each other. A folder given as ``model`` is
    taken from ``rootdir``. Raises MarkerError.
    """
    merged: dict[str, Any] = {}
    beside_method: dict[str, object] = {}  # what is written with the method that counts, or after
    for layer in layers:
        values = {key: read_keyword(key, value) for key, value in layer.items()}
        if any(values.get(source) is not None for source in _SOURCES):
            merged = {key: value for key, value in merged.items() if key not in _SOURCES}
        merged.update(values)
        if "method" in layer:
            beside_method.clear()
        beside_method.update(layer)
    _check_meaning(beside_method, merged.get("method", "qlora"))
    if "model" not in merged:
        raise MarkerError("fits_vram needs a model, such as fits_vram(model='Qwen2.5-7B')")
    return Claim(
        spec=_spec(merged, rootdir),
        limits=Limits(
            card_bytes=merged.get("card"),
            headroom=merged.get("headroom", NO_HEADROOM),
            max_step_ns=merged.get("max_step"),
            require=frozenset(merged.get("require") or ()),
            **{name: merged[name] for name in _RATIOS if name in merged},
        ),
        schedule=Schedule(
            warmup=merged.get("warmup", 3),
            steps=merged.get("steps", 5),
            timeout_s=merged.get("timeout", 600.0),
        ),
    )


def _check_meaning(written: Mapping[str, object], method: str) -> None:
    """Refuse keywords that the method has no use for; what an outer layer wrote is displaced."""
    for keys, methods in ((_ADAPTER, ("lora", "qlora")), (_QUANTISATION, ("qlora",))):
        for key in keys:
            if key in written and method not in methods:
                raise MarkerError(
                    f"fits_vram: {key}={shown(written[key])} has no meaning with "
                    f"method={method!r}, only with {either(methods)}"
                )


def _spec(merged: Mapping[str, Any], rootdir: Path) -> TrainSpec:
    method = merged.get("method", "qlora")
    precision = merged.get("precision", "bf16")
    autocast = merged.get("autocast", True) and precision != "fp32"
    seq = merged.get("seq", 512)
    try:
        name, config = architecture.resolve(merged["model"], rootdir=rootdir)
    except ValueError as error:
        raise MarkerError(f"fits_vram: model={shown(merged['model'])} {error}") from None
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
    if method == "qlora":
        fields |= {
            "quant": merged.get("quant", "nf4"),
            "double_quant": merged.get("double_quant", True),
            "kbit_upcast": merged.get("kbit_upcast", True),
        }
    return TrainSpec(
        model=name,
        config=config,
        method=method,
        seq=seq,
        batch=merged.get("batch", 1),
        accumulation=merged.get("accumulation", 1),
        precision=precision,
        dtype=_base_dtype(method, precision, autocast, merged.get("dtype", "auto")),
        optimizer=merged.get("optimizer", "adamw"),
        autocast=autocast,
        max_grad_norm=merged.get("max_grad_norm", 1.0),
        checkpointing=merged.get("checkpointing", False),
        attention=merged.get("attention", "sdpa"),
        **fields,
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
