"""A step that does not train what was asked is found out, each way by its own evidence."""

from __future__ import annotations

import pytest
import torch
from no_meter import METER

from pytest_vramfit.measuring.case import CaseRun
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.spec import Claim, Limits, Schedule
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.proof import Proof, fingerprints
from pytest_vramfit.training.step import Step
from pytest_vramfit.verdict.trained import trained

CPU = torch.device("cpu")
SCHEDULE = Schedule(warmup=2, steps=1)


class Rig:
    """A step and its proof, with places to break them."""

    def __init__(self, spec):
        self.spec = spec
        outline = model.outline(spec)
        adapted = adapters.targets(outline, spec)
        model.materialise(outline, spec, CPU)
        self.step = Step(adapters.prepare(outline, spec, adapted), spec, CPU)
        self.proof = Proof(self.step, spec, adapted)

    def evidence(self):
        self.step.run(METER)
        self.proof.watched_step(METER)
        self.step.run(METER)
        return self.proof.evidence()

    def check(self):
        claim = Claim(spec=self.spec, limits=Limits(), schedule=SCHEDULE)
        return trained(claim, "cpu", self.evidence())

    def findings(self):
        return {one.kind for one in self.check().findings}


@pytest.fixture
def rig(spec_of):
    return lambda **keywords: Rig(spec_of(**keywords))


@pytest.mark.parametrize(
    "keywords",
    [
        {"method": "qlora"},
        {"method": "qlora", "kbit_upcast": False, "double_quant": False},
        {"method": "qlora", "checkpointing": True, "precision": "fp16"},
        {"method": "qlora", "targets": "qv"},
        {"method": "lora", "targets": "attention", "autocast": False},
        {"method": "lora", "targets": ["q_proj", "down_proj"], "precision": "fp32"},
        {"method": "full"},
        {"method": "full", "dtype": "bf16", "autocast": False},
        {"method": "full", "optimizer": "sgd", "precision": "fp32", "accumulation": 3},
        {"method": "lora", "optimizer": "sgd", "seq": 512},
        {"method": "qlora", "optimizer": "sgd", "max_grad_norm": None},
        {"method": "qlora", "optimizer": "adamw_8bit", "rank": 64},
        {"method": "full", "optimizer": "adamw_fused", "checkpointing": True, "batch": 2},
        {"method": "qlora", "modules_to_save": ["lm_head"], "dora": True, "rslora": True},
        {"method": "lora", "modules_to_save": ["model.norm", "lm_head"], "precision": "fp32"},
        {"method": "lora", "modules_to_save": ["q_proj"], "targets": "qv"},
    ],
    ids=str,
)
def test_a_right_step_passes(keywords, rig):
    assert rig(**keywords).check().findings == ()


def test_a_compiled_step_is_watched_uncompiled(rig, monkeypatch):
    """Hooks do not run in compiled code. The backend that compiles nothing is quick."""
    compiled = []
    compile_it = torch.nn.Module.compile

    def compile_eagerly(self):
        compiled.append(self)
        compile_it(self, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compile_eagerly)
    made = rig(method="lora", compile=True, targets="qv")
    assert made.check().findings == ()
    assert compiled == [made.step.model]
    torch._dynamo.reset()


def test_a_frozen_adapter(rig):
    broken = rig()
    name = next(iter(broken.step.trainable))
    broken.step.trainable[name].requires_grad_(False)
    assert broken.findings() >= {"without_gradient", "unmoved"}


def test_an_optimizer_that_does_nothing(rig):
    broken = rig()
    for group in broken.step._optimizer.param_groups:
        group["lr"] = 0.0
    assert broken.findings() == {"unmoved", "zero_gradient"}  # A has no gradient while B is 0


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_checkpointed_blocks_without_gradients(rig):
    """The classic: frozen inputs to reentrant checkpointing leave every adapter untrained."""
    broken = rig(checkpointing=True)
    inner = broken.step.model
    inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    embedding = inner.get_input_embeddings()
    embedding._forward_hooks.clear()
    with pytest.raises(RuntimeError, match="does not require grad"):
        broken.check()


def test_a_base_that_is_trained_along(rig):
    broken = rig(method="lora")
    base = dict(broken.step.model.named_parameters())
    norm = next(one for name, one in base.items() if "norm" in name)

    def shift(*_):
        norm.data.add_(1)

    broken.step.model.get_input_embeddings().register_forward_hook(shift)
    assert broken.findings() == {"base_changed"}


def test_a_base_that_is_trainable(rig, spec_of):
    broken = rig(method="lora")
    base = dict(broken.step.model.named_parameters())
    next(one for name, one in base.items() if "norm" in name).requires_grad_(True)
    assert "wrongly_trainable" in {
        one.kind
        for one in trained(
            Claim(spec=broken.spec, limits=Limits(), schedule=SCHEDULE),
            "cpu",
            _again(broken).evidence(),
        ).findings
    }


def _again(broken):
    """The rig with its step made anew, so that it takes what is trainable now."""
    broken.step = Step(broken.step.model, broken.spec, CPU)
    broken.proof = Proof(broken.step, broken.spec, broken.proof._adapted)
    return broken


def test_fewer_adapters_than_asked(rig, spec_of):
    attention = rig(targets="attention")
    attention.proof._adapted = adapters.targets(model.outline(attention.spec), spec_of())
    assert attention.findings() == {"adapters_missing"}


def test_more_adapters_than_asked(rig, spec_of):
    everywhere = rig()
    everywhere.proof._adapted = adapters.targets(model.outline(spec_of()), spec_of(targets="qv"))
    assert everywhere.findings() == {"unexpected_adapters"}


def test_checkpointing_that_is_not_there(rig, spec_of):
    broken = rig()
    broken.spec = spec_of(checkpointing=True)
    assert broken.findings() == {"other_layer_runs"}


def test_checkpointing_that_nobody_asked_for(rig, spec_of):
    broken = rig(checkpointing=True)
    broken.spec = spec_of()
    assert broken.findings() == {"other_layer_runs"}


def test_evaluation_mode(rig):
    """Checkpointing is off in it, and so is dropout."""
    broken = rig(checkpointing=True)
    broken.step.model.eval()
    assert broken.findings() == {"not_training", "other_layer_runs"}


def test_timed_steps_that_do_not_step(rig):
    """What moved before them is no evidence."""
    broken = rig()
    watched = broken.proof.watched_step

    def and_then_nothing(meter):
        peaks = watched(meter)
        broken.step._optimizer.step = lambda *_: None
        return peaks

    broken.proof.watched_step = and_then_nothing
    assert broken.findings() == {"unmoved"}


def test_another_rank(rig, spec_of):
    broken = rig(rank=4)
    broken.proof._spec = broken.spec = spec_of(rank=8)
    assert "adapters_missing" in broken.findings()


def test_shorter_sequences(rig):
    broken = rig()
    broken.step.vary_lengths((0.5,))
    assert broken.findings() == {"other_batches"}


def test_fewer_micro_batches(rig, spec_of):
    broken = rig(accumulation=3)
    broken.step._spec = spec_of(accumulation=2)
    assert broken.findings() == {"other_batches", "other_layer_runs"}


def test_an_unquantised_base(rig, spec_of):
    broken = rig(method="lora")
    qlora = spec_of(method="qlora", kbit_upcast=False)
    broken.spec = broken.proof._spec = qlora
    assert broken.findings() == {"not_quantised", "unquantised"}


FORMATS = {
    "nf4": {"quant": "nf4"},
    "nf4, single": {"quant": "nf4", "double_quant": False},
    "fp4": {"quant": "fp4"},
    "int8": {"quant": "int8"},
}


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ("nf4", "nf4, single"),
        ("nf4, single", "nf4"),
        ("fp4", "nf4"),
        ("nf4", "int8"),
        ("int8", "fp4"),
    ],
)
def test_another_quantisation(asked, made, rig, spec_of):
    broken = rig(**FORMATS[made])
    broken.spec = broken.proof._spec = spec_of(**FORMATS[asked])
    assert broken.findings() == {"not_quantised", "unquantised"}


def test_an_int8_base_that_is_not_quantised(rig, spec_of):
    broken = rig(method="lora")
    broken.spec = broken.proof._spec = spec_of(quant="int8", kbit_upcast=False)
    assert broken.findings() == {"not_quantised", "unquantised"}


def test_some_linears_that_are_not_quantised_are_named(rig):
    """Three of the seven of each layer, more than half of the elements."""
    broken = rig()
    for layer in broken.step.model.get_base_model().model.layers:
        for name in ("gate_proj", "up_proj", "down_proj"):
            linear = getattr(layer.mlp, name).base_layer
            whole = torch.nn.Parameter(
                torch.zeros(linear.out_features, linear.in_features, dtype=torch.bfloat16), False
            )
            linear.weight = whole
            linear.forward = lambda x, whole=whole: x @ whole.t().to(x.dtype)
    (size, *places) = next(
        one.names for one in broken.check().findings if one.kind == "unquantised"
    )
    assert int(size) == 2 * 3 * 2 * 128 * 384
    assert sorted(places) == [
        f"model.layers.*.mlp.{n}_proj.base_layer" for n in ("down", "gate", "up")
    ]


SAVED = {"modules_to_save": ["lm_head"]}


def test_a_saved_module_that_is_frozen(rig):
    broken = rig(**SAVED)
    for name, one in broken.step.model.named_parameters():
        if "modules_to_save" in name:
            one.requires_grad_(False)
    assert _again(broken).findings() == {"not_saved", "wrongly_trainable"}


def test_a_saved_module_that_stops_training(rig):
    broken = rig(**SAVED)
    saved = next(name for name in broken.step.trainable if "modules_to_save" in name)
    broken.step.trainable[saved].requires_grad_(False)
    findings = broken.check().findings
    assert {one.kind for one in findings} == {"without_gradient", "unmoved"}
    assert {one.names for one in findings} == {(saved,)}


def test_a_saved_module_that_nobody_saved(rig, spec_of):
    broken = rig()
    broken.spec = broken.proof._spec = spec_of(**SAVED)
    assert broken.findings() == {"not_saved"}


def test_a_saved_module_whose_original_is_trained(rig):
    broken = rig(**SAVED)
    head = broken.step.model.get_base_model().lm_head
    head.original_module.weight.requires_grad_(True)
    findings = _again(broken).check().findings
    assert {one.kind for one in findings} >= {"wrongly_trainable", "without_gradient"}


def test_a_saved_module_in_another_dtype(rig):
    broken = rig(**SAVED)
    saved = next(one for name, one in broken.step.trainable.items() if "modules_to_save" in name)
    saved.data = saved.data.bfloat16()
    assert _again(broken).findings() == {"trainable_dtype"}


def test_a_magnitude_that_does_not_move(rig):
    broken = rig(method="lora", dora=True)
    name, still = next(
        (name, one) for name, one in broken.step.trainable.items() if "magnitude" in name
    )
    for group in broken.step._optimizer.param_groups:
        group["params"] = [one for one in group["params"] if one is not still]
    findings = broken.check().findings
    assert [(one.kind, one.names) for one in findings] == [("unmoved", (name,))]


@pytest.mark.parametrize("setting", ["dora", "rslora"])
@pytest.mark.parametrize("asked", [True, False])
def test_another_kind_of_adapter(setting, asked, rig, spec_of):
    broken = rig(method="lora", **{setting: not asked})
    broken.spec = broken.proof._spec = spec_of(method="lora", **{setting: asked})
    assert broken.findings() == {"adapters_missing"}


def test_another_alpha(rig, spec_of):
    broken = rig(method="lora", alpha=4)
    broken.spec = broken.proof._spec = spec_of(method="lora", alpha=16)
    assert broken.findings() == {"adapters_missing"}


def test_a_base_without_the_upcast(rig, spec_of):
    broken = rig(kbit_upcast=False)
    broken.spec = spec_of(kbit_upcast=True)
    assert broken.findings() == {"not_upcast"}


def test_another_dtype(rig, spec_of):
    broken = rig(method="full")
    broken.spec = spec_of(method="full", dtype="bf16")
    assert broken.findings() == {"trainable_dtype"}


def test_gradients_that_are_not_finite(rig):
    broken = rig()
    first = next(iter(broken.step.trainable.values()))
    first.register_hook(lambda gradient: gradient * float("nan"))
    findings = broken.findings()
    assert "nonfinite_gradient" in findings


def test_a_scaler_that_never_lets_a_step_through(spec_of, rig):
    broken = rig(precision="fp16")
    first = next(iter(broken.step.trainable.values()))
    first.register_hook(lambda gradient: gradient * float("inf"))
    check = broken.check()
    assert check.value == 0
    assert "steps_skipped" in {one.kind for one in check.findings}


def test_a_case_with_a_scaler_warms_up_until_steps_are_applied(spec_of):
    """The scale starts at 2^16; what overflows is skipped, and does not count as warm-up."""
    spec = spec_of(precision="fp16", method="full", model="tiny")
    bench = CpuBench()
    bench.begin(None)
    try:
        run = CaseRun(spec, SCHEDULE, bench, lambda *_: None)
        evidence = run.measure().evidence
    finally:
        bench.end()
    assert evidence is not None
    assert evidence.applied_steps == 3


def test_a_fingerprint_changes_with_any_bit():
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        tensor = torch.ones(13, 7).to(dtype)
        before = fingerprints([("t", tensor)])
        assert fingerprints([("t", tensor.clone())]) == before
        for index in (0, 45, 90):
            raw = tensor.clone().view(-1).view(torch.uint8)
            raw[index * raw.numel() // 91] ^= 1
            assert fingerprints([("t", raw)]) != before, (dtype, index)
