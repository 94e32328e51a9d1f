"""The marker's keywords: which there are, and one exact sentence for everything that is wrong."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from pytest_vramfit.marker.keywords import KEYWORDS, MarkerError, NotYetError, read_keyword

DOCUMENTED = [
    "model", "revision", "weights", "method", "rank", "alpha", "dropout", "targets",
    "modules_to_save", "dora", "rslora", "adapter_dtype", "quant", "double_quant",
    "kbit_upcast", "seq", "batch", "accumulation", "precision", "autocast", "dtype",
    "optimizer", "max_grad_norm", "checkpointing", "attention", "liger", "compile",
    "alloc_conf", "lengths", "config", "format", "step", "step_args", "card", "overflow",
    "headroom", "step_ratio", "gpu_ratio", "peak_ratio", "max_step", "require", "steps", "warmup",
    "phases", "eval_batch", "timeout",
]  # fmt: skip
"""Every keyword that the documentation promises."""


def test_keywords_are_those_of_the_documentation() -> None:
    assert sorted(KEYWORDS) == sorted(DOCUMENTED)


class Silent:
    """A user's object whose repr raises."""

    def __repr__(self) -> str:
        raise RuntimeError


class Index:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value

    def __repr__(self) -> str:
        return f"Index({self._value})"


class Array:
    """As NumPy's: looks like an integer, refuses to be one, and has no single truth."""

    def __index__(self) -> int:
        raise TypeError("only integer scalar arrays can be converted to a scalar index")

    def __eq__(self, other: object) -> bool:
        raise ValueError("The truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "array([[1, 2],\n       [3, 4]])"


CYCLE: list[object] = []
CYCLE.append(CYCLE)
LONG = "x" * 10_000
CUT = "x" * 76 + "..."
NAN, INF = float("nan"), float("inf")

RANK = "an integer from 1 to 65,536"
SEQ = "an integer from 2 to 16,777,216"
RATIO = "a number above 0, or None"
DROPOUT = "a number from 0 up to, not including, 1"
TARGETS = "'all-linear', 'attention', 'qv' or a list of module names"
TIMEOUT = "a number of seconds above 0, at most 604,800 (a week)"
SIZE = "a size such as '16303MiB' or '15.9GiB'"
UNITS = "a size in B, KiB, MiB, GiB, TiB"
CHECKS = (
    "a list of 'no_oom', 'peak_within_vram', 'eval', 'save', 'merge', 'resident', 'headroom', "
    "'trained', 'max_step', 'step_time', 'gpu_time', 'steady' or 'peak_baseline'"
)
OPTIMIZERS = (
    "'adamw', 'adamw_fused', 'adamw_8bit', 'paged_adamw', 'paged_adamw_8bit', 'sgd' or 'adafactor'"
)
PHASES = "a list of 'train', 'eval', 'save' or 'merge'"
REVISION = "a branch, tag or commit, such as 'main'"
SETTINGS = "settings such as 'expandable_segments:True,max_split_size_mb:128'"
OWN_ALLOCATOR = "settings of PyTorch's own allocator: its statistics are what is measured"
CARD = "a known GPU such as 'RTX 5070 Ti' or a size such as '16303MiB'"

WRONG = [
    (
        "weights",
        "pretrain",
        ("weights='pretrain' must be 'random' or 'pretrained' (did you mean 'pretrained'?)"),
    ),
    ("weights", None, "weights=None must be 'random' or 'pretrained'"),
    ("revision", 7, f"revision=7 must be {REVISION}"),
    ("revision", "", f"revision='' must be {REVISION}"),
    ("revision", "main branch", f"revision='main branch' must be {REVISION}"),
    ("revision", "é", f"revision='é' must be {REVISION}"),
    ("revision", "x" * 101, f"revision='{CUT} must be {REVISION}"),
    ("method", "QLoRA", "method='QLoRA' must be 'full', 'lora' or 'qlora' (did you mean 'qlora'?)"),
    ("method", "dpo", "method='dpo' must be 'full', 'lora' or 'qlora'"),
    ("method", ["lora"], "method=['lora'] must be 'full', 'lora' or 'qlora'"),
    ("method", LONG, f"method='{CUT} must be 'full', 'lora' or 'qlora'"),
    ("rank", 0, f"rank=0 must be {RANK}"),
    ("rank", -16, f"rank=-16 must be {RANK}"),
    ("rank", 65_537, f"rank=65537 must be {RANK}"),
    ("rank", True, f"rank=True must be {RANK}"),
    ("rank", 16.0, f"rank=16.0 must be {RANK}"),
    ("rank", "16", f"rank='16' must be {RANK}"),
    ("rank", None, f"rank=None must be {RANK}"),
    ("rank", NAN, f"rank=nan must be {RANK}"),
    ("rank", 10**400, f"rank=1{'0' * 76}... must be {RANK}"),
    ("rank", 10**5000, f"rank=<int, whose repr raises ValueError> must be {RANK}"),
    ("rank", int, f"rank=<class 'int'> must be {RANK}"),
    ("rank", Array(), f"rank=array([[1, 2],        [3, 4]]) must be {RANK}"),
    ("rank", Silent(), f"rank=<Silent, whose repr raises RuntimeError> must be {RANK}"),
    ("rank", [[16], [32]], f"rank=[[16], [32]] must be {RANK}"),
    ("rank", CYCLE, f"rank=[[...]] must be {RANK}"),
    ("alpha", 0, "alpha=0 must be a number above 0"),
    ("alpha", True, "alpha=True must be a number above 0"),
    ("alpha", NAN, "alpha=nan must be a number above 0"),
    ("alpha", INF, "alpha=inf must be a number above 0"),
    ("alpha", 10**400, f"alpha=1{'0' * 76}... must be a number above 0"),
    ("alpha", "32", "alpha='32' must be a number above 0"),
    ("alpha", Decimal(32), "alpha=Decimal('32') must be a number above 0"),
    ("alpha", Array(), "alpha=array([[1, 2],        [3, 4]]) must be a number above 0"),
    ("dropout", 1, f"dropout=1 must be {DROPOUT}"),
    ("dropout", -0.1, f"dropout=-0.1 must be {DROPOUT}"),
    ("dropout", None, f"dropout=None must be {DROPOUT}"),
    ("targets", "q_proj", f"targets='q_proj' must be {TARGETS}, such as ['q_proj']"),
    (
        "targets",
        "q_proj,k_proj",
        (f"targets='q_proj,k_proj' must be {TARGETS}, such as ['q_proj', 'k_proj']"),
    ),
    ("targets", "", f"targets='' must be {TARGETS}, such as ['q_proj']"),
    (
        "targets",
        "all_linear",
        (f"targets='all_linear' must be {TARGETS} (did you mean 'all-linear'?)"),
    ),
    ("targets", [], f"targets=[] must be {TARGETS}"),
    ("targets", ["q_proj", ""], f"targets=['q_proj', ''] must be {TARGETS}"),
    ("targets", [["q_proj"]], f"targets=[['q_proj']] must be {TARGETS}"),
    ("targets", b"q_proj", f"targets=b'q_proj' must be {TARGETS}"),
    ("targets", None, f"targets=None must be {TARGETS}"),
    ("targets", LONG, f"targets='{CUT} must be {TARGETS}, such as ['{'x' * 75}..."),
    ("modules_to_save", "lm_head", "modules_to_save='lm_head' must be None or a list of names"),
    ("modules_to_save", [1], "modules_to_save=[1] must be None or a list of names"),
    ("modules_to_save", [], "modules_to_save=[] must be None or a list of names"),
    ("dora", 1, "dora=1 must be False or True"),
    ("rslora", "yes", "rslora='yes' must be False or True"),
    (
        "adapter_dtype",
        "float32",
        ("adapter_dtype='float32' must be 'bf16', 'fp16' or 'fp32' (did you mean 'fp32'?)"),
    ),
    ("quant", "NF4", "quant='NF4' must be 'nf4', 'fp4' or 'int8' (did you mean 'nf4'?)"),
    ("quant", 4, "quant=4 must be 'nf4', 'fp4' or 'int8'"),
    ("quant", None, "quant=None must be 'nf4', 'fp4' or 'int8'"),
    ("double_quant", None, "double_quant=None must be False or True"),
    ("kbit_upcast", 0, "kbit_upcast=0 must be False or True"),
    ("seq", 1, f"seq=1 must be {SEQ}"),
    ("seq", 2**24 + 1, f"seq=16777217 must be {SEQ}"),
    ("seq", Index(1), f"seq=Index(1) must be {SEQ}"),
    ("batch", 0, "batch=0 must be an integer from 1 to 1,048,576"),
    ("accumulation", 1.5, "accumulation=1.5 must be an integer from 1 to 65,536"),
    (
        "precision",
        "bfloat16",
        ("precision='bfloat16' must be 'bf16', 'fp16' or 'fp32' (did you mean 'bf16'?)"),
    ),
    (
        "precision",
        "float16",
        ("precision='float16' must be 'bf16', 'fp16' or 'fp32' (did you mean 'fp16'?)"),
    ),
    ("precision", 16, "precision=16 must be 'bf16', 'fp16' or 'fp32'"),
    ("precision", "auto", "precision='auto' must be 'bf16', 'fp16' or 'fp32'"),
    ("autocast", "bf16", "autocast='bf16' must be False or True"),
    (
        "dtype",
        "fp8",
        ("dtype='fp8' must be 'bf16', 'fp16', 'fp32' or 'auto' (did you mean 'fp32'?)"),
    ),
    ("optimizer", "adam", f"optimizer='adam' must be {OPTIMIZERS} (did you mean 'adamw'?)"),
    (
        "optimizer",
        "lion_8bit",
        (f"optimizer='lion_8bit' must be {OPTIMIZERS} (did you mean 'adamw_8bit'?)"),
    ),
    ("optimizer", ("adamw",), f"optimizer=('adamw',) must be {OPTIMIZERS}"),
    ("optimizer", Array(), f"optimizer=array([[1, 2],        [3, 4]]) must be {OPTIMIZERS}"),
    ("max_grad_norm", 0.0, f"max_grad_norm=0.0 must be {RATIO}"),
    ("checkpointing", 1, "checkpointing=1 must be False, True or 'reentrant'"),
    (
        "checkpointing",
        "re-entrant",
        (
            "checkpointing='re-entrant' must be False, True or 'reentrant' "
            "(did you mean 'reentrant'?)"
        ),
    ),
    ("attention", "flash", "attention='flash' must be 'sdpa', 'eager' or 'flash_attention_2'"),
    ("liger", None, "liger=None must be False or True"),
    ("compile", "reduce-overhead", "compile='reduce-overhead' must be False or True"),
    (
        "alloc_conf",
        {"expandable_segments": True},
        f"alloc_conf={{'expandable_segments': True}} must be {SETTINGS}",
    ),
    ("alloc_conf", "", f"alloc_conf='' must be {SETTINGS}"),
    ("alloc_conf", "expandable_segments", f"alloc_conf='expandable_segments' must be {SETTINGS}"),
    ("alloc_conf", "a:1,", f"alloc_conf='a:1,' must be {SETTINGS}"),
    ("alloc_conf", "a:[1,2", f"alloc_conf='a:[1,2' must be {SETTINGS}"),
    ("alloc_conf", "a:\0", f"alloc_conf='a:\\x00' must be {SETTINGS}"),  # no environment holds it
    ("alloc_conf", "a:é", f"alloc_conf='a:é' must be {SETTINGS}"),
    (
        "alloc_conf",
        "backend:cudaMallocAsync",
        f"alloc_conf='backend:cudaMallocAsync' must be {OWN_ALLOCATOR}",
    ),
    (
        "alloc_conf",
        "backend:native, backend:other",
        f"alloc_conf='backend:native, backend:other' must be {OWN_ALLOCATOR}",
    ),
    ("lengths", "vary", "lengths='vary' must be 'full' or 'varied' (did you mean 'varied'?)"),
    ("lengths", [1, 0.5], "lengths=[1, 0.5] must be 'full' or 'varied'"),
    ("config", 3, "config=3 must be a path"),
    ("format", [], "format=[] must be a text"),
    ("step", len, "step=<built-in function len> must be a text"),
    ("card", 16, f"card=16 must be {SIZE}"),
    ("card", "16GB", f"card='16GB' must be {UNITS}; write '16GiB' for powers of 1024"),
    (
        "card",
        "5090",
        "card='5090' must be a size such as '16303MiB' or a GPU (did you mean 'GeForce RTX 5090'?)",
    ),
    ("card", "0MiB", "card='0MiB' must be a size above zero"),
    ("card", "17TiB", "card='17TiB' must be a size of at most 16TiB"),
    ("card", "999999999TiB", "card='999999999TiB' must be a size of at most 16TiB"),
    ("card", "My GPU", f"card='My GPU' must be {CARD}"),
    ("card", LONG, f"card='{CUT} must be {CARD}"),
    (
        "card",
        "RTX 5070 Tj",
        (
            "card='RTX 5070 Tj' must be a known GPU (did you mean 'GeForce RTX 5070 Ti'?) or a "
            "size such as '16303MiB'"
        ),
    ),
    ("overflow", "host", "overflow='host' must be 'oom' or 'spill'"),
    ("headroom", 10, "headroom=10 must be a share such as '10%' or a size such as '1GiB'"),
    ("headroom", "10", f"headroom='10' must be a share such as '10%' or {UNITS}"),
    ("headroom", "100%", "headroom='100%' must be a share below 100%"),
    ("headroom", None, "headroom=None must be a share such as '10%' or a size such as '1GiB'"),
    ("step_ratio", 0, f"step_ratio=0 must be {RATIO}"),
    ("gpu_ratio", "5%", f"gpu_ratio='5%' must be {RATIO}"),
    ("peak_ratio", -1, f"peak_ratio=-1 must be {RATIO}"),
    ("max_step", 2, "max_step=2 must be a duration such as '2s' or '350ms'"),
    ("max_step", "2", "max_step='2' must be a duration in ns, us, ms, s, min"),
    ("max_step", "0s", "max_step='0s' must be a duration above zero"),
    ("require", "gpu_time", f"require='gpu_time' must be {CHECKS}"),
    ("require", ["gpu_tim"], f"require=['gpu_tim'] must be {CHECKS} (did you mean 'gpu_time'?)"),
    ("require", [], f"require=[] must be {CHECKS}"),
    ("steps", 0, "steps=0 must be an integer from 1 to 10,000"),
    ("warmup", 1, "warmup=1 must be an integer from 2 to 10,000"),
    ("phases", "train", f"phases='train' must be {PHASES}"),
    ("phases", ["trian"], f"phases=['trian'] must be {PHASES} (did you mean 'train'?)"),
    ("phases", [], f"phases=[] must be {PHASES}"),
    ("phases", None, f"phases=None must be {PHASES}"),
    ("eval_batch", 0, "eval_batch=0 must be an integer from 1 to 1,048,576"),
    ("eval_batch", None, "eval_batch=None must be an integer from 1 to 1,048,576"),
    ("timeout", 0, f"timeout=0 must be {TIMEOUT}"),
    ("timeout", 604_801, f"timeout=604801 must be {TIMEOUT}"),
    ("timeout", INF, f"timeout=inf must be {TIMEOUT}"),
    ("timeout", "10min", f"timeout='10min' must be {TIMEOUT}"),
]


def refusal(key: str, value: object) -> str:
    with pytest.raises(MarkerError) as refused:
        read_keyword(key, value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "value", "says"), WRONG, ids=[f"{row[0]}-{number}" for number, row in enumerate(WRONG)]
)
def test_wrong_value(key: str, value: object, says: str) -> None:
    assert refusal(key, value) == f"fits_vram: {says}"


def test_every_keyword_that_can_be_wrong_by_itself_is_in_the_table() -> None:
    """A model is looked up elsewhere, and a step's arguments are anything."""
    assert {key for key, _, _ in WRONG} == set(DOCUMENTED) - {"model", "step_args"}


NASTY = [
    NAN, INF, -INF, 10**400, 10**5000, True, False, None, Silent(), LONG, b"bytes", bytearray(b"x"),
    [[1], [2]], CYCLE, Index(3), Index(10**400), Array(), int, -1, 0, 0.5, "", "\0", "é", (), {},
    {1}, object(), Fraction(1, 3), Decimal("NaN"), 1j, lambda: None, Path("x"),
]  # fmt: skip


@pytest.mark.parametrize("key", [*DOCUMENTED, "unknown", LONG, "\0"], ids=lambda key: key[:16])
def test_no_value_ends_in_anything_but_one_short_sentence(key: str) -> None:
    for value in NASTY:
        try:
            read_keyword(key, value)
        except MarkerError as error:
            says = str(error)
            assert says.startswith("fits_vram")
            assert len(says) < 800
            assert "\n" not in says


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (5, "5"),
        (None, "None"),
        (("model",), "('model',)"),
        (Silent(), "<Silent, whose repr raises RuntimeError>"),
        (LONG, f"'{CUT}"),
    ],
    ids=["int", "None", "tuple", "silent", "long"],
)
def test_a_key_that_is_none_is_told_with_all_that_are(key: Any, shown: str) -> None:
    """A dict of pytest's own parametrize may hold any key."""
    says = refusal(key, 1)
    assert says == f"fits_vram has no keyword {shown}; it takes {', '.join(KEYWORDS)}"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("modle", "did you mean 'model'?"),
        ("Rank", "did you mean 'rank'?"),
        ("ranks", "did you mean 'rank'?"),
        ("seqlen", "did you mean 'seq'?"),
        ("checkpoint", "did you mean 'checkpointing'?"),
        ("max_steps", "here it is steps"),  # spelled like max_step, which bounds the time
    ],
)
def test_misspelled_keyword(key: str, says: str) -> None:
    assert refusal(key, 1) == f"fits_vram has no keyword {key!r}; {says}"


@pytest.mark.parametrize("key", ["learning_rate", "bias", "packing", "seed", "device_map", ""])
def test_keyword_of_another_kind_gets_no_guess_but_the_list(key: str) -> None:
    assert refusal(key, 1) == (
        f"fits_vram has no keyword {key!r}; it takes model, revision, weights, method, rank, "
        "alpha, dropout, targets, modules_to_save, dora, rslora, adapter_dtype, quant, "
        "double_quant, kbit_upcast, seq, batch, accumulation, precision, autocast, dtype, "
        "optimizer, max_grad_norm, checkpointing, attention, liger, compile, alloc_conf, lengths, "
        "config, format, step, step_args, card, overflow, headroom, step_ratio, gpu_ratio, "
        "peak_ratio, max_step, require, steps, warmup, phases, eval_batch, timeout"
    )


HUGGING_FACE = {
    # TrainingArguments of transformers
    "bf16": "precision='bf16'",
    "fp16": "precision='fp16'",
    "gradient_accumulation_steps": "accumulation",
    "gradient_checkpointing": "checkpointing",
    "gradient_checkpointing_kwargs": "checkpointing, True or 'reentrant'",
    "max_steps": "steps",
    "optim": "optimizer",
    "per_device_train_batch_size": "batch",
    "torch_compile": "compile",
    "use_liger_kernel": "liger",
    "use_reentrant": "checkpointing, True or 'reentrant'",
    # from_pretrained and BitsAndBytesConfig of transformers
    "attn_implementation": "attention",
    "bnb_4bit_compute_dtype": "precision",
    "bnb_4bit_quant_type": "quant",
    "bnb_4bit_use_double_quant": "double_quant",
    "load_in_4bit": "method='qlora'",
    "load_in_8bit": "quant='int8'",
    "model_max_length": "seq",
    "model_name_or_path": "model",
    "pretrained_model_name_or_path": "model",
    "quantization_config": "quant",
    "torch_dtype": "dtype",
    "use_flash_attention_2": "attention='flash_attention_2'",
    # LoraConfig and get_peft_model of PEFT
    "autocast_adapter_dtype": "adapter_dtype",
    "lora_alpha": "alpha",
    "lora_dropout": "dropout",
    "r": "rank",
    "target_modules": "targets",
    "use_dora": "dora",
    "use_rslora": "rslora",
    # SFTConfig of TRL
    "max_length": "seq",
    "max_seq_length": "seq",
    # axolotl, LLaMA-Factory, torchtune, Unsloth
    "adapter": "method",
    "base_model": "model",
    "cutoff_len": "seq",
    "enable_liger_kernel": "liger",
    "finetuning_type": "method",
    "flash_attention": "attention='flash_attention_2'",
    "flash_attn": "attention='flash_attention_2'",
    "lora_r": "rank",
    "lora_rank": "rank",
    "lora_target": "targets",
    "lora_target_linear": "targets='all-linear'",
    "lora_target_modules": "targets",
    "max_seq_len": "seq",
    "micro_batch_size": "batch",
    "model_name": "model",
    "quantization_bit": "quant",
    "sequence_len": "seq",
    # usual words
    "batch_size": "batch",
    "block_size": "seq",
    "fp32": "precision='fp32'",
    "gpu": "card",
    "seq_len": "seq",
    "seq_length": "seq",
    "sequence_length": "seq",
    "train_batch_size": "batch",
    "vram": "card",
}


@pytest.mark.parametrize(("key", "here"), HUGGING_FACE.items())
def test_another_tool_s_name_gets_the_exact_hint(key: str, here: str) -> None:
    assert refusal(key, 1) == f"fits_vram has no keyword {key!r}; here it is {here}"


@pytest.mark.parametrize("here", sorted(set(HUGGING_FACE.values())))
def test_hint_leads_to_a_keyword_that_accepts_what_it_says(here: str) -> None:
    key, _, value = here.partition("=")
    assert key.partition(",")[0] in KEYWORDS
    if value:
        KEYWORDS[key].read(value.strip("'"))


NOT_YET = [
    ("config", "axolotl.yaml", "config='axolotl.yaml' asks for training-config files"),
    ("format", "axolotl", "format='axolotl' asks for training-config files"),
    ("step", "package.module:factory", "step='package.module:factory' asks for own training steps"),
    ("step_args", {"lr": 1}, "step_args={'lr': 1} asks for own training steps"),
    ("step_args", Array(), "step_args=array([[1, 2],        [3, 4]]) asks for own training steps"),
]


@pytest.mark.parametrize(("key", "value", "says"), NOT_YET)
def test_value_whose_part_is_not_built(key: str, value: object, says: str) -> None:
    with pytest.raises(NotYetError) as refused:
        read_keyword(key, value)
    assert str(refused.value) == f"fits_vram: {says}: not built yet"


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("revision", None),
        ("weights", "random"),
        ("method", "qlora"),
        ("rank", 16),
        ("dropout", 0.05),
        ("targets", "all-linear"),
        ("modules_to_save", None),
        ("dora", False),
        ("rslora", False),
        ("adapter_dtype", "fp32"),
        ("adapter_dtype", "bf16"),
        ("adapter_dtype", "fp16"),
        ("attention", "eager"),
        ("quant", "nf4"),
        ("double_quant", True),
        ("kbit_upcast", True),
        ("seq", 512),
        ("batch", 1),
        ("accumulation", 1),
        ("precision", "bf16"),
        ("autocast", True),
        ("dtype", "auto"),
        ("optimizer", "adamw"),
        ("max_grad_norm", 1.0),
        ("checkpointing", False),
        ("attention", "sdpa"),
        ("liger", False),
        ("compile", False),
        ("alloc_conf", None),
        ("config", None),
        ("format", None),
        ("step", None),
        ("step_args", None),
        ("card", None),
        ("overflow", "oom"),
        ("step_ratio", 1.25),
        ("gpu_ratio", 1.05),
        ("peak_ratio", 1.01),
        ("max_step", None),
        ("require", None),
        ("steps", 5),
        ("warmup", 3),
        ("eval_batch", 8),
        ("lengths", "full"),
        ("timeout", 600),
    ],
)
def test_default_written_out_is_accepted_as_it_stands(key: str, default: object) -> None:
    assert read_keyword(key, default) == default


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rank", 1),
        ("rank", 65_536),
        ("alpha", 0.01),
        ("dropout", 0),
        ("dropout", 0.999),
        ("seq", 2),
        ("seq", 16_777_216),
        ("batch", 1),
        ("batch", 1_048_576),
        ("eval_batch", 1),
        ("eval_batch", 1_048_576),
        ("accumulation", 65_536),
        ("max_grad_norm", 0.01),
        ("steps", 1),
        ("steps", 10_000),
        ("warmup", 2),
        ("warmup", 10_000),
        ("timeout", 0.01),
        ("timeout", 604_800),
    ],
)
def test_the_last_value_within_a_bound_is_accepted(key: str, value: float) -> None:
    assert read_keyword(key, value) == value


def test_a_ratio_below_one_asks_for_a_case_that_got_better() -> None:
    """It is no wrong value."""
    assert read_keyword("step_ratio", 0.9) == 0.9


@pytest.mark.parametrize(
    ("key", "value", "canonical"),
    [
        ("rank", Index(8), 8),
        ("alpha", Fraction(65, 2), 32.5),
        ("timeout", 604_800, 604_800.0),
        ("targets", ["v", " q ", "v"], ("q", "v")),
        ("targets", frozenset({"b", "a"}), ("a", "b")),
        ("step_ratio", None, None),
        ("gpu_ratio", 2, 2.0),
        ("peak_ratio", Fraction(3, 2), 1.5),
        ("require", ["resident", " gpu_time ", "resident"], ("gpu_time", "resident")),
        ("card", "16303MiB", (17_094_934_528, None)),
        ("overflow", "spill", "spill"),
        ("max_step", "1.5s", 1_500_000_000),
        ("card", "RTX 5070 Ti", (17_094_934_528, "GeForce RTX 5070 Ti")),
        ("card", "nvidia geforce rtx-5070-ti", (17_094_934_528, "GeForce RTX 5070 Ti")),
        ("modules_to_save", ("lm_head", " embed_tokens"), ("embed_tokens", "lm_head")),
        ("optimizer", "paged_adamw_32bit", "paged_adamw"),
        ("alloc_conf", " a_b:True , c:[256:1, >:4] ", "a_b:True,c:[256:1,>:4]"),
        ("alloc_conf", "backend:native,a:1", "backend:native,a:1"),
        ("revision", "refs/pr/1", "refs/pr/1"),
        ("phases", ["train"], ()),
        ("phases", ["merge", "train", "save", "eval"], ("eval", "save", "merge")),
        ("phases", {"merge"}, ("merge",)),
    ],
)
def test_value_in_its_canonical_form(key: str, value: object, canonical: object) -> None:
    read = read_keyword(key, value)
    assert read == canonical
    assert type(read) is type(canonical)
