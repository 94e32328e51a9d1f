"""One case on the CPU bench: its bytes against what they must be made of."""

from __future__ import annotations

from dataclasses import replace

import measuring
import pytest
import torch
from measuring import SCHEDULE

from pytest_vramfit.measurement import UnsupportedError
from pytest_vramfit.measuring import cpu
from pytest_vramfit.measuring.case import CaseRun
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.spec import Schedule
from pytest_vramfit.training import model

BLOCK = 512
LINEARS = [
    f"model.layers.0.{name}_proj"
    for name in (
        *("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o"),
        *("mlp.gate", "mlp.up", "mlp.down"),
    )
]
"""Of the first of the tiny model's two layers."""


def rounded(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK) * BLOCK


@pytest.fixture
def bench():
    return CpuBench()


def measured(bench, spec, schedule=SCHEDULE):
    return measuring.measured(spec, schedule, bench)


def model_bytes(spec):
    """Parameters and buffers of the bare model in blocks, worked out from their shapes."""
    outline = model.outline(spec)
    parameters = {id(one): one for one in outline.parameters()}.values()
    size = sum(rounded(one.numel() * one.element_size()) for one in parameters)
    return size, sum(rounded(one.numel() * one.element_size()) for one in outline.buffers())


def test_what_is_left_after_a_step_of_sgd_is_the_model(bench, spec_of):
    spec = spec_of(method="full", optimizer="sgd", precision="fp32")
    parameters, buffers = model_bytes(spec)
    memory = measured(bench, spec).memory
    loss = BLOCK
    assert memory.allocated_after_step_bytes == (parameters + buffers + loss,) * 2


def test_adamw_adds_two_states_and_a_counter_for_each_parameter(bench, spec_of):
    spec = spec_of(method="full", precision="fp32")
    parameters, buffers = model_bytes(spec)
    counters = BLOCK * len(list(model.outline(spec).parameters()))
    memory = measured(bench, spec).memory
    assert memory.allocated_after_step_bytes[-1] == 3 * parameters + buffers + counters + BLOCK


def test_full_fine_tuning_takes_sixteen_bytes_a_parameter(bench, spec_of):
    """Weights, gradients, two states in fp32, and AdamW's square root of one tensor at a time."""
    spec = spec_of(method="full", precision="bf16")
    parameters, _ = model_bytes(spec)
    memory = measured(bench, spec).memory
    largest = max(4 * one.numel() for one in model.outline(spec).parameters())
    assert 4 * parameters <= memory.optimizer_peak_bytes < 4 * parameters + 3 * largest


def test_the_first_step_is_smaller_than_the_steady_ones(bench, spec_of):
    """Adam's states appear at its end, behind the peak of its activations."""
    spec = spec_of(method="lora", seq=256, rank=32)
    memory = measured(bench, spec).memory
    linears = [model.outline(spec).get_submodule(name) for name in LINEARS]
    adapters = spec.rank * 2 * sum(one.in_features + one.out_features for one in linears)
    states_and_counters = 2 * 4 * adapters + 2 * 2 * len(linears) * BLOCK
    grown = memory.peak_allocated_bytes - memory.first_step_peak_allocated_bytes
    assert grown == states_and_counters


@pytest.mark.parametrize("how", [True, "reentrant"])
def test_checkpointing_lowers_the_peak_and_nothing_else(how, bench, spec_of):
    plain = measured(bench, spec_of(method="lora", seq=256)).memory
    checkpointed = measured(bench, spec_of(method="lora", seq=256, checkpointing=how)).memory
    assert checkpointed.peak_allocated_bytes < 0.8 * plain.peak_allocated_bytes
    assert checkpointed.allocated_after_step_bytes == plain.allocated_after_step_bytes


def test_accumulation_keeps_the_gradients_but_not_the_activations(bench, spec_of):
    one = measured(bench, spec_of(method="full", precision="fp32", seq=64)).memory
    four = measured(bench, spec_of(method="full", precision="fp32", seq=64, accumulation=4)).memory
    parameters, _ = model_bytes(spec_of(method="full", precision="fp32"))
    assert four.forward_peak_bytes <= one.forward_peak_bytes + parameters
    assert four.forward_peak_bytes > one.forward_peak_bytes + 0.9 * parameters


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_the_same_case_has_the_same_bytes_again_and_after_another(method, bench, spec_of):
    spec = spec_of(method=method)
    first = measured(bench, spec).memory
    measured(bench, spec_of(method="lora", seq=48))
    assert measured(bench, spec).memory == first
    assert measured(CpuBench(), spec).memory == first


def test_memory_is_steady_over_many_steps(bench, spec_of):
    memory = measured(bench, spec_of(), Schedule(warmup=2, steps=6)).memory
    assert len(set(memory.allocated_after_step_bytes)) == 1


def test_what_an_allocator_knows_is_unknown(bench, spec_of):
    memory = measured(bench, spec_of()).memory
    assert memory.peak_reserved_bytes is None
    assert memory.outside_allocator_bytes is None
    assert memory.allocator_retries is None


def test_a_model_larger_than_the_machine_is_unsupported(bench, spec_of):
    with pytest.raises(UnsupportedError, match=r"needs at least [\d,.]+ GiB"):
        measured(bench, spec_of(model="Llama-2-70B", method="full"))


def test_a_case_of_more_than_two_minutes_is_unsupported(bench, spec_of):
    with pytest.raises(UnsupportedError, match=r"would take about [\d.,]+ minutes, and 2 are"):
        measured(bench, spec_of(model="Qwen2.5-1.5B", seq=4096, batch=4))


def test_a_long_sequence_takes_its_time_in_the_attention(bench, spec_of):
    with pytest.raises(UnsupportedError, match=r"would take about [\d.,]+ minutes, and 2 are"):
        measured(bench, spec_of(seq=100_000, checkpointing=True))


def test_activations_larger_than_the_machine_are_unsupported(bench, spec_of, monkeypatch):
    monkeypatch.setattr(cpu.host, "available_bytes", lambda: 8 * 2**20)
    with pytest.raises(UnsupportedError, match="needs more than the"):
        measured(bench, spec_of(method="lora", seq=1024))


def test_targets_that_do_not_exist_name_those_that_do(bench, spec_of):
    with pytest.raises(model.UnbuildableError) as error:
        measured(bench, spec_of(targets=["q_proj", "qkv"]))
    assert str(error.value) == (
        "targets: 'qkv' is not in this model, whose linear modules are called down_proj, "
        "gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    )


def test_stages_and_samples(bench, spec_of):
    result = measured(bench, spec_of())
    assert len(result.step_ns) == SCHEDULE.steps
    assert set(result.stages_ns) == {
        *("build", "warm-up", "timed", "residency", "proof", "profiled", "ledger"),
    }
    assert sum(result.step_ns) <= result.stages_ns["timed"]
    assert result.environment["torch"] == torch.__version__


def test_progress_goes_through_every_stage(bench, spec_of):
    told = []
    bench.begin(None)
    run = CaseRun(spec_of(), SCHEDULE, bench, lambda *told_now: told.append(told_now))
    run.measure()
    bench.end()
    assert [stage for stage, *_ in told] == [
        "build",
        *["warm-up"] * 3,
        *["timed"] * 3,
        "residency",
        "proof",
        *["profiled"] * 2,  # the first step of it tells that there is no GPU
        "ledger",
    ]


def test_the_digest_of_what_was_measured_is_that_of_what_was_asked(spec_of):
    spec = spec_of()
    assert replace(spec, model="another name").digest == spec.digest


@pytest.mark.parametrize("method", ["lora", "qlora"])
@pytest.mark.parametrize(("adapter_dtype", "size"), [("fp32", 4), ("bf16", 2)])
def test_adapters_are_kept_in_their_dtype(bench, spec_of, method, adapter_dtype, size):
    """And in steady state nothing else depends on it: weights and Adam's two states do."""
    spec = spec_of(method=method, rank=64, adapter_dtype=adapter_dtype)
    result = measured(bench, spec)
    names = {"fp32": "float32", "bf16": "bfloat16"}
    assert set(result.evidence.trainable_dtypes) == {names[adapter_dtype]}
    assert result.evidence.unmoved == ()
    wider = measured(bench, replace(spec, adapter_dtype="fp32"))
    saved = (
        wider.memory.allocated_after_step_bytes[-1] - result.memory.allocated_after_step_bytes[-1]
    )
    assert saved == 3 * (4 - size) * result.evidence.trainable_parameters


def test_eager_attention_keeps_its_scores(bench, spec_of):
    """A matrix of seq x seq for each head, which sdpa does not keep for backward."""
    eager, sdpa = (
        measured(bench, spec_of(method="lora", seq=256, attention=one)).memory
        for one in ("eager", "sdpa")
    )
    scores = 4 * 256 * 256 * 2
    assert eager.forward_peak_bytes - sdpa.forward_peak_bytes > 2 * scores
