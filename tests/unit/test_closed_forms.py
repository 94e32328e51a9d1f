"""Where memory goes by arithmetic, against the papers, published counts and measured bytes."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from published import H200_ROWS, PARAMETERS
from samples import FULL, MIB, SPEC

from pytest_vramfit import catalog
from pytest_vramfit.estimating.closed_forms import (
    Parts,
    Tensor,
    added,
    constants_bytes,
    optimizer_bytes,
    packed_bytes,
    parts,
    zero,
)
from pytest_vramfit.estimating.transformer import NoClosedFormError, transformer
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.spec import TrainSpec

GB = 10**9
BILLION = 10**9
EXPERTS = {"Qwen3-30B-A3B", "Mixtral-8x7B", "gpt-oss-20b"}
DENSE = sorted({*catalog.names()} - EXPERTS)

T4 = [
    ("Llama-3.2-1B", 16, 464.0, 58.0068359375, 1015.2578125),
    ("Llama-3.2-3B", 16, 1344.0, 168.011962890625, 1538.66796875),
    ("Mistral-7B-v0.3", 16, 3328.0, 416.013671875, 1077.015625),
    ("Qwen2.5-1.5B", 32, 624.75, 78.105712890625, 924.052734375),
    ("Qwen2.5-7B", 16, 3111.5, 388.949462890625, 4197.771484375),
    ("SmolLM2-135M", 32, 50.625, 6.3409423828125, 122.196533203125),
    ("SmolLM2-360M", 32, 150.0, 18.763671875, 205.238037109375),
    ("SmolLM2-1.7B", 32, 768.0, 96.01025390625, 432.3828125),
]
"""MiB of the tensors of loaded checkpoints on a Tesla T4, from fitcheck-llm 0.3.1: NF4 weights,
their constants and levels (single quantisation), everything else in fp32 (k-bit preparation)
with adapters on q, k, v and o.
"""
H200 = [row for row in H200_ROWS if row["checkpointing"]]
"""Steps with checkpointing on one H200, as tests/gpu measured them."""


def config_of(name: str) -> dict[str, Any]:
    model = catalog.find(name)
    assert model is not None
    return dict(model.config)


def spec_of(**keywords: object) -> TrainSpec:
    return read_claim([keywords], rootdir=Path()).spec


class TestModels:
    @pytest.mark.parametrize("name", PARAMETERS)
    def test_parameters_are_those_published(self, name: str) -> None:
        count, _source = PARAMETERS[name]
        assert transformer(config_of(name)).parameters == count

    @pytest.mark.parametrize("name", DENSE)
    def test_parameters_are_those_of_the_catalogue(self, name: str) -> None:
        model = catalog.find(name)
        assert model is not None
        assert transformer(model.config).parameters == model.parameters

    @pytest.mark.parametrize("name", sorted(EXPERTS))
    def test_a_mixture_of_experts_has_no_closed_form(self, name: str) -> None:
        with pytest.raises(NoClosedFormError, match="has no closed form here, only gemma2, "):
            transformer(config_of(name))

    @pytest.mark.parametrize(
        ("config", "says"),
        [
            ({}, "model_type None has no closed form here, only "),
            ({"model_type": "deepseek_v3"}, "model_type 'deepseek_v3' has no closed form here"),
            ({"model_type": "gpt2", "add_cross_attention": True}, "add_cross_attention=True has"),
            (
                {"model_type": "opt", "layer_norm_elementwise_affine": False},
                "layer_norm_elementwise_affine=False has no closed form here",
            ),
        ],
    )
    def test_what_is_another_model_has_no_closed_form(self, config: Any, says: str) -> None:
        with pytest.raises(NoClosedFormError) as error:
            transformer(config)
        assert str(error.value).startswith(says)

    def test_matrices_are_named_as_in_transformers(self) -> None:
        """One layer of Qwen2.5-7B: hidden 3584, four groups of 128, inner 18944."""
        model = transformer(config_of("Qwen2.5-7B") | {"num_hidden_layers": 1})
        assert {one.name: (*one.weight, one.bias) for one in model.modules} == {
            "model.embed_tokens": (152_064, 3584, False),
            "model.layers.0.self_attn.q_proj": (3584, 3584, True),
            "model.layers.0.self_attn.k_proj": (512, 3584, True),
            "model.layers.0.self_attn.v_proj": (512, 3584, True),
            "model.layers.0.self_attn.o_proj": (3584, 3584, False),
            "model.layers.0.mlp.gate_proj": (18_944, 3584, False),
            "model.layers.0.mlp.up_proj": (18_944, 3584, False),
            "model.layers.0.mlp.down_proj": (3584, 18_944, False),
            "model.layers.0.input_layernorm": (3584, False),
            "model.layers.0.post_attention_layernorm": (3584, False),
            "model.norm": (3584, False),
            "lm_head": (152_064, 3584, False),
        }

    def test_a_tied_head_counts_once(self) -> None:
        config = config_of("tiny")
        untied, tied = (
            transformer(config | {"tie_word_embeddings": one}).parameters for one in (False, True)
        )
        assert untied - tied == 1024 * 128


class TestAccounting:
    """The checks of reference/seed_results.json, "accounting": ZeRO (arXiv 1910.02054), LoRA
    (2106.09685), QLoRA (2305.14314).
    """

    def test_mixed_precision_adam_takes_16_bytes_a_parameter(self) -> None:
        states = zero(7 * BILLION)
        assert (states.weights, states.gradients, states.optimizer) == (
            2 * 7 * BILLION,
            2 * 7 * BILLION,
            12 * 7 * BILLION,
        )
        assert states.total == 112 * GB
        assert states.optimizer == 84 * GB

    def test_gpt2_takes_24_gb_of_which_3_are_weights(self) -> None:
        states = zero(1_500_000_000)
        assert states.total == 24 * GB
        assert states.weights == 3 * GB

    @pytest.mark.parametrize(
        ("stage", "gb"), [("none", 120), ("os", 31.4), ("os+g", 16.6), ("os+g+p", 1.9)]
    )
    def test_zero_shards_a_part_more_at_each_stage(self, stage: Any, gb: float) -> None:
        total = zero(7_500_000_000, devices=64, stage=stage).total
        assert round(total / GB, 1) == gb

    def test_lora_adds_rank_times_both_features(self) -> None:
        """Rank 8 on q and v, 32 layers, hidden 4096: Llama-2-7B."""
        spec = spec_of(model="Llama-2-7B", method="lora", rank=8, targets="qv")
        tensors = added(transformer(spec.config), spec)
        assert {one.shape for one in tensors} == {(8, 4096), (4096, 8)}
        elements = [one.shape[0] * one.shape[1] for one in tensors]
        assert sum(elements[:2]) == 65_536
        assert sum(elements) == 4_194_304

    def test_qlora_keeps_half_a_byte_a_parameter(self) -> None:
        assert packed_bytes(7 * BILLION) == 3.5 * GB

    @pytest.mark.parametrize(("double_quant", "bits"), [(False, 0.5), (True, 0.127)])
    def test_qlora_s_constants(self, double_quant: bool, bits: float) -> None:
        elements = 7 * BILLION
        constants = constants_bytes(elements, double_quant=double_quant)
        assert round(8 * constants / elements, 3) == bits


class TestFullFineTuning:
    CONFIG = config_of("gpt2")
    PARAMETERS = 124_439_808

    def split(self, **changes: object) -> tuple[int, int, int, int]:
        """Bytes a parameter of weights, gradients, optimizer and adapters, as whole numbers."""
        got = parts(replace(FULL, config=self.CONFIG, **changes))
        sizes = (got.weights, got.gradients, got.optimizer, got.adapters)
        return tuple(size // self.PARAMETERS for size in sizes)

    def test_with_autocast_it_is_the_16_bytes_of_zero_split_otherwise(self) -> None:
        assert self.split() == (4, 4, 8, 0)
        got = parts(replace(FULL, config=self.CONFIG))
        assert got.weights + got.gradients + got.optimizer == zero(self.PARAMETERS).total

    def test_in_plain_half_precision_it_is_half_of_that(self) -> None:
        assert self.split(dtype="bf16", autocast=False) == (2, 2, 4, 0)

    @pytest.mark.parametrize(
        ("optimizer", "size"),
        [("sgd", 0), ("adafactor", 0), ("adamw_8bit", 2), ("adamw", 4), ("paged_adamw", 0)],
    )
    def test_bitsandbytes_states_do_not_follow_the_dtype(self, optimizer: str, size: int) -> None:
        *_, states, _ = self.split(dtype="bf16", autocast=False, optimizer=optimizer)
        assert states == size

    def test_there_is_no_quantisation(self) -> None:
        assert parts(replace(FULL, config=self.CONFIG)).quantisation == 0


class TestOptimizers:
    """Of single tensors, by hand."""

    @pytest.mark.parametrize(
        ("optimizer", "shape", "itemsize", "expected"),
        [
            ("sgd", (100, 50), 4, (0, 0)),
            ("adamw", (100, 50), 4, (40_000, 0)),
            ("adamw", (100, 50), 2, (20_000, 0)),
            ("adamw_fused", (100, 50), 4, (40_004, 0)),
            ("adafactor", (100, 50), 2, (4 * 150 + 4, 0)),
            ("adafactor", (100,), 2, (4 * 100 + 4, 0)),
            ("adamw_8bit", (4095,), 2, (8 * 4095, 0)),
            # 16 blocks of 256, and 2 maps of 256 values
            ("adamw_8bit", (4096,), 2, (2 * 4096 + 2 * 4 * 16 + 2048, 0)),
            ("adamw_8bit", (4097,), 2, (2 * 4097 + 2 * 4 * 17 + 2048, 0)),
            ("paged_adamw", (99_999,), 2, (8 * 99_999, 0)),
            ("paged_adamw", (100_000,), 2, (0, 800_000)),
            ("paged_adamw_8bit", (4095,), 4, (8 * 4095, 0)),
            ("paged_adamw_8bit", (99_999,), 4, (2 * 99_999 + 2 * 4 * 391 + 2048, 0)),
            ("paged_adamw_8bit", (100_000,), 4, (2 * 4 * 391 + 2048, 200_000)),
        ],
    )
    def test_states(
        self, optimizer: str, shape: tuple[int, ...], itemsize: int, expected: tuple[int, int]
    ) -> None:
        assert optimizer_bytes(optimizer, [Tensor(shape, itemsize)]) == expected

    def test_the_maps_of_8_bit_states_are_shared(self) -> None:
        one, _ = optimizer_bytes("adamw_8bit", [Tensor((4096,), 4)])
        two, _ = optimizer_bytes("adamw_8bit", [Tensor((4096,), 4)] * 2)
        assert 2 * one - two == 2048

    def test_paging_only_moves_the_states(self) -> None:
        for name in ("adamw", "adamw_8bit"):
            spec = spec_of(model="Qwen2.5-7B", optimizer=name)
            paged = parts(replace(spec, optimizer=f"paged_{name}"))
            assert paged.optimizer + paged.managed == parts(spec).optimizer
            assert paged.managed > 0

    def test_of_rank_16_only_the_wide_side_of_the_mlp_is_paged(self) -> None:
        """16 x 3584 elements are too few; 16 x 18944 are enough, three in each of 28 layers."""
        spec = spec_of(model="Qwen2.5-7B", optimizer="paged_adamw", rank=16)
        assert parts(spec).managed == 28 * 3 * 16 * 18_944 * 8


class TestActivations:
    TOKENS = 512 * 2

    @pytest.mark.parametrize(
        ("keywords", "itemsize", "cast"),
        [
            ({"checkpointing": True}, 4, True),
            ({"checkpointing": "reentrant"}, 4, True),
            ({"checkpointing": True, "autocast": False}, 4, False),
            ({"checkpointing": True, "kbit_upcast": False}, 2, False),
            ({"checkpointing": True, "method": "lora"}, 2, False),
            ({"checkpointing": True, "method": "lora", "dtype": "fp32"}, 4, True),
            ({"checkpointing": True, "method": "full"}, 4, True),
            ({"checkpointing": True, "method": "full", "precision": "fp32"}, 4, False),
        ],
    )
    def test_with_checkpointing_they_are_the_inputs_of_the_layers(
        self, keywords: dict[str, Any], itemsize: int, cast: bool
    ) -> None:
        """28 layers, hidden 3584; 152,064 x 3584 of the head in half precision where it is cast."""
        got = parts(spec_of(model="Qwen2.5-7B", batch=2, **keywords))
        head = 2 * 152_064 * 3584 if cast else 0
        assert got.activations == 28 * self.TOKENS * 3584 * itemsize + head

    @pytest.mark.parametrize(
        "keywords",
        [
            {"checkpointing": False},
            {"liger": True},
            {"compile": True},
            {"method": "lora", "dtype": "fp16"},
            {"method": "lora", "model": "OPT-350m"},
        ],
        ids=str,
    )
    def test_there_is_no_closed_form_of_others(self, keywords: dict[str, Any]) -> None:
        spec = spec_of(**{"model": "Qwen2.5-7B", "checkpointing": True} | keywords)
        assert parts(spec).activations is None

    @pytest.mark.parametrize("keywords", [{"method": "lora"}, {}, {"autocast": False}], ids=str)
    def test_the_loss_takes_12_bytes_a_logit(self, keywords: dict[str, Any]) -> None:
        got = parts(spec_of(model="Qwen2.5-7B", batch=2, **keywords))
        assert got.logits == 12 * 152_064 * self.TOKENS

    @pytest.mark.parametrize(
        ("keywords", "size"),
        [
            ({"model": "Gemma-2-2B"}, 12 + 2),
            ({"model": "Gemma-2-2B", "autocast": False}, 12 + 4),
            ({"model": "Gemma-3-1B"}, 12),
        ],
    )
    def test_a_cap_keeps_its_tanh(self, keywords: dict[str, Any], size: int) -> None:
        spec = spec_of(**keywords)
        assert parts(spec).logits == size * spec.config["vocab_size"] * 512

    @pytest.mark.parametrize("keyword", ["liger", "compile"])
    def test_what_may_fuse_the_loss_has_no_closed_form(self, keyword: str) -> None:
        assert parts(spec_of(model="Qwen2.5-7B", **{keyword: True})).logits is None


class TestMeasuredElsewhere:
    @pytest.mark.parametrize(("name", "rank", "nf4", "scales", "fp32"), T4)
    def test_bytes_of_a_quantised_model(
        self, name: str, rank: int, nf4: float, scales: float, fp32: float
    ) -> None:
        spec = spec_of(
            model=name, rank=rank, targets="attention", double_quant=False, precision="fp16"
        )
        got = parts(spec)
        assert got.quantisation == scales * MIB
        assert got.weights + got.adapters == (nf4 + fp32) * MIB

    @pytest.mark.parametrize("row", H200, ids=lambda row: f"{row['model']} {row['method']}")
    def test_parts_add_up_to_the_peak_at_the_loss(self, row: dict[str, Any]) -> None:
        """To 1 % of what the allocator of an H200 counted in the backward of a steady step, with
        the two cuBLAS workspaces of 32 MiB there.
        """
        names = ["model", "method", "checkpointing", "optimizer", "seq", "batch", "precision"]
        if row["method"] != "full":
            names += ["rank", "targets", "dropout"]
        if row["method"] == "qlora":
            names += ["kbit_upcast", "double_quant"]
        spec = spec_of(
            **{name: row[name] for name in names},
            autocast=row["autocast"],
            dtype=row["precision"],
        )
        got = parts(spec)
        assert got.activations is not None
        assert got.logits is not None
        held = got.weights + got.quantisation + got.adapters + got.optimizer
        _, peak, _ = row["steady_step_peaks_mib"]
        expected = (held + got.activations + got.logits) / MIB + 2 * 32
        assert expected == pytest.approx(peak, rel=0.01)


def test_adapters_are_where_the_targets_say() -> None:
    """Rank 16 on all seven matrices of Qwen2.5-7B: 40,370,176 trainable parameters, as in
    h200_peaks.json.
    """
    assert parts(spec_of(model="Qwen2.5-7B")).adapters == 4 * 40_370_176
    assert parts(spec_of(model="Qwen2.5-7B", adapter_dtype="bf16")).gradients == 2 * 40_370_176


def test_modules_that_hold_each_other_cannot_both_be_saved() -> None:
    """PEFT copies the inner one twice, and keeps both."""
    spec = replace(SPEC, config=config_of("tiny"), modules_to_save=("mlp", "up_proj"))
    with pytest.raises(NoClosedFormError, match=r"'model\.layers\.0\.mlp\.up_proj' is in another"):
        parts(spec)


def test_parts_are_those_of_the_results_file() -> None:
    """All but the workspace, which is the device's."""
    ledger = (
        *("weights", "quantisation", "adapters", "gradients", "optimizer"),
        *("activations", "logits", "managed"),
    )
    assert {*Parts.__dataclass_fields__} == {*ledger}


def test_it_takes_milliseconds() -> None:
    """80 layers: the most of the catalogue."""
    spec = spec_of(model="Qwen2.5-72B")
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        parts(spec)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.05


def test_it_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from pytest_vramfit.estimating import closed_forms\n"
        "closed_forms.transformer({'model_type': 'llama'})\n"
        "print({'torch', 'transformers', 'numpy'} & sys.modules.keys())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert run.stdout.strip() == "set()"
