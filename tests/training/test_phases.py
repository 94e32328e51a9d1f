"""What follows the training steps: evaluation, saving and merging do what a trainer does."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from measuring import SCHEDULE, judged, measured
from no_meter import METER
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pytest_vramfit.measurement import OutOfMemory, UnsupportedError
from pytest_vramfit.measuring import cpu
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.training import adapters, model, phases
from pytest_vramfit.training.step import Step

CPU = torch.device("cpu")
ALL = replace(SCHEDULE, phases=("eval", "save", "merge"))
IDS = torch.arange(32).view(2, 16)


def trained(spec):
    """A step after a few runs, so that B is not zero."""
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    model.materialise(outline, spec, CPU)
    step = Step(adapters.prepare(outline, spec, adapted), spec, CPU)
    for _ in range(3):
        step.run(METER)
    return step


def logits(subject):
    subject.eval()
    with torch.no_grad():
        return subject(input_ids=IDS).logits.float()


@pytest.fixture
def saved_to(monkeypatch, tmp_path):
    """The folder that ``save`` writes to, which stays."""
    monkeypatch.setattr(
        phases.tempfile, "TemporaryDirectory", lambda: nullcontext(str(tmp_path / "saved"))
    )
    return tmp_path / "saved"


@pytest.mark.parametrize(
    "keywords",
    [
        {"method": "lora"},
        {"method": "lora", "dora": True, "modules_to_save": ["lm_head"]},
        {"method": "qlora"},
        {"method": "qlora", "quant": "fp4", "rslora": True},
        {"method": "qlora", "quant": "int8"},
        {"method": "qlora", "checkpointing": "reentrant"},
        {"method": "full"},
        {"method": "full", "checkpointing": True, "precision": "fp16"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Merge lora module to (4|8)-bit linear may get different")
def test_every_phase_has_a_peak(keywords, spec_of):
    names = ("eval", "save") if keywords["method"] == "full" else ("eval", "save", "merge")
    case = judged(spec_of(**keywords), replace(SCHEDULE, phases=names))
    assert case.outcome == "fits"
    assert tuple(case.measurement.phases) == names
    held = case.measurement.memory.allocated_after_step_bytes[-1]
    for name in names:
        assert case.measurement.phases[name].oom is None
        assert case.measurement.phases[name].peak_bytes >= held, name
        (check,) = (one for one in case.checks if one.name == name)
        assert check.status == "pass"


def test_phases_change_nothing_about_the_steps(spec_of):
    plain, more = (measured(spec_of(method="lora"), one) for one in (SCHEDULE, ALL))
    assert plain.memory == more.memory
    assert (plain.phases, set(more.stages_ns) - set(plain.stages_ns)) == ({}, {"phases"})


def test_evaluation_keeps_its_logits_for_every_sequence(spec_of):
    """Eight sequences more: as many logits in fp32, and no gradients or activations of layers."""
    spec = spec_of(method="lora", precision="fp32", seq=64)
    eight, sixteen = (
        measured(spec, replace(SCHEDULE, phases=("eval",), eval_batch=size)).phases["eval"]
        for size in (8, 16)
    )
    of_logits = 8 * 64 * 1024 * 4
    assert of_logits <= sixteen.peak_bytes - eight.peak_bytes <= 5 * of_logits


def test_each_phase_has_a_peak_of_its_own(spec_of):
    """Saving does not have that of the evaluation before it."""
    schedule = replace(SCHEDULE, phases=("eval", "save"), eval_batch=32)
    result = measured(spec_of(method="lora", seq=64), schedule)
    assert result.phases["save"].peak_bytes < 0.5 * result.phases["eval"].peak_bytes


def test_evaluation_needs_less_than_training_with_the_same_batch(spec_of):
    spec = spec_of(method="lora", seq=128, batch=8)
    result = measured(spec, replace(SCHEDULE, phases=("eval",), eval_batch=8))
    assert result.phases["eval"].peak_bytes < 0.8 * result.memory.peak_allocated_bytes


def test_evaluation_is_without_dropout_and_gradients_and_leaves_training_on(spec_of):
    step = trained(spec_of(method="lora", dropout=0.5))
    before = {name: one.detach().clone() for name, one in step.trainable.items()}
    seen = []

    def see(module, *_):
        seen.append((module.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))

    hook = step.model.get_input_embeddings().register_forward_hook(see)
    phases.run("eval", step, 3)
    hook.remove()
    assert seen == [(False, False, True)]
    assert all(one.training for one in step.model.modules())
    for name, one in step.trainable.items():
        assert torch.equal(one, before[name]), name
        assert one.grad is None, name


def test_evaluation_is_of_full_length_whatever_came_before(spec_of):
    step = trained(spec_of(method="lora", lengths="varied"))
    step.vary_lengths((0.25,))
    shapes = []
    hook = step.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: shapes.append(tuple(args[0].shape))
    )
    phases.run("eval", step, 5)
    hook.remove()
    assert shapes == [(5, 16)]


@pytest.mark.parametrize(
    "keywords", [{}, {"modules_to_save": ["lm_head"]}, {"dora": True}], ids=str
)
def test_saved_adapters_are_what_peft_reads(keywords, spec_of, saved_to):
    spec = spec_of(method="lora", precision="fp32", **keywords)
    step = trained(spec)
    expected = logits(step.model)
    phases.run("save", step, 8)
    assert not (saved_to / "model.safetensors").exists()
    base = model.outline(spec)
    model.materialise(base, spec, CPU)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, saved_to)), expected)


def test_a_saved_model_is_what_transformers_reads(spec_of, saved_to):
    step = trained(spec_of(method="full"))
    phases.run("save", step, 8)
    read = AutoModelForCausalLM.from_pretrained(saved_to, dtype=torch.float32)
    for name, one in step.model.named_parameters():
        assert torch.equal(read.get_parameter(name), one), name


def test_nothing_is_left_on_the_disk(spec_of, tmp_path, monkeypatch):
    monkeypatch.setattr(phases.tempfile, "tempdir", str(tmp_path))
    written = []
    step = trained(spec_of(method="lora"))
    save = type(step.model).save_pretrained

    def spy(self, folder, **more):
        save(self, folder, **more)
        written.extend(one.name for one in tmp_path.glob("*/*"))

    monkeypatch.setattr(type(step.model), "save_pretrained", spy)
    phases.run("save", step, 8)
    assert "adapter_model.safetensors" in written
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "keywords",
    [{}, {"dora": True}, {"rslora": True}, {"modules_to_save": ["lm_head"]}, {"targets": "qv"}],
    ids=str,
)
def test_merging_adds_the_adapters_to_the_base(keywords, spec_of):
    step = trained(spec_of(method="lora", precision="fp32", **keywords))
    expected, base = logits(step.model), step.model.get_base_model()
    with step.model.disable_adapter():
        assert not torch.allclose(logits(step.model), expected, atol=1e-4)
    phases.run("merge", step, 8)
    assert not [name for name, _ in base.named_modules() if "lora" in name]
    torch.testing.assert_close(logits(base), expected, rtol=1e-4, atol=1e-4)


def test_merged_weights_are_base_and_adapter(spec_of):
    spec = spec_of(method="lora", precision="fp32")
    step = trained(spec)
    linear = step.model.get_base_model().model.layers[1].mlp.up_proj
    a, b = linear.lora_A["default"].weight, linear.lora_B["default"].weight
    expected = (linear.base_layer.weight + spec.alpha / spec.rank * b @ a).detach().clone()
    base = step.model.get_base_model()
    phases.run("merge", step, 8)
    torch.testing.assert_close(base.model.layers[1].mlp.up_proj.weight, expected)


def failing(monkeypatch, at):
    """The phase fails; the others run."""
    run = phases.run

    def fail(phase, *rest):
        if phase == at:
            raise MemoryError(phase)
        run(phase, *rest)

    monkeypatch.setattr("pytest_vramfit.measuring.case.phases.run", fail)


def test_a_phase_that_runs_out_of_memory_is_the_last(spec_of, monkeypatch):
    """And takes nothing from what was measured before."""
    failing(monkeypatch, "save")
    oom = OutOfMemory(
        phase="",
        step=0,
        requested_bytes=9,
        free_bytes=5,
        allocated_bytes=7,
        reserved_bytes=None,
        says="no",
    )
    monkeypatch.setattr(
        CpuBench,
        "out_of_memory",
        lambda _, error, phase, step: replace(oom, phase=phase, says=str(error)),
    )
    result = measured(spec_of(method="lora"), ALL)
    assert list(result.phases) == ["eval", "save"]
    assert result.phases["eval"].peak_bytes > 0
    assert result.phases["save"].peak_bytes is None
    assert result.phases["save"].oom == replace(oom, phase="save", says="save")
    assert result.oom is None
    assert result.memory is not None
    assert result.evidence is not None


def test_a_phase_that_fails_otherwise_fails_the_case(spec_of, monkeypatch):
    failing(monkeypatch, "merge")
    with pytest.raises(MemoryError, match="merge"):
        measured(spec_of(method="lora"), ALL)


def test_a_phase_larger_than_the_machine_is_unsupported(spec_of, monkeypatch):
    """Its logits alone are half a GiB."""
    monkeypatch.setattr(cpu.host, "available_bytes", lambda: 2**28)
    schedule = replace(SCHEDULE, phases=("eval",), eval_batch=8192)
    with pytest.raises(UnsupportedError, match="it needs more than the"):
        measured(spec_of(method="lora"), schedule)
