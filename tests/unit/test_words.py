"""One sentence for every check and every finding, to the letter."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from samples import (
    FULL,
    GIB,
    MEASUREMENT,
    MEMORY,
    MIB,
    MS,
    OOM,
    RAN_OUT,
    RESIDENCY,
    SPEC,
    case,
    check,
    claim,
    compared,
    left_by_phase,
    pinned,
    recorded,
    timed,
    with_change,
    with_evidence,
    with_memory,
    with_phases,
)

from pytest_vramfit import gate, verdict
from pytest_vramfit.baseline import Entry
from pytest_vramfit.measurement import Conditions, Measurement, Prediction
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.reporting import words
from pytest_vramfit.spec import CHECKS, Claim, TrainSpec
from pytest_vramfit.verdict import Case, Check, Finding, Reference, judge

TENTH = claim(card_bytes=16 * GIB, headroom=Headroom(share=0.1))


def with_gpu(**changes: Any) -> Measurement:
    assert MEASUREMENT.gpu is not None
    return replace(MEASUREMENT, gpu=replace(MEASUREMENT.gpu, **changes))


def tried_again(second: Measurement) -> Case:
    cache = with_memory(peak_reserved_bytes=15 * GIB)
    return judge("test_a.py::test_b", "gpu", TENTH, cache, second)


def predicted(*, fits: bool | None, room_bytes: int) -> Measurement:
    """The case predicted for a card whose allocator may have so much; its peak is 10 GiB."""
    device, outside = MEASUREMENT.device, MEMORY.outside_allocator_bytes or 0
    total = room_bytes + outside + device.reserved_bytes + device.held_bytes
    return replace(
        MEASUREMENT,
        device=replace(device, total_bytes=total),
        evidence=None,
        prediction=Prediction(fits=fits, margin=0.005, reserved_bytes=(12 * GIB, 12 * GIB)),
    )


NOT_LOOKED = replace(MEASUREMENT, residency=None)
IN_RESERVE = (
    "it may get through if the allocator gives back what it keeps in reserve: only the card itself "
    "tells"
)
FINDINGS = [
    ("did_not_run", "trained", case(RAN_OUT), "the step did not get through"),
    (
        "nothing_ran",
        "trained",
        case(predicted(fits=True, room_bytes=20 * GIB)),
        "an estimate: nothing ran",
    ),
    (
        "too_close",
        "no_oom",
        case(predicted(fits=None, room_bytes=10 * GIB)),
        "within 0.5 % of the limit, as near as predictions go: only the card itself tells",
    ),
    (
        "cache_in_the_way",
        "no_oom",
        case(predicted(fits=None, room_bytes=11 * GIB)),
        IN_RESERVE,
    ),
    (
        "cache_spills",
        "resident",
        case(
            predicted(fits=False, room_bytes=11 * GIB), claim(card_bytes=12 * GIB, overflow="spill")
        ),
        "with the allocator's cache, which only a card that refuses makes it give back",
    ),
    (
        "no_card",
        "resident",
        judge("test_a.py::test_b", "cpu", claim(), MEASUREMENT),
        "no card under the cpu engine",
    ),
    (
        "cannot_look",
        "resident",
        case(NOT_LOOKED),
        "where the memory lies could not be told by reading it",
    ),
    (
        "one_step",
        "steady",
        case(with_memory(allocated_after_step_bytes=(5,))),
        "one timed step cannot show growth",
    ),
    (
        "grew",
        "steady",
        case(with_memory(allocated_after_step_bytes=(5, 6))),
        "allocated bytes grew from the first timed step to the last",
    ),
    (
        "grew",
        "steady",
        case(with_memory(allocated_after_step_bytes=(5, 6), reserved_after_step_bytes=(5, 6))),
        "allocated and reserved bytes grew from the first timed step to the last",
    ),
    (
        "out_of_memory",
        "no_oom",
        case(RAN_OUT),
        "in the backward of step 1, with 21.0 GiB allocated",
    ),
    (
        "out_of_memory",
        "no_oom",
        case(replace(RAN_OUT, oom=replace(OOM, phase="load", step=0, allocated_bytes=7 * MIB))),
        "while the model was built, with 7.0 MiB allocated",
    ),
    (
        "others_changed",
        "peak_within_vram",
        case(with_change(2 * GIB, "in the timed steps")),
        (
            "46 % of the card, 512 MiB of it outside the allocator; others took 2.0 GiB of the GPU "
            "in the timed steps"
        ),
    ),
    (
        "others_changed",
        "peak_within_vram",
        case(with_change(-300 * MIB, "before the timed steps")),
        (
            "46 % of the card, 512 MiB of it outside the allocator; others gave back 300 MiB of "
            "the GPU before the timed steps"
        ),
    ),
    (
        "ran_with_less",
        "headroom",
        tried_again(MEASUREMENT),
        "it also ran with 1.6 GiB less to have: the rest was cache",
    ),
    (
        "oom_with_less",
        "headroom",
        tried_again(RAN_OUT),
        "out of memory in a second run, which had 1.6 GiB less to have",
    ),
    (
        "may_be_off_card",
        "peak_within_vram",
        case(replace(NOT_LOOKED, environment={"driver model": "WDDM"})),
        (
            "46 % of the card, 512 MiB of it outside the allocator; may be off the card: under "
            "WDDM the driver serves from host memory what does not fit; set NVIDIA's 'CUDA - "
            "Sysmem Fallback Policy' to 'Prefer No Sysmem Fallback'"
        ),
    ),
    (
        "may_be_off_card_in_wsl",
        "peak_within_vram",
        case(replace(NOT_LOOKED, environment={"os": "Linux 5.15-microsoft-standard-WSL2"})),
        (
            "46 % of the card, 512 MiB of it outside the allocator; may be off the card: under "
            "WSL2 the driver serves from host memory what does not fit, and ignores NVIDIA's "
            "'Prefer No Sysmem Fallback'"
        ),
    ),
    ("loss_not_finite", "trained", case(with_evidence(loss=None)), "the loss is not finite"),
    (
        "steps_skipped",
        "trained",
        case(with_evidence(applied_steps=3, skipped_steps=21)),
        "the gradient scaler skipped 21 steps and applied too few of the timed ones",
    ),
    (
        "other_batches",
        "trained",
        case(with_evidence(batches=((2, 256),))),
        "a step got 1 x (2, 256) instead of 1 x (2, 512)",
    ),
    (
        "other_batches",
        "trained",
        case(with_evidence(batches=((2, 512), (1, 512), (1, 512)))),
        "a step got 1 x (2, 512) and 2 x (1, 512) instead of 1 x (2, 512)",
    ),
    (
        "other_batches",
        "trained",
        case(with_evidence(batches=())),
        "a step got nothing instead of 1 x (2, 512)",
    ),
    (
        "adapters_missing",
        "trained",
        case(with_evidence(adapters=12)),
        "12 modules have the asked adapter instead of 14",
    ),
    (
        "unexpected_adapters",
        "trained",
        case(with_evidence(unexpected_adapters=("layers.0.mlp", "layers.1.mlp"))),
        "an adapter where none was asked: layers.0.mlp and 1 more",
    ),
    (
        "other_layer_runs",
        "trained",
        case(with_evidence(layer_runs=2)),
        "a layer ran 2 times in a step instead of 1",
    ),
    (
        "not_training",
        "trained",
        case(with_evidence(not_training=("layers.0",))),
        "in evaluation mode: layers.0",
    ),
    (
        "nothing_trainable",
        "trained",
        case(with_evidence(trainable_tensors=0)),
        "nothing is trainable",
    ),
    (
        "wrongly_trainable",
        "trained",
        case(with_evidence(wrongly_trainable=("embed.weight", "head.weight", "norm.weight"))),
        "wrongly trainable or frozen: embed.weight and 2 more",
    ),
    (
        "without_gradient",
        "trained",
        case(with_evidence(without_gradient=("a.lora_A",))),
        "no gradient: a.lora_A",
    ),
    (
        "zero_gradient",
        "trained",
        case(with_evidence(zero_gradient=("a.lora_A", "b.lora_A"))),
        "a gradient of zero: a.lora_A and 1 more",
    ),
    (
        "nonfinite_gradient",
        "trained",
        case(with_evidence(nonfinite_gradient=("a.lora_A",))),
        "gradients not finite: a.lora_A",
    ),
    (
        "unmoved",
        "trained",
        case(with_evidence(unmoved=("a{0}.lora_B",))),
        "did not move: a{0}.lora_B",
    ),
    (
        "base_changed",
        "trained",
        case(with_evidence(base_changed=("a.weight",))),
        "the frozen base changed: a.weight",
    ),
    (
        "elsewhere",
        "trained",
        case(with_evidence(devices={"cuda": 1, "meta": 1, "cpu": 1})),
        "tensors on cpu and meta",
    ),
    (
        "trainable_dtype",
        "trained",
        case(with_evidence(trainable_dtypes={"bfloat16": 1, "float16": 1})),
        "trained in bfloat16 and float16 instead of float32",
    ),
    (
        "base_dtype",
        "trained",
        case(with_evidence(base_dtypes={"float32": 99, "float16": 1})),
        "the base is in float16 instead of bfloat16",
    ),
    (
        "not_upcast",
        "trained",
        case(with_evidence(base_dtypes={"bfloat16": 1})),
        "norms, embeddings and head are not in fp32, though kbit_upcast was asked",
    ),
    (
        "not_quantised",
        "trained",
        case(with_evidence(quantised_elements=0)),
        "90,000 of 90,000 matrix elements are not in nf4 as asked",
    ),
    (
        "unquantised",
        "trained",
        case(with_evidence(quantised_elements=80_000, unquantised={"mlp.experts": 3 * GIB})),
        "3.0 GiB of the base is not quantised: mlp.experts",
    ),
    (
        "unquantised",
        "trained",
        case(with_evidence(quantised_elements=80_000, unquantised={"a{0}": GIB, "b": MIB, "c": 5})),
        "1.0 GiB of the base is not quantised: a{0} and 2 more",
    ),
    (
        "not_saved",
        "trained",
        case(
            with_evidence(saved=("embed",)),
            claim(replace(SPEC, modules_to_save=("embed", "head", "norm"))),
        ),
        "not trained as a whole, though in modules_to_save: head and 1 more",
    ),
    (
        "fragmented",
        "steady",
        case(
            with_memory(reserved_after_step_bytes=(5, 5 + 3 * GIB), allocator_retries=2),
            claim(replace(SPEC, lengths="varied")),
        ),
        "what is reserved grew by 3.0 GiB over the timed steps; 2 allocator retries",
    ),
    (
        "phase_off_card",
        "eval",
        case(left_by_phase("eval", 300 * MIB), claim(phases=("eval",))),
        "41 % of the card, 512 MiB of it outside the allocator; 300 MiB off the card by its end",
    ),
    (
        "phase_before_ran_out",
        "merge",
        case(with_phases(eval=None), claim(phases=("eval", "merge"))),
        "the phase before ran out of memory",
    ),
    (
        "out_of_memory",
        "eval",
        case(with_phases(eval=None), claim(phases=("eval", "merge"))),
        "with 21.0 GiB allocated",
    ),
    ("no_baseline", "gpu_time", case(), "no baseline; --vramfit-update-missing records one"),
    (
        "recorded",
        "step_time",
        compared(without=Finding(kind="recorded")),
        "a baseline is being recorded",
    ),
    (
        "config_changed",
        "peak_baseline",
        compared(MEASUREMENT, claim(replace(SPEC, seq=1024))),
        "the config changed since the baseline: seq 512 → 1024",
    ),
    (
        "config_changed",
        "step_time",
        compared(
            MEASUREMENT,
            claim(replace(SPEC, targets=("q_proj", "v_proj"), config={"model_type": "gpt2"})),
        ),
        (
            "the config changed since the baseline: config.hidden_size 64 → None, "
            "config.model_type llama → gpt2, targets all-linear → ['q_proj', 'v_proj']"
        ),
    ),
    (
        "no_gpu",
        "gpu_time",
        judge("test_a.py::test_b", "cpu", claim(), MEASUREMENT),
        "no GPU time under the cpu engine",
    ),
    (
        "no_gpu_time",
        "gpu_time",
        compared(replace(MEASUREMENT, gpu=None)),
        "no GPU time: the profiler saw no kernel (is CUPTI there?)",
    ),
    (
        "no_gpu_time_before",
        "gpu_time",
        compared(entry=recorded(replace(MEASUREMENT, gpu=None))),
        "the baseline has no GPU time",
    ),
    (
        "not_in_turn",
        "gpu_time",
        compared(without=Finding(kind="not_in_turn")),
        "it could not be measured again, in turn with the other environment",
    ),
    (
        "other_out_of_memory",
        "gpu_time",
        compared(without=Finding(kind="other_out_of_memory")),
        "out of memory in the other environment",
    ),
]

NOISY = timed(step=1.2, gpu=1.05)
OF_STEP = "1.200 times the baseline (1.080 to 1.320)"
OF_GPU = "1.050 times the baseline (0.945 to 1.155)"
REQUIRED = frozenset({"step_time", "gpu_time", "resident"})


def changed(before: dict[str, str] | None = None, **now: str) -> dict[str, Any]:
    """The sample's environment, with changes in it and in that of the baseline."""
    environment = MEASUREMENT.environment
    return {
        "measurement": timed(gpu=2, environment={**environment, **now}),
        "entry": recorded(environment={**environment, **(before or {})}),
    }


WITH_RATIO = [
    (
        ["too_noisy", "sm_clock"],
        "gpu_time",
        compared(NOISY),
        f"too noisy to tell; {OF_GPU}; SM clock 1980 MHz",
    ),
    (
        ["host_loaded", "too_noisy"],
        "step_time",
        compared(replace(NOISY, conditions=Conditions(others_cpu_share=0.624))),
        f"other processes took 62% of the CPU; {OF_STEP}; too noisy to tell",
    ),
    (
        ["throttled", "too_noisy"],
        "gpu_time",
        compared(
            replace(
                NOISY,
                conditions=Conditions(
                    throttled_ns={"hardware thermal": 10**9, "power brake": 10**9}
                ),
            )
        ),
        f"the clocks were held down: hardware thermal and power brake; {OF_GPU}; too noisy to tell",
    ),
    (
        ["required", "too_noisy"],
        "step_time",
        compared(NOISY, claim(require=REQUIRED)),
        f"required; too noisy to tell; {OF_STEP}",
    ),
    (
        ["renamed"],
        "step_time",
        compared(entry=recorded(nodeid="test_a.py::test_old"), renamed=True),
        (
            "1.000 times the baseline (0.900 to 1.100); baseline of test_a.py::test_old, which "
            "trains the same"
        ),
    ),
    (
        ["other_gpu", "improved"],
        "step_time",
        compared(
            timed(step=0.5, gpu=0.5),
            entry=recorded(environment={**MEASUREMENT.environment, "gpu": "aa"}),
        ),
        (
            "0.500 times the baseline (0.450 to 0.550); the baseline is of another GPU of this "
            "model; better than the baseline, which --vramfit-update refreshes"
        ),
    ),
    (
        ["host_side"],
        "step_time",
        compared(timed(step=2, gpu=1.1)),
        (
            "2.000 times the baseline (1.800 to 2.200); on the host's side: GPU time is 1.100 "
            "times that of the baseline"
        ),
    ),
    (
        ["kernels", "sm_clock"],
        "gpu_time",
        compared(timed(gpu=2), entry=recorded(with_gpu(kernels=12_345))),
        "2.000 times the baseline (1.800 to 2.200); kernels 12,345 → 8,382; SM clock 1980 MHz",
    ),
    (
        ["environment_changed", "sm_clock"],
        "gpu_time",
        compared(**changed(torch="2.13.0", ecc="on", before={"pcie": "gen {0} x16"})),
        (
            "2.000 times the baseline (1.800 to 2.200); torch 2.11.0 → 2.13.0, pcie gen {0} x16 → "
            "none, ecc none → on; SM clock 1980 MHz"
        ),
    ),
    (
        ["environment_changed"],
        "peak_baseline",
        compared(
            with_memory(backward_peak_bytes=11 * GIB), entry=recorded(environment={"driver": "1.1"})
        ),
        (
            "1.100 times the baseline; driver 1.1 → 1.2, device none → Card, python none → 3.12.1, "
            "torch none → 2.11.0"
        ),
    ),
    (
        [],
        "peak_baseline",
        compared(with_memory(backward_peak_bytes=11 * GIB)),
        "1.100 times the baseline",
    ),
]
"""Of checks that are made against a baseline: what kept one from being judged, then the ratio,
then what goes with it."""


def in_turn(
    now: Measurement, before: Measurement = MEASUREMENT, asked: Claim | None = None, **entry: Any
) -> Case:
    """The case twice, in turn with the same in another environment."""
    there = Entry.of("test_a.py::test_b", "gpu", SPEC, [before] * 2)
    reference = Reference(entry=replace(there, **entry), in_turn=True)
    return judge(
        "test_a.py::test_b", "gpu", asked or claim(), now, more=(now,), reference=reference
    )


IN_TURN = [
    (
        [],
        "gpu_time",
        in_turn(MEASUREMENT),
        "1.000 times the other environment (0.900 to 1.100)",
    ),
    (
        [],
        "peak_baseline",
        in_turn(with_memory(backward_peak_bytes=11 * GIB)),
        "1.100 times the other environment",
    ),
    (
        ["no_gpu_time_before"],
        "gpu_time",
        in_turn(MEASUREMENT, replace(MEASUREMENT, gpu=None)),
        "the other environment has no GPU time",
    ),
    (
        ["too_noisy", "sm_clock"],
        "gpu_time",
        in_turn(NOISY),
        (
            "too noisy to tell; 1.050 times the other environment (0.945 to 1.155); "
            "SM clock 1980 MHz"
        ),
    ),
    (
        ["required", "too_noisy", "sm_clock"],
        "gpu_time",
        in_turn(NOISY, asked=claim(require=REQUIRED)),
        (
            "required; too noisy to tell; 1.050 times the other environment (0.945 to 1.155); "
            "SM clock 1980 MHz"
        ),
    ),
    (
        ["other_gpu", "improved"],
        "step_time",
        in_turn(
            timed(step=0.5, gpu=0.5),
            environment={**MEASUREMENT.environment, "gpu": "aa"},
        ),
        (
            "0.500 times the other environment (0.450 to 0.550); the other environment is of "
            "another GPU of this model; better than the other environment"
        ),
    ),
    (
        ["host_side"],
        "step_time",
        in_turn(timed(step=2, gpu=1.1)),
        (
            "2.000 times the other environment (1.800 to 2.200); on the host's side: GPU time is "
            "1.100 times that of the other environment"
        ),
    ),
    (
        ["environment_changed"],
        "peak_baseline",
        in_turn(
            with_memory(backward_peak_bytes=11 * GIB),
            environment={**MEASUREMENT.environment, "torch": "2.10.0"},
        ),
        "1.100 times the other environment; torch 2.10.0 → 2.11.0",
    ),
]
"""Of checks that are made against another environment: its findings that name it, and some more."""

REQUIRED_WITHOUT_RATIO = [
    (
        ["required", "no_baseline"],
        "gpu_time",
        case(MEASUREMENT, claim(require=REQUIRED)),
        "required; no baseline; --vramfit-update-missing records one",
    ),
    (
        ["required", "cannot_look"],
        "resident",
        case(NOT_LOOKED, claim(require=REQUIRED)),
        "required; where the memory lies could not be told by reading it",
    ),
    (
        ["required", "not_asked"],
        "step_time",
        case(MEASUREMENT, claim(step_ratio=None, require=REQUIRED)),
        "required; nothing in the marker asks for it",
    ),
    (
        ["required", "not_asked"],
        "headroom",
        case(MEASUREMENT, claim(require=frozenset({"headroom"}))),
        "required; nothing in the marker asks for it",
    ),
    (
        ["required", "no_gpu_time_before"],
        "gpu_time",
        compared(
            MEASUREMENT,
            claim(require=REQUIRED),
            entry=recorded(replace(MEASUREMENT, gpu=None)),
        ),
        "required; the baseline has no GPU time",
    ),
    (
        ["required", "no_gpu_time_before"],
        "gpu_time",
        in_turn(MEASUREMENT, replace(MEASUREMENT, gpu=None), claim(require=REQUIRED)),
        "required; the other environment has no GPU time",
    ),
]

WITHOUT_RATIO = [([kind], *rest) for kind, *rest in FINDINGS] + REQUIRED_WITHOUT_RATIO
ALL = WITHOUT_RATIO + WITH_RATIO + IN_TURN


@pytest.mark.parametrize(
    ("kind", "name", "judged", "says"), FINDINGS, ids=[row[0] for row in FINDINGS]
)
def test_sentence_of_a_finding(kind: str, name: str, judged: Case, says: str) -> None:
    found = check(judged, name)
    assert [one.kind for one in found.findings] == [kind]
    assert words.sentence(found, judged) == says


@pytest.mark.parametrize(
    ("kinds", "name", "judged", "says"), WITH_RATIO, ids=["-".join(row[0]) for row in WITH_RATIO]
)
def test_sentence_of_a_check_with_a_ratio(
    kinds: list[str], name: str, judged: Case, says: str
) -> None:
    found = check(pinned(judged), name)
    assert [one.kind for one in found.findings] == kinds
    assert words.sentence(found, judged) == says


@pytest.mark.parametrize(
    ("kinds", "name", "judged", "says"), IN_TURN, ids=["-".join(row[0]) for row in IN_TURN]
)
def test_sentence_of_a_check_against_another_environment(
    kinds: list[str], name: str, judged: Case, says: str
) -> None:
    found = check(pinned(judged), name)
    assert [one.kind for one in found.findings] == kinds
    assert words.sentence(found, judged) == says


@pytest.mark.parametrize(
    ("kinds", "name", "judged", "says"),
    REQUIRED_WITHOUT_RATIO,
    ids=[row[0][-1] for row in REQUIRED_WITHOUT_RATIO],
)
def test_sentence_of_a_required_check_without_a_ratio(
    kinds: list[str], name: str, judged: Case, says: str
) -> None:
    found = check(judged, name)
    assert [one.kind for one in found.findings] == kinds
    assert words.sentence(found, judged) == says


def test_every_finding_that_names_the_reference_has_both_its_sentences_here() -> None:
    """And no sentence about another environment speaks of a baseline."""
    found = [
        (one, name, judged) for _, name, judged, _ in ALL for one in check(judged, name).findings
    ]

    there = Entry.of("test_a.py::test_b", "gpu", SPEC, [MEASUREMENT])

    def alone(finding: Finding, name: str, judged: Case) -> str:
        return words.sentence(Check(name=name, status="fail", findings=(finding,)), judged)

    naming = {
        one.kind
        for one, name, judged in found
        if alone(one, name, replace(judged, against=there))
        != alone(one, name, replace(judged, against=None))
    }
    assert naming == {"no_gpu_time_before", "other_gpu", "improved", "host_side"}
    for table in (WITH_RATIO + WITHOUT_RATIO, IN_TURN):
        assert naming <= {kind for kinds, *_ in table for kind in kinds}
    assert not [says for *_, says in IN_TURN if "baseline" in says or "--vramfit" in says]


def kinds_in_source() -> set[str]:
    """Every kind that the source names: in ``Finding(kind=...)``, in the loop ``for kind in (...)``
    and where ``kind`` is assigned.
    """
    places: list[ast.expr] = []
    for file in (*Path(verdict.__file__).parent.glob("*.py"), Path(gate.__file__)):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.For) and ast.unparse(node.target) == "kind":
                places.append(node.iter)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "kind":
                places.append(node.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Finding":
                assert not node.args
                places += [one.value for one in node.keywords if one.arg == "kind"]
    return {
        node.value
        for place in places
        for node in ast.walk(place)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_finding_of_the_verdict_has_its_sentence_here() -> None:
    """A witness that could not look has no check."""
    assert kinds_in_source() - {"blind"} == {kind for kinds, *_ in ALL for kind in kinds}


def test_what_is_not_quantised_is_said_beside_how_much_that_is() -> None:
    judged = case(with_evidence(quantised_elements=0, unquantised={"mlp.experts": GIB}))
    assert words.sentence(check(judged, "trained"), judged) == (
        "90,000 of 90,000 matrix elements are not in nf4 as asked; 1.0 GiB of the base is not "
        "quantised: mlp.experts"
    )


def test_several_findings_are_one_sentence() -> None:
    judged = case(with_evidence(loss=None, unmoved=("a",)))
    assert words.sentence(check(judged, "trained"), judged) == (
        "the loss is not finite; did not move: a"
    )


@pytest.mark.parametrize(
    ("name", "judged", "figure", "says"),
    [
        pytest.param("no_oom", case(), "", "", id="no OOM"),
        pytest.param("no_oom", case(RAN_OUT), "2.0 GiB asked for, 512 MiB free", None, id="OOM"),
        pytest.param(
            "no_oom",
            case(replace(RAN_OUT, oom=replace(OOM, requested_bytes=None, free_bytes=None))),
            "",
            None,
            id="OOM not observed",
        ),
        pytest.param(
            "peak_within_vram",
            case(),
            "10.5 GiB of 23.0 GiB",
            "46 % of the card, 512 MiB of it outside the allocator",
            id="peak within",
        ),
        pytest.param(
            "peak_within_vram",
            case(with_memory(outside_allocator_bytes=None)),
            "10.0 GiB of 23.0 GiB",
            "43 % of the card",
            id="peak without an allocator",
        ),
        pytest.param(
            "peak_within_vram",
            case(with_memory(backward_peak_bytes=23 * GIB, outside_allocator_bytes=0)),
            "23.0 GiB of 23.0 GiB",
            "100 % of the card",
            id="peak fills the card",
        ),
        pytest.param(
            "peak_within_vram",
            case(MEASUREMENT, claim(card_bytes=8 * GIB)),
            "10.5 GiB of 8.0 GiB",
            "131 % of the card, 2.5 GiB over; no error was raised",
            id="peak over",
        ),
        pytest.param(
            "headroom",
            case(MEASUREMENT, TENTH),
            "10.0 GiB of 13.9 GiB",
            "allocated; 1.6 GiB must stay free",
            id="headroom",
        ),
        pytest.param(
            "headroom",
            case(MEASUREMENT, claim(card_bytes=GIB, headroom=Headroom(size_bytes=2 * GIB))),
            "10.0 GiB of 0 B",
            "allocated; 2.0 GiB must stay free",
            id="headroom larger than the card",
        ),
        pytest.param(
            "headroom", tried_again(MEASUREMENT), "15.0 GiB of 13.9 GiB", None, id="second run"
        ),
        pytest.param(
            "eval",
            case(with_phases(eval=9 * GIB), claim(phases=("eval",))),
            "9.5 GiB of 23.0 GiB",
            "41 % of the card, 512 MiB of it outside the allocator",
            id="phase within",
        ),
        pytest.param(
            "merge",
            case(with_phases(merge=9 * GIB), claim(phases=("merge",), card_bytes=8 * GIB)),
            "9.5 GiB of 8.0 GiB",
            "119 % of the card, 1.5 GiB over; no error was raised",
            id="phase over",
        ),
        pytest.param(
            "save",
            case(with_phases(save=None), claim(phases=("save",))),
            "2.0 GiB asked for, 512 MiB free",
            None,
            id="phase out of memory",
        ),
        pytest.param("resident", case(), "all on the card", "", id="resident"),
        pytest.param(
            "resident",
            case(replace(MEASUREMENT, residency=replace(RESIDENCY, off_card_bytes=46 * MIB))),
            "46.0 MiB off the card",
            "",
            id="off the card",
        ),
        pytest.param("trained", case(), "8 of 8 steps applied", "", id="trained"),
        pytest.param("steady", case(), "no growth", "", id="steady"),
        pytest.param(
            "steady",
            case(with_memory(allocated_after_step_bytes=(9, 5), reserved_after_step_bytes=None)),
            "no growth",
            "",
            id="less in the end",
        ),
        pytest.param(
            "steady",
            case(with_memory(allocated_after_step_bytes=(0, 3 * MIB))),
            "3.0 MiB more",
            None,
            id="grew",
        ),
        pytest.param(
            "max_step",
            case(MEASUREMENT, claim(max_step_ns=2_000 * MS)),
            "250 ms of 2.0 s",
            "",
            id="fast enough",
        ),
        pytest.param(
            "max_step",
            case(MEASUREMENT, claim(max_step_ns=200 * MS)),
            "250 ms of 200 ms",
            "1.25 times the limit",
            id="too slow",
        ),
        pytest.param("gpu_time", case(), "", None, id="unchecked"),
        pytest.param("step_time", compared(), "250.00 ms of 312.50 ms", None, id="step time"),
        pytest.param("gpu_time", compared(), "225.00 ms of 236.25 ms", None, id="GPU time"),
        pytest.param(
            "gpu_time", compared(NOISY), "236.25 ms of 236.25 ms", None, id="GPU time in doubt"
        ),
        pytest.param(
            "peak_baseline", compared(), "10,240.0 MiB of 10,342.4 MiB", None, id="peak baseline"
        ),
    ],
)
def test_figure_and_sentence_of_a_check(
    name: str, judged: Case, figure: str, says: str | None
) -> None:
    """None: the sentence of its finding, as above."""
    found = check(judged, name)
    assert words.figure(found) == figure
    assert says is None or words.sentence(found, judged) == says


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_oom", "no OOM"),
        ("peak_within_vram", "peak within VRAM"),
        ("eval", "eval"),
        ("save", "save"),
        ("merge", "merge"),
        ("resident", "resident"),
        ("headroom", "headroom"),
        ("trained", "trained"),
        ("steady", "steady"),
        ("max_step", "max step"),
        ("step_time", "step time"),
        ("gpu_time", "GPU time"),
        ("peak_baseline", "peak baseline"),
    ],
)
def test_name_of_a_check(name: str, text: str) -> None:
    assert name in CHECKS
    assert words.check_name(name) == text


DEVICE = "Card (24.0 GiB, 256 MiB held by others)"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (claim(), f"Small, QLoRA rank 16, seq 512, batch 2 on {DEVICE}"),
        (claim(FULL), f"Small, full fine-tuning, seq 512, batch 2 on {DEVICE}"),
        (
            claim(card_bytes=17_094_934_528),
            "Small, QLoRA rank 16, seq 512, batch 2 for a card of 15.9 GiB, on Card",
        ),
    ],
)
def test_title(asked: Claim, text: str) -> None:
    assert words.title(case(MEASUREMENT, asked)) == text


def test_title_of_a_case_on_a_card_that_another_passes_for() -> None:
    emulated = replace(MEASUREMENT.device, emulated_on="Large card", overflow="spill")
    asked = claim(card_bytes=24 * GIB, overflow="spill")
    assert words.title(case(replace(MEASUREMENT, device=emulated), asked)) == (
        "Small, QLoRA rank 16, seq 512, batch 2 on Card (24.0 GiB), its memory emulated on Large "
        "card"
    )


@pytest.mark.parametrize(
    ("measurement", "says"),
    [
        (
            with_change(2 * GIB, "in the timed steps"),
            (
                "others took 2.0 GiB of the GPU in the timed steps, and the case is nearer than "
                "that to its limit"
            ),
        ),
        (
            with_change(3 * GIB, "before memory ran out", RAN_OUT),
            (
                "out of memory in the backward of step 1, and others took 3.0 GiB of the GPU "
                "before memory ran out"
            ),
        ),
    ],
)
def test_why_a_case_is_contaminated(measurement: Measurement, says: str) -> None:
    assert measurement.device.held_change is not None
    assert words.contamination(measurement.device.held_change, measurement) == says


UNUSUAL: list[tuple[dict[str, Any], str]] = [
    ({"accumulation": 4}, "accumulation 4"),
    ({"precision": "fp16", "dtype": "fp16"}, "fp16"),
    ({"precision": "fp32", "dtype": "fp32", "autocast": False}, "fp32"),
    ({"dtype": "fp32"}, "base in fp32"),
    ({"autocast": False}, "no autocast"),
    ({"optimizer": "adamw_8bit"}, "adamw_8bit"),
    ({"max_grad_norm": None}, "max_grad_norm None"),
    ({"max_grad_norm": 0.5}, "max_grad_norm 0.5"),
    ({"optimizer": "paged_adamw"}, "paged_adamw"),
    ({"attention": "eager"}, "eager attention"),
    ({"attention": "flash_attention_2"}, "flash_attention_2 attention"),
    ({"adapter_dtype": "bf16"}, "adapters in bf16"),
    ({"checkpointing": True}, "checkpointing"),
    ({"checkpointing": "reentrant"}, "reentrant checkpointing"),
    ({"modules_to_save": ("embed_tokens", "lm_head")}, "modules_to_save embed_tokens+lm_head"),
    ({"dora": True}, "DoRA"),
    ({"rslora": True}, "rsLoRA"),
    ({"quant": "fp4"}, "fp4"),
    ({"quant": "int8", "double_quant": None}, "int8"),
    ({"liger": True}, "liger"),
    ({"compile": True}, "compiled"),
    ({"alloc_conf": "a:1,b:2"}, "allocator a:1,b:2"),
    ({"lengths": "varied"}, "varied lengths"),
    ({"alpha": 16.0}, "alpha 16.0"),
    ({"dropout": 0.0}, "dropout 0.0"),
    ({"targets": "qv"}, "targets qv"),
    ({"targets": ("q_proj", "v_proj")}, "targets q_proj+v_proj"),
    ({"double_quant": False}, "no double_quant"),
    ({"kbit_upcast": False}, "no kbit_upcast"),
]


@pytest.mark.parametrize(("changes", "says"), UNUSUAL, ids=[row[1] for row in UNUSUAL])
def test_config_says_what_is_not_a_default(changes: dict[str, Any], says: str) -> None:
    spec = replace(SPEC, **changes)
    assert words.config(spec) == f"Small, QLoRA rank 16, seq 512, batch 2, {says}"


def test_config_says_all_that_is_not_a_default() -> None:
    spec = replace(FULL, method="lora", rank=8, alpha=16.0, dropout=0.1, targets="qv", seq=64)
    assert words.config(replace(spec, batch=1, optimizer="sgd", accumulation=2)) == (
        "Small, LoRA rank 8, seq 64, batch 1, accumulation 2, base in fp32, sgd, dropout 0.1, "
        "targets qv"
    )


def test_full_training_s_default_base_is_in_fp32() -> None:
    assert words.config(replace(FULL, dtype="bf16")) == (
        "Small, full fine-tuning, seq 512, batch 2, base in bf16"
    )


def test_no_field_goes_unsaid() -> None:
    """Two specs of one model that need other memory never bear the same words."""
    always = {"model", "method", "rank", "seq", "batch"}
    of_the_model = {"config", "weights", "checkpoint", "revision"}
    said = {field for changes, _ in UNUSUAL for field in changes}
    assert always | of_the_model | said == {field.name for field in fields(TrainSpec)}
