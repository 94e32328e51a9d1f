"""The parts of a peak sum to it, and each has the bytes that its tensors have on a CPU."""

from __future__ import annotations

import bitsandbytes.functional
import pytest
import torch
from bitsandbytes.nn import Params4bit
from measuring import LEAST, measured
from tracing import CARD, CPU, block_bytes, one_thread  # noqa: F401

from pytest_vramfit.estimating.allocator_settings import AllocatorSettings
from pytest_vramfit.estimating.estimate import Estimator
from pytest_vramfit.estimating.replay import Replay, ledger
from pytest_vramfit.estimating.run import trace
from pytest_vramfit.events import LEDGER, Action
from pytest_vramfit.measuring import case
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.training import adapters, model

SETTINGS = AllocatorSettings()


def at(traced, mark, nth=1):
    """The ledger when the nth mark of this name is reached."""
    marks = (
        index
        for index, (action, number, _) in enumerate(traced.events)
        if action is Action.MARK and traced.marks[number] == mark
    )
    *_, event = (index for _, index in zip(range(nth), marks, strict=False))
    return ledger(traced, SETTINGS, event)


def real(spec):
    """The case's model on the CPU, ready to be trained."""
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    built = model.build(outline, spec, torch.device("cpu"))
    return adapters.prepare(built, spec, adapted)


def bytes_of(tensors):
    """Of whole blocks, each storage once."""
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    return sum(block_bytes(one.nbytes()) for one in storages.values())


def tables(parameter):
    """What a quantised weight has beside its values."""
    if not isinstance(parameter, Params4bit):
        return [parameter.SCB] if hasattr(parameter, "SCB") else []
    state = parameter.quant_state
    nested = [state.state2.absmax, state.state2.code, state.offset] if state.nested else []
    return [state.absmax, state.code, *nested]


LOADED = [
    {},
    {"double_quant": False, "modules_to_save": ["lm_head"], "adapter_dtype": "bf16"},
    {"quant": "int8", "kbit_upcast": False},
    {"method": "lora", "dora": True, "dtype": "fp16"},
    {"method": "full", "dtype": "bf16"},
]


@pytest.mark.parametrize("keywords", LOADED, ids=str)
def test_before_the_first_step_it_has_the_model_s_tensors(keywords, spec_of):
    spec = spec_of(**keywords)
    trained = real(spec)
    named = dict(trained.named_parameters())
    beside = {n: one for n, one in named.items() if adapters.is_adapter(n) or adapters.is_saved(n)}
    base = [one for name, one in named.items() if name not in beside]
    quantised = [table for one in base for table in tables(one)]
    quantised += bitsandbytes.functional.name2qmap.values()
    seen = at(trace(spec, CARD), "settled")
    assert {name: size for name, size in seen.items() if name != "workspace"} == {
        **dict.fromkeys(LEDGER[:-1], 0),
        "weights": bytes_of([*base, *trained.buffers()]),
        "adapters": bytes_of(beside.values()),
        "quantisation": bytes_of(quantised),
    }


PEAKS = [
    {},
    {"method": "lora", "checkpointing": True},
    {"method": "full"},
    {"method": "full", "optimizer": "paged_adamw_8bit"},
    {"modules_to_save": ["lm_head"], "optimizer": "paged_adamw", "batch": 2, "seq": 300},
    {"attention": "eager", "precision": "fp16", "accumulation": 2},
]
WITHOUT = {"qlora": set(), "lora": {"quantisation"}, "full": {"quantisation", "adapters"}}


@pytest.mark.parametrize("keywords", PEAKS, ids=str)
def test_the_parts_sum_to_the_peak(keywords, spec_of):
    spec = spec_of(**keywords)
    memory = Estimator().estimate(spec, CARD).memory
    parts = dict(memory.ledger)
    assert parts.pop("managed") == memory.managed_bytes
    assert sum(parts.values()) == memory.peak_allocated_bytes
    assert parts.keys() == set(LEDGER)
    assert {name for name in ("adapters", "quantisation") if parts[name] == 0} == WITHOUT[
        spec.method
    ]
    assert parts["weights"] > 0


@pytest.mark.parametrize(
    "keywords", [{"method": "lora"}, {"method": "full", "accumulation": 2}], ids=str
)
def test_when_the_optimizer_begins_it_has_every_gradient(keywords, spec_of):
    spec = spec_of(**keywords)
    trainable = [one for one in real(spec).parameters() if one.requires_grad]
    for nth in (1, 2):
        parts = at(trace(spec, CARD), "optimizer begins", nth)
        assert parts["gradients"] == bytes_of(trainable)
        assert parts["logits"] == 0


def states_of(optimizer, parameter):
    """The sizes of a parameter's states. Adafactor has the magnitude beside rows and columns; 8 bit
    has a scale for each 256 elements, and keeps few elements in float32.
    """
    count = parameter.numel()
    if optimizer == "adamw":
        return [4 * count] * 2
    if optimizer == "sgd":
        return []
    if optimizer == "adafactor":
        return [4, *(4 * size for size in parameter.shape)]
    if count < 4096:
        return [4 * count] * 2
    return [count, 4 * -(count // -256)] * 2


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor", "adamw_8bit"])
def test_after_the_first_step_it_has_the_optimizer_s_states(optimizer, spec_of):
    spec = spec_of(method="full", optimizer=optimizer)
    trained = real(spec)
    sizes = [size for one in trained.parameters() for size in states_of(optimizer, one)]
    tables_of_8_bit = 2 * 1024 if optimizer == "adamw_8bit" else 0
    seen = at(trace(spec, CARD), "forward begins", 2)
    assert seen["optimizer"] == sum(map(block_bytes, sizes)) + tables_of_8_bit
    assert seen["gradients"] == 0


@pytest.mark.parametrize(("optimizer", "itemsize"), [("paged_adamw", 4), ("paged_adamw_8bit", 1)])
def test_states_of_many_elements_are_managed_where_they_are_paged(optimizer, itemsize, spec_of):
    spec = spec_of(method="full", optimizer=optimizer)
    paged = [one.numel() for one in real(spec).parameters() if one.numel() >= 100_000]
    memory = Estimator().estimate(spec, CARD).memory
    assert len(paged) == 2  # the embeddings
    assert memory.managed_bytes == memory.ledger["managed"] == 2 * itemsize * sum(paged)
    unpaged = spec_of(method="full", optimizer=optimizer.removeprefix("paged_"))
    gone = Estimator().estimate(unpaged, CARD).memory.allocated_after_step_bytes[-1]
    assert gone - memory.allocated_after_step_bytes[-1] == memory.managed_bytes


def test_at_the_loss_the_logits_are_three_times_there_in_float32(spec_of):
    """The log-softmax, what comes into its backward pass and what goes out."""
    spec = spec_of(method="lora", seq=64, batch=2)
    traced = trace(spec, CARD)
    ran = Replay(traced, SETTINGS).run()
    parts = ledger(traced, SETTINGS, ran.peak_event)
    assert parts["logits"] == 3 * 4 * spec.tokens * spec.config["vocab_size"]


MEASURED = [
    {},
    {"method": "lora"},
    {"method": "full"},
    {"method": "full", "accumulation": 3, "precision": "fp16"},
    {"checkpointing": True, "optimizer": "adamw_8bit"},
    {"method": "lora", "dora": True, "checkpointing": "reentrant"},
    {"modules_to_save": ["lm_head"], "attention": "eager"},
    {"quant": "fp4", "double_quant": False},
]


@pytest.mark.parametrize("keywords", MEASURED, ids=str)
def test_a_measured_step_has_the_parts_that_were_predicted(keywords, spec_of):
    """To the byte, but for the last step's loss and what the scaler keeps."""
    spec = spec_of(**keywords)
    seen, expected = measured(spec, LEAST).memory, Estimator().estimate(spec, CPU).memory
    parts = dict(seen.ledger)
    assert sum(parts.values()) == seen.peak_allocated_bytes == expected.peak_allocated_bytes
    kept = parts.pop("workspace")
    assert kept <= 3 * 512
    assert {**parts, "activations": parts["activations"] + kept, "workspace": 0} == expected.ledger


def test_a_measured_step_has_the_scales_of_8_bit_weights(spec_of):
    spec = spec_of(quant="int8")
    scales = [module.weight.SCB for module in real(spec).modules() if hasattr(module, "state")]
    assert len(scales) == 14  # seven in each layer
    assert measured(spec, LEAST).memory.ledger["quantisation"] == bytes_of(scales)


def test_compiled_code_has_no_parts(spec_of):
    run = case.CaseRun(spec_of(compile=True), LEAST, CpuBench(), lambda *_: None)
    assert run._ledger(step=None, memory=None) is None


def test_what_a_step_finds_no_room_for_when_it_is_looked_at_is_not_told(spec_of, monkeypatch):
    class OutOfMemory(CpuBench):
        def out_of_memory(self, error, phase, step):
            return error

    def without_room(*_):
        raise MemoryError

    monkeypatch.setattr(case, "take_ledger", without_room)
    seen = measured(spec_of(), LEAST, OutOfMemory())
    assert seen.memory.ledger is None
    assert seen.memory.peak_allocated_bytes > 0
    with pytest.raises(MemoryError):
        measured(spec_of(), LEAST)
