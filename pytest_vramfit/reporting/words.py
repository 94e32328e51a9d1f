"""One sentence for every check and finding."""

from __future__ import annotations

from pytest_vramfit.measurement import HeldChange, Measurement, OutOfMemory
from pytest_vramfit.reporting import figures
from pytest_vramfit.spec import PHASES, TrainSpec
from pytest_vramfit.verdict import Case, Check, Finding, Witness

_METHODS = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}
_CHECKS = {"no_oom": "no OOM", "peak_within_vram": "peak within VRAM", "gpu_time": "GPU time"}
_ADAPTED = ("lora", "qlora")
_FINDINGS = {
    "did_not_run": "the step did not get through",
    "nothing_ran": "an estimate: nothing ran",
    "too_close": "within {0} of the limit, as near as predictions go: only the card itself tells",
    "phase_before_ran_out": "the phase before ran out of memory",
    "no_card": "no card under the cpu engine",
    "cannot_look": "where the memory lies could not be told by reading it",
    "may_be_off_card": "may be off the card: under {0} the driver serves from host memory what "
    "does not fit; set NVIDIA's 'CUDA - Sysmem Fallback Policy' to 'Prefer No Sysmem Fallback'",
    "may_be_off_card_in_wsl": "may be off the card: under {0} the driver serves from host memory "
    "what does not fit, and ignores NVIDIA's 'Prefer No Sysmem Fallback'",
    "cache_in_the_way": "it may get through if the allocator gives back what it keeps in reserve: "
    "only the card itself tells",
    "cache_spills": "with the allocator's cache, which only a card that refuses makes it give back",
    "ran_with_less": "it also ran with {headroom} less to have: the rest was cache",
    "oom_with_less": "out of memory in a second run, which had {headroom} less to have",
    "one_step": "one timed step cannot show growth",
    "grew": "{all} bytes grew from the first timed step to the last",
    "loss_not_finite": "the loss is not finite",
    "steps_skipped": "the gradient scaler skipped {0} steps and applied too few of the timed ones",
    "other_batches": "a step got {others} instead of {0}",
    "adapters_missing": "{0} modules have the asked adapter instead of {1}",
    "unexpected_adapters": "an adapter where none was asked: {some}",
    "other_layer_runs": "a layer ran {0} times in a step instead of {1}",
    "not_training": "in evaluation mode: {some}",
    "nothing_trainable": "nothing is trainable",
    "wrongly_trainable": "wrongly trainable or frozen: {some}",
    "without_gradient": "no gradient: {some}",
    "zero_gradient": "a gradient of zero: {some}",
    "nonfinite_gradient": "gradients not finite: {some}",
    "unmoved": "did not move: {some}",
    "base_changed": "the frozen base changed: {some}",
    "elsewhere": "tensors on {all}",
    "trainable_dtype": "trained in {others} instead of {0}",
    "base_dtype": "the base is in {others} instead of {0}",
    "not_upcast": "norms, embeddings and head are not in fp32, though kbit_upcast was asked",
    "not_quantised": "{0} of {1} matrix elements are not in {2} as asked",
    "not_saved": "not trained as a whole, though in modules_to_save: {some}",
    "no_baseline": "no baseline; --vramfit-update-missing records one",
    "recorded": "a baseline is being recorded",
    "config_changed": "the config changed since the baseline: {changes}",
    "no_gpu": "no GPU time under the cpu engine",
    "no_gpu_time": "no GPU time: the profiler saw no kernel (is CUPTI there?)",
    "no_gpu_time_before": "{reference} has no GPU time",
    "not_in_turn": "it could not be measured again, in turn with the other environment",
    "other_out_of_memory": "out of memory in the other environment",
    "too_noisy": "too noisy to tell",
    "host_loaded": "other processes took {0} of the CPU",
    "throttled": "the clocks were held down: {all}",
    "required": "required",
    "not_asked": "nothing in the marker asks for it",
    "renamed": "baseline of {0}, which trains the same",
    "other_gpu": "{reference} is of another GPU of this model",
    "improved": "better than {reference}{refresh}",
    "host_side": "on the host's side: GPU time is {0} times that of {reference}",
    "kernels": "kernels {0} → {1}",
    "sm_clock": "SM clock {0} MHz",
    "environment_changed": "{changes}",
}
"""A sentence for each finding of the verdict: {0}, {1} its names, {others} all but the first,
{some} the first and how many more, {all} all, {changes} names with their old and new values."""


_WITNESSES = {
    ("accounting", "off"): "the allocator and what is beside it had {bytes} more than the card",
    ("accounting", "on"): "all that the allocator and what is beside it had fits the card",
    ("residency", "off"): "{bytes} are off the card (within {bytes1}): what is there is read at "
    "{2} GB/s, what is on the card at {3}",
    ("residency", "on"): "all of the allocator's memory is read at the card's own speed, {3} GB/s, "
    "not at the bus', {2}",
    ("pcie", "off"): "{bytes} went over PCIe in a step",
    ("pcie", "on"): "{bytes} went over PCIe in a step",
    ("utilisation", "off"): "the GPU was busy {0} % of the time, its memory {1} %: it waited",
    ("utilisation", "on"): "the GPU was busy {0} % of the time, its memory {1} %",
    ("retries", "off"): "the allocator had to give back its cache; retries: {0}",
    ("retries", "on"): "the allocator never had to give back its cache",
    ("host_memory", "off"): "the process grew by {bytes} of host memory",
    ("host_memory", "on"): "the process grew by {bytes} of host memory",
    ("host_memory", "nothing"): "the process grew by {bytes} of host memory, where paged optimizer "
    "states may be",
    ("non_local", "off"): "Windows has {bytes} more of the process's GPU memory in host memory, "
    "{bytes1} on the card",
    ("non_local", "on"): "Windows has {bytes} more of the process's GPU memory in host memory, "
    "{bytes1} on the card",
    ("non_local", "nothing"): "Windows has {bytes} more of the process's GPU memory in host "
    "memory, where paged optimizer states may be, {bytes1} on the card",
    ("step_time", "off"): "a step took {0} times what it takes in the baseline",
    ("step_time", "on"): "a step took {0} times what it takes in the baseline",
}

WORTH_NAMING_BYTES = 100 * 2**20
"""A driver without any process holds a few MiB."""

_FIGURES = {
    "bytes": (figures.size, figures.mib),
    "ns": (figures.duration, figures.milliseconds),
}


def config(spec: TrainSpec) -> str:
    """``Qwen2.5-7B, QLoRA rank 16, seq 512, batch 1``, and what else is not a default."""
    method = _METHODS[spec.method]
    words = [spec.model, f"{method} rank {spec.rank}" if spec.method in _ADAPTED else method]
    words += [f"seq {spec.seq}", f"batch {spec.batch}", *_unusual(spec)]
    return ", ".join(words)


def _unusual(spec: TrainSpec) -> list[str]:
    """What is not as the marker's defaults would have it."""
    auto = "fp32" if spec.method == "full" else spec.precision
    targets = spec.targets if isinstance(spec.targets, str) else "+".join(spec.targets or ())
    words = {
        f"accumulation {spec.accumulation}": spec.accumulation > 1,
        spec.precision: spec.precision != "bf16",
        f"base in {spec.dtype}": spec.dtype != auto,
        "no autocast": not spec.autocast and spec.precision != "fp32",
        spec.optimizer: spec.optimizer != "adamw",
        f"{spec.attention} attention": spec.attention != "sdpa",
        f"adapters in {spec.adapter_dtype}": spec.adapter_dtype not in {None, "fp32"},
        f"max_grad_norm {spec.max_grad_norm}": spec.max_grad_norm != 1.0,
        "checkpointing": spec.checkpointing is True,
        "reentrant checkpointing": spec.checkpointing == "reentrant",
        f"alpha {spec.alpha}": spec.rank is not None and spec.alpha != 2 * spec.rank,
        f"dropout {spec.dropout}": spec.dropout not in {None, 0.05},
        f"targets {targets}": spec.targets not in {None, "all-linear"},
        f"modules_to_save {'+'.join(spec.modules_to_save or ())}": spec.modules_to_save,
        "DoRA": spec.dora,
        "rsLoRA": spec.rslora,
        str(spec.quant): spec.quant not in {None, "nf4"},
        "liger": spec.liger,
        "compiled": spec.compile,
        f"allocator {spec.alloc_conf}": spec.alloc_conf,
        "varied lengths": spec.lengths == "varied",
        "no double_quant": spec.double_quant is False,
        "no kbit_upcast": spec.kbit_upcast is False,
    }
    return [word for word, holds in words.items() if holds]


def title(case: Case) -> str:
    """The first line about a case: what was trained, on what."""
    total = figures.size(case.card.total_bytes)
    if case.engine == "estimate":
        return f"{config(case.claim.spec)} predicted for {case.card.name} ({total})"
    if case.card.emulated:
        device = case.measurement.device
        return (
            f"{config(case.claim.spec)} on {case.card.name} ({total}), its memory emulated on "
            f"{device.emulated_on}"
        )
    if case.claim.limits.card_bytes is not None:
        return f"{config(case.claim.spec)} for a card of {total}, on {case.card.name}"
    return f"{config(case.claim.spec)} on {case.card.name} ({total}{held(case.card.held_bytes)})"


def held(held_bytes: int) -> str:
    """``, 2.1 GiB held by others``; empty where that is not worth naming."""
    return f", {figures.size(held_bytes)} held by others" if held_bytes > WORTH_NAMING_BYTES else ""


def contamination(change: HeldChange, measurement: Measurement) -> str:
    """Why a case could not be judged while others used its GPU."""
    oom = measurement.first_oom
    if oom is not None:
        return f"out of memory {_where(oom)}, and {_others(change)}"
    return f"{_others(change)}, and the case is nearer than that to its limit"


def _others(change: HeldChange) -> str:
    """``others took 2.1 GiB of the GPU in the timed steps``."""
    did = "took" if change.bytes > 0 else "gave back"
    return f"others {did} {figures.size(abs(change.bytes))} of the GPU {change.when}"


def witness(one: Witness) -> str:
    """What a witness of memory off the card saw, or that it could not look."""
    names = one.finding.names
    if one.finding.kind == "blind":
        return "could not look"
    sizes = [figures.size(int(name)) for name in names if name.lstrip("-").isdigit()]
    first, second = [*sizes, "", ""][:2]
    return _WITNESSES[one.name, one.saw].format(*names, bytes=first, bytes1=second)


def check_name(name: str) -> str:
    """The name of a check in words."""
    return _CHECKS.get(name, name.replace("_", " "))


def figure(check: Check) -> str:
    """The value and the limit of a check, in few words; empty where there is none."""
    value, limit = check.value, check.limit
    if value is None or limit is None:
        return ""
    if check.ran_out:
        return f"{figures.size(value)} asked for, {figures.size(limit)} free"
    if check.name == "resident":
        return f"{figures.size(value)} off the card" if value else "all on the card"
    if check.name == "steady":
        return f"{figures.size(value)} more" if value > 0 else "no growth"
    if check.unit == "count":
        return f"{value} of {limit} steps applied"
    # against a baseline small differences matter
    rough, exact = _FIGURES[check.unit or "bytes"]
    shown = rough if check.ratio is None else exact
    return f"{shown(value)} of {shown(limit)}"


def sentence(check: Check, case: Case) -> str:
    """What a check found, in one sentence without the figures of :func:`figure`."""
    found = [_finding(one, check, case) for one in check.findings]
    value, limit = check.value, check.limit
    with_peak = check.name == "peak_within_vram" or check.left_the_card
    if with_peak and value is not None and limit is not None:
        found = [_peak(value, limit, case), *found]
    if check.ratio is not None:
        # what kept it from being judged comes first
        required = any(one.kind == "required" for one in check.findings)
        reasons = 2 if required else int(check.status == "unchecked")
        return "; ".join([*found[:reasons], _ratio(check, case), *found[reasons:]])
    if found:
        return "; ".join(found)
    if value is None or limit is None:
        return ""
    if check.name in {"peak_within_vram", *PHASES}:
        return _peak(value, limit, case)
    if check.name == "headroom":
        wanted = case.claim.limits.headroom.of(case.card.usable_bytes)
        memory = case.measurement.memory
        is_reserved = memory is not None and value == memory.peak_reserved_bytes
        what = "reserved" if is_reserved else "allocated"
        return f"{what}; {figures.size(wanted)} must stay free"
    too_slow = check.status == "fail" and check.unit == "ns"
    return f"{value / limit:.2f} times the limit" if too_slow else ""


def _ratio(check: Check, case: Case) -> str:
    """``1.061 times the baseline (1.059 to 1.063)``."""
    times = f"{check.ratio:.3f} times {_reference(case)}"
    if check.interval is None:
        return times
    low, high = check.interval
    return f"{times} ({low:.3f} to {high:.3f})"


def _reference(case: Case) -> str:
    """What the case was compared with."""
    return "the other environment" if case.in_turn else "the baseline"


def _peak(value: int, limit: int, case: Case) -> str:
    share = f"{figures.percent(value, limit)} of the card"
    if value > limit:
        over = f"{share}, {figures.size(value - limit)} over"
        return over if case.engine == "estimate" else f"{over}; no error was raised"
    outside = case.measurement.memory and case.measurement.memory.outside_allocator_bytes
    return f"{share}, {figures.size(outside)} of it outside the allocator" if outside else share


def _finding(finding: Finding, check: Check, case: Case) -> str:
    if finding.kind == "out_of_memory":
        return _out_of_memory(case, check)
    if finding.kind == "others_changed":
        change = case.measurement.device.held_change
        assert change is not None
        return _others(change)
    names = finding.names
    if finding.kind == "fragmented":
        grown, retries = figures.size(int(names[0])), names[1]
        return f"what is reserved grew by {grown} over the timed steps; {retries} allocator retries"
    if finding.kind == "phase_off_card":
        return f"{figures.size(int(names[0]))} off the card by its end"
    if finding.kind == "unquantised":
        return f"{figures.size(int(names[0]))} of the base is not quantised: {_some(names[1:])}"
    headroom = figures.size(case.claim.limits.headroom.of(case.card.usable_bytes))
    return _FINDINGS[finding.kind].format(
        *names,
        some=_some(names),
        all=" and ".join(names),
        others=" and ".join(names[1:]) or "nothing",
        headroom=headroom,
        changes=_changes(names),
        reference=_reference(case),
        refresh="" if case.in_turn else ", which --vramfit-update refreshes",
    )


def _changes(names: tuple[str, ...]) -> str:
    """``driver 580.159 → 590.12, torch 2.11 → 2.13``."""
    triples = zip(names[::3], names[1::3], names[2::3], strict=False)
    return ", ".join(f"{name} {old} → {new}" for name, old, new in triples)


def _out_of_memory(case: Case, check: Check) -> str:
    phase = case.measurement.phases.get(check.name)
    if phase is not None:
        assert phase.oom is not None
        return f"with {figures.size(phase.oom.allocated_bytes)} allocated"
    oom = case.measurement.oom
    assert oom is not None
    return f"{_where(oom)}, with {figures.size(oom.allocated_bytes)} allocated"


def _where(oom: OutOfMemory) -> str:
    return f"in the {oom.phase} of step {oom.step}" if oom.step else "while the model was built"


def _some(names: tuple[str, ...]) -> str:
    """The first name and how many more."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)
