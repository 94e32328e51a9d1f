"""Every setting that runs on a CPU trains and passes its proof, alone and beside others; the others
say what they need.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from measuring import LEAST, SCHEDULE, judged, measured
from no_meter import METER

from pytest_vramfit.measurement import UnsupportedError
from pytest_vramfit.measuring import cpu
from pytest_vramfit.measuring.cpu import CpuBench
from pytest_vramfit.spec import Schedule
from pytest_vramfit.training import adapters, model
from pytest_vramfit.training.config import UnbuildableError
from pytest_vramfit.training.step import Step

SETTINGS = [
    {"quant": "fp4"},
    {"quant": "fp4", "double_quant": False, "dora": True, "accumulation": 2},
    {"quant": "fp4", "checkpointing": "reentrant", "optimizer": "adamw_8bit"},
    {"quant": "int8"},
    {"quant": "int8", "checkpointing": "reentrant", "modules_to_save": ["lm_head"]},
    {"quant": "int8", "kbit_upcast": False, "optimizer": "adafactor", "rslora": True},
    {"quant": "int8", "precision": "fp16"},
    {"quant": "int8", "precision": "fp32", "checkpointing": True},
    {"dora": True, "checkpointing": "reentrant", "precision": "fp16"},
    {"dora": True, "kbit_upcast": False, "adapter_dtype": "bf16"},
    {"rslora": True, "optimizer": "adafactor", "accumulation": 2},
    {"modules_to_save": ["embed_tokens", "lm_head"], "kbit_upcast": False, "checkpointing": True},
    {"modules_to_save": ["lm_head"], "precision": "fp16", "rslora": True},
    {"modules_to_save": ["norm"], "checkpointing": "reentrant", "targets": "attention"},
    {"checkpointing": "reentrant", "kbit_upcast": False, "targets": "qv"},
    {"method": "lora", "dora": True},
    {"method": "lora", "dora": True, "rslora": True, "modules_to_save": ["lm_head"]},
    {"method": "lora", "checkpointing": "reentrant", "precision": "fp32", "optimizer": "adafactor"},
    {"method": "lora", "checkpointing": "reentrant", "modules_to_save": ["embed_tokens"]},
    {"method": "lora", "modules_to_save": ["mlp"], "adapter_dtype": "bf16"},
    {"method": "lora", "modules_to_save": ["model.embed_tokens"], "dtype": "fp32"},
    {"method": "lora", "alloc_conf": "expandable_segments:True", "dropout": 0},
    {"method": "full", "checkpointing": "reentrant", "optimizer": "adafactor"},
    {"method": "full", "checkpointing": "reentrant", "precision": "fp16", "accumulation": 2},
    {"method": "full", "optimizer": "adafactor", "dtype": "bf16", "autocast": False},
]


@pytest.mark.parametrize("keywords", SETTINGS, ids=str)
def test_it_trains_what_was_asked(keywords, spec_of):
    case = judged(spec_of(**keywords))
    (trained,) = (one for one in case.checks if one.name == "trained")
    assert (case.outcome, trained.findings) == ("fits", ())


TIED = {
    "model_type": "qwen2",
    "tie_word_embeddings": True,
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_a_tied_embedding_is_trained_as_copies_of_its_own(saved, method, spec_of):
    case = judged(spec_of(model=TIED, method=method, modules_to_save=saved))
    evidence = case.measurement.evidence
    assert case.outcome == "fits"
    assert set(evidence.saved) == set(saved)
    assert sum(evidence.saved_dtypes.values()) == len(saved) * 256 * 64


def test_total_parameters_are_those_of_the_base_whatever_is_beside_it(spec_of):
    plain, *others = (
        measured(spec_of(**keywords), LEAST).evidence
        for keywords in ({"method": "lora"}, *SETTINGS[:1], {"modules_to_save": ["lm_head"]})
    )
    assert {one.total_parameters for one in others} == {plain.total_parameters}


def test_an_int8_base_takes_a_byte_a_parameter(spec_of):
    """nf4 takes half of one and four for every 64, int8 four for every row beside it."""
    eight, four = (
        measured(spec_of(kbit_upcast=False, **one), LEAST)
        for one in ({"quant": "int8"}, {"quant": "nf4", "double_quant": False})
    )
    more = four.evidence.matrix_elements * (1 - 1 / 2 - 4 / 64)
    grown = eight.memory.allocated_after_step_bytes[-1] - four.memory.allocated_after_step_bytes[-1]
    assert more < grown < 1.1 * more


def seqs_seen(monkeypatch, spec, schedule):
    """The sequence lengths of all batches, in their order."""
    seen = []
    make = Step.token_ids

    def ids(self, vocabulary, batch, seq):
        seen.append(seq)
        return make(self, vocabulary, batch, seq)

    monkeypatch.setattr(Step, "token_ids", ids)
    return measured(spec, schedule), seen


@pytest.mark.parametrize(
    ("keywords", "steps", "seqs"),
    [
        ({"seq": 16}, 5, [16, 4, 12, 8, 16]),
        ({"seq": 16, "accumulation": 2}, 3, [16, 4, 12, 8, 16, 4]),
        ({"seq": 5}, 4, [5, 2, 3, 2]),  # no less than two tokens
        ({"seq": 2}, 2, [2, 2]),
    ],
)
def test_varied_lengths_take_turns_in_the_timed_steps(keywords, steps, seqs, spec_of, monkeypatch):
    """Warm-up with the watched step, profiled steps and evaluation stay at full length; the step
    whose storages are followed begins the turns anew.
    """
    monkeypatch.setattr(CpuBench, "gpu_work", lambda _, run: (run(), (1, 1))[1])
    spec = spec_of(method="lora", lengths="varied", **keywords)
    schedule = Schedule(warmup=2, steps=steps, phases=("eval",), eval_batch=1)
    _, seen = seqs_seen(monkeypatch, spec, schedule)
    full = [spec.seq] * spec.accumulation
    assert seen == [
        *(2 * full),
        *seqs,
        *(min(steps, 3) * full),
        *seqs[: spec.accumulation],
        spec.seq,
    ]


def test_varied_lengths_have_the_peak_of_the_longest(spec_of):
    """The first of the timed steps has it."""
    full, varied = (
        measured(spec_of(method="lora", seq=128, lengths=one), Schedule(warmup=2, steps=4)).memory
        for one in ("full", "varied")
    )
    assert varied.peak_allocated_bytes == full.peak_allocated_bytes
    assert varied.allocated_after_step_bytes == full.allocated_after_step_bytes


def test_varied_lengths_are_judged_without_an_allocator(spec_of):
    case = judged(spec_of(method="lora", lengths="varied"), SCHEDULE)
    (steady,) = (one for one in case.checks if one.name == "steady")
    assert (case.outcome, steady.status, steady.findings) == ("fits", "pass", ())
    assert case.tokens_per_second is None


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"optimizer": "paged_adamw"}, "paged optimizer states need a GPU"),
        ({"optimizer": "paged_adamw_8bit"}, "paged optimizer states need a GPU"),
        ({"compile": True}, "compiled code hides its memory from the CPU's recorder"),
        ({"quant": "int8", "dora": True}, "PEFT's DoRA on an int8 base needs a GPU"),
    ],
)
def test_what_needs_a_gpu_is_unsupported(keywords, says, spec_of):
    with pytest.raises(UnsupportedError) as error:
        measured(spec_of(**keywords))
    assert str(error.value) == f"{says}; run it with --gpu"


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"liger": True}, "Liger's kernels need a GPU"),
        ({"attention": "flash_attention_2"}, "flash attention needs a GPU"),
    ],
)
def test_what_needs_a_gpu_is_unsupported_where_its_package_is_there(keywords, says, spec_of):
    bench = CpuBench()
    bench.begin(None)
    outline = model.outline(spec_of())
    with pytest.raises(UnsupportedError) as error:
        bench.check(spec_of(**keywords), SCHEDULE, outline)
    assert bench.end()
    assert str(error.value) == f"{says}; run it with --gpu"


@pytest.mark.parametrize(
    ("keywords", "package"),
    [
        ({"liger": True}, "liger=True needs the package liger-kernel"),
        (
            {"attention": "flash_attention_2"},
            "attention='flash_attention_2' needs the package flash-attn",
        ),
    ],
)
def test_a_package_that_is_missing_is_named(keywords, package, spec_of, monkeypatch):
    monkeypatch.setattr(model, "find_spec", lambda _: None)
    with pytest.raises(UnbuildableError) as error:
        measured(spec_of(**keywords))
    assert str(error.value) == f"{package}, which is not installed"


@pytest.mark.parametrize(("quant", "size"), [("nf4", 0.52), ("fp4", 0.52), ("int8", 1.0)])
def test_a_quantised_base_may_be_larger_than_the_machine_s_memory(
    quant, size, spec_of, monkeypatch
):
    """The check before a case knows how many bytes a parameter takes."""
    spec = spec_of(quant=quant)
    outline = model.outline(spec)
    least = size * sum(one.numel() for one in outline.parameters()) / 0.9
    bench = CpuBench()
    for share, refusal in (
        (0.98, pytest.raises(UnsupportedError, match="it needs at least")),
        (1.02, nullcontext()),
    ):
        monkeypatch.setattr(cpu.host, "available_bytes", lambda share=share: int(share * least))
        bench.begin(None)
        bench._recorder._ceiling_bytes = None  # only the check's own is asked here
        with refusal:
            bench.check(spec, SCHEDULE, outline)
        bench.end()


def test_states_in_managed_memory_are_counted_apart(spec_of):
    """bitsandbytes marks them; nothing else is counted."""
    spec = spec_of(method="lora")
    outline = model.outline(spec)
    adapted = adapters.targets(outline, spec)
    model.materialise(outline, spec, torch.device("cpu"))
    step = Step(adapters.prepare(outline, spec, adapted), spec, torch.device("cpu"))
    step.run(METER)
    assert step.managed_bytes == 0
    first, second, *_ = step._optimizer.state.values()
    for state in (first, second):
        state["exp_avg"].is_paged = True
    assert step.managed_bytes == first["exp_avg"].nbytes + second["exp_avg"].nbytes > 0
