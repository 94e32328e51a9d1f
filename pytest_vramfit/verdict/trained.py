"""The check ``trained``: everything that speaks against "it trained what was asked"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_vramfit.measurement import Engine, Evidence
from pytest_vramfit.spec import Claim, TrainSpec
from pytest_vramfit.verdict.case import Check, Finding

_UPCAST_SHARE = 0.9
"""Of the unquantised base."""
_MOST = 0.5
"""Of the base's matrices: with less of them quantised the method is not what was asked."""
_WORTH_SAYING = 0.01
"""Of the base's matrices: routers and the like stay unquantised in any model."""


def trained(claim: Claim, engine: Engine, evidence: Evidence) -> Check:
    """Pass where nothing speaks against it; the value is the number of applied steps."""
    findings = tuple(_objections(claim, engine, evidence))
    beside = () if findings else tuple(_unquantised(evidence))
    return Check(
        name="trained",
        status="fail" if findings else "pass",
        value=evidence.applied_steps,
        limit=claim.schedule.warmup + claim.schedule.steps,
        unit="count",
        findings=findings or beside,
    )


def _objections(claim: Claim, engine: Engine, evidence: Evidence) -> Iterator[Finding]:
    """Everything in the evidence that speaks against "this step trained what was asked"."""
    spec = claim.spec
    yield from _wrong_steps(claim, evidence)
    yield from _wrong_modules(evidence)
    missing = tuple(one for one in spec.modules_to_save or () if one not in evidence.saved)
    if missing:
        yield Finding(kind="not_saved", names=missing)
    for kind in (
        "wrongly_trainable",
        "without_gradient",
        "zero_gradient",
        "nonfinite_gradient",
        "unmoved",
        "base_changed",
    ):
        names: tuple[str, ...] = getattr(evidence, kind)
        if names:
            yield Finding(kind=kind, names=names)
    yield from _wrong_dtypes(spec, evidence)
    device_type = "cuda" if engine == "gpu" else "cpu"
    elsewhere = tuple(sorted(set(evidence.devices) - {device_type}))
    if elsewhere:
        yield Finding(kind="elsewhere", names=elsewhere)
    quantised, matrices = evidence.quantised_elements, evidence.matrix_elements
    if spec.method == "qlora" and quantised < _MOST * matrices:
        names = (f"{matrices - quantised:,}", f"{matrices:,}", str(spec.quant))
        yield Finding(kind="not_quantised", names=names)
        yield from _unquantised(evidence)


def _unquantised(evidence: Evidence) -> Iterator[Finding]:
    """Where a quantised base is not quantised, if that is more than routers."""
    matrices = evidence.matrix_elements
    if evidence.unquantised and matrices - evidence.quantised_elements > _WORTH_SAYING * matrices:
        total = sum(evidence.unquantised.values())
        yield Finding(kind="unquantised", names=(str(total), *evidence.unquantised))


def _wrong_steps(claim: Claim, evidence: Evidence) -> Iterator[Finding]:
    spec, schedule = claim.spec, claim.schedule
    if evidence.loss is None:
        yield Finding(kind="loss_not_finite")
    # else the median timed step would be one without an optimizer
    if 2 * (evidence.applied_steps - schedule.warmup) <= schedule.steps:
        yield Finding(kind="steps_skipped", names=(str(evidence.skipped_steps),))
    asked: Counter[tuple[int, ...]] = Counter({(spec.batch, spec.seq): spec.accumulation})
    seen = Counter(evidence.batches)
    if seen != asked:
        yield Finding(kind="other_batches", names=(*_batches(asked), *_batches(seen)))
    runs = spec.accumulation * (2 if spec.checkpointing else 1)
    if evidence.layer_runs != runs:
        yield Finding(kind="other_layer_runs", names=(str(evidence.layer_runs), str(runs)))


def _wrong_modules(evidence: Evidence) -> Iterator[Finding]:
    if evidence.not_training:
        yield Finding(kind="not_training", names=evidence.not_training)
    found, expected = evidence.adapters, evidence.adapters_expected
    if found != expected:
        yield Finding(kind="adapters_missing", names=(str(found), str(expected)))
    if evidence.unexpected_adapters:
        yield Finding(kind="unexpected_adapters", names=evidence.unexpected_adapters)
    if evidence.trainable_tensors == 0:
        yield Finding(kind="nothing_trainable")


def _batches(shapes: Counter[tuple[int, ...]]) -> list[str]:
    return [f"{times} x {shape}" for shape, times in shapes.items()]


_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _wrong_dtypes(spec: TrainSpec, evidence: Evidence) -> Iterator[Finding]:
    saved = _TORCH_NAMES["fp32" if spec.kbit_upcast else spec.dtype]
    wrong = tuple(sorted(set(evidence.saved_dtypes) - {saved}))
    if wrong:
        yield Finding(kind="trainable_dtype", names=(saved, *wrong))
    trained = _TORCH_NAMES[spec.adapter_dtype or spec.dtype]
    wrong = tuple(sorted(set(evidence.trainable_dtypes) - {trained}))
    if wrong:
        yield Finding(kind="trainable_dtype", names=(trained, *wrong))
    base = {_TORCH_NAMES[spec.dtype]}
    if spec.kbit_upcast:
        # bitsandbytes casts the biases of its linears back to the compute dtype
        base |= {"float32"}
        upcast = evidence.base_dtypes.get("float32", 0)
        if upcast < _UPCAST_SHARE * sum(evidence.base_dtypes.values()):
            yield Finding(kind="not_upcast")
    wrong = tuple(sorted(set(evidence.base_dtypes) - base))
    if wrong:
        yield Finding(kind="base_dtype", names=(_TORCH_NAMES[spec.dtype], *wrong))
