"""From the keywords of a test's markers to its claim."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pytest_vramfit import catalog
from pytest_vramfit.marker.claim import read_claim
from pytest_vramfit.marker.keywords import MarkerError
from pytest_vramfit.quantity import Headroom
from pytest_vramfit.spec import Claim, Limits, Schedule, TrainSpec

ROOT = Path("/nowhere")


def read(*layers: dict[str, object]) -> Claim:
    return read_claim(layers, rootdir=ROOT)


def spec(**keywords: object) -> TrainSpec:
    return read({"model": "Qwen2.5-7B", **keywords}).spec


def refusal(*layers: dict[str, object]) -> str:
    with pytest.raises(MarkerError) as refused:
        read(*layers)
    return str(refused.value)


def test_defaults() -> None:
    """The marker ``fits_vram(model=...)`` and nothing else, each value as documented."""
    model = catalog.find("Qwen2.5-7B")
    assert model is not None
    assert read({"model": "Qwen2.5-7B"}) == Claim(
        spec=TrainSpec(
            model="Qwen2.5-7B",
            config=dict(model.config),
            method="qlora",
            rank=16,
            alpha=32.0,
            dropout=0.05,
            targets="all-linear",
            adapter_dtype="fp32",
            quant="nf4",
            double_quant=True,
            kbit_upcast=True,
            seq=512,
            batch=1,
            accumulation=1,
            precision="bf16",
            autocast=True,
            dtype="bf16",
            optimizer="adamw",
            max_grad_norm=1.0,
            checkpointing=False,
            attention="sdpa",
        ),
        limits=Limits(card_bytes=None, headroom=Headroom(share=0.0), max_step_ns=None),
        schedule=Schedule(warmup=3, steps=5, timeout_s=600.0),
    )


def test_every_keyword_reaches_its_field() -> None:
    """Each with a value that is not the default, so that a swapped pair would show."""
    claim = read(
        {
            "model": "Qwen2.5-7B",
            "method": "qlora",
            "rank": 4,
            "alpha": 5,
            "dropout": 0.25,
            "targets": ["v_proj", "q_proj"],
            "adapter_dtype": "bf16",
            "quant": "fp4",
            "double_quant": False,
            "kbit_upcast": False,
            "seq": 128,
            "batch": 3,
            "accumulation": 6,
            "precision": "fp16",
            "autocast": False,
            "dtype": "fp32",
            "optimizer": "sgd",
            "max_grad_norm": None,
            "checkpointing": True,
            "attention": "eager",
            "modules_to_save": ["lm_head"],
            "dora": True,
            "rslora": True,
            "liger": True,
            "compile": True,
            "alloc_conf": "expandable_segments:True",
            "weights": "pretrained",
            "revision": "main",
            "lengths": "varied",
            "card": "8GiB",
            "headroom": "10%",
            "max_step": "2s",
            "steps": 7,
            "warmup": 2,
            "timeout": 30,
            "phases": ["eval", "merge"],
            "eval_batch": 2,
        }
    )
    assert claim == Claim(
        spec=TrainSpec(
            model="Qwen2.5-7B",
            config=claim.spec.config,
            method="qlora",
            rank=4,
            alpha=5.0,
            dropout=0.25,
            targets=("q_proj", "v_proj"),
            adapter_dtype="bf16",
            quant="fp4",
            double_quant=False,
            kbit_upcast=False,
            seq=128,
            batch=3,
            accumulation=6,
            precision="fp16",
            autocast=False,
            dtype="fp32",
            optimizer="sgd",
            max_grad_norm=None,
            checkpointing=True,
            attention="eager",
            modules_to_save=("lm_head",),
            dora=True,
            rslora=True,
            liger=True,
            compile=True,
            alloc_conf="expandable_segments:True",
            weights="pretrained",
            checkpoint="Qwen/Qwen2.5-7B",
            revision="main",
            lengths="varied",
        ),
        limits=Limits(
            card_bytes=8_589_934_592, headroom=Headroom(share=0.1), max_step_ns=2_000_000_000
        ),
        schedule=Schedule(
            warmup=2, steps=7, timeout_s=30.0, phases=("eval", "merge"), eval_batch=2
        ),
    )


def test_alpha_is_twice_the_rank() -> None:
    assert spec(rank=24).alpha == 48.0


@pytest.mark.parametrize(
    ("method", "precision", "dtype"),
    [
        ("full", "bf16", "fp32"),
        ("full", "fp16", "fp32"),
        ("lora", "bf16", "bf16"),
        ("lora", "fp16", "fp16"),
        ("qlora", "bf16", "bf16"),
        ("qlora", "fp32", "fp32"),
    ],
)
def test_dtype_auto(method: str, precision: str, dtype: str) -> None:
    assert spec(method=method, precision=precision).dtype == dtype
    assert spec(method=method, precision=precision, dtype="auto").dtype == dtype


def test_without_autocast_full_fine_tuning_is_in_the_dtype_of_its_precision() -> None:
    assert spec(method="full", precision="bf16", autocast=False).dtype == "bf16"


def test_autocast_has_nothing_to_do_in_fp32() -> None:
    """One spelling of the same step, so one digest."""
    assert spec(precision="fp32").autocast is False
    assert spec(precision="fp32").digest == spec(precision="fp32", autocast=False).digest


@pytest.mark.parametrize(
    ("spelling", "same"),
    [
        ({"model": "Qwen/Qwen2.5-7B-Instruct"}, {"model": "Qwen2.5-7B"}),
        ({"model": "qwen2.5-7b"}, {"model": "Qwen2.5-7B"}),
        ({"model": "tiny", "alpha": 32}, {"model": "tiny", "alpha": 32.0}),
        ({"model": "tiny", "optimizer": "adamw_torch"}, {"model": "tiny", "optimizer": "adamw"}),
        ({"model": "tiny", "dtype": "bf16"}, {"model": "tiny"}),
        ({"model": "tiny", "targets": ["q_proj"]}, {"model": "tiny", "targets": ("q_proj",)}),
        ({"model": "tiny", "card": "1GiB"}, {"model": "tiny", "card": "1024MiB"}),
        ({"model": "tiny", "headroom": "0%"}, {"model": "tiny"}),
        ({"model": "tiny", "max_step": "2s"}, {"model": "tiny", "max_step": "2000ms"}),
        ({"model": "tiny", "phases": ["train"]}, {"model": "tiny"}),
        (
            {"model": "tiny", "phases": ["save", "train", "eval"]},
            {"model": "tiny", "phases": ["eval", "save"], "eval_batch": 8},
        ),
        ({"model": "tiny", "weights": "random"}, {"model": "tiny", "alloc_conf": None}),
        ({"model": "tiny", "card": "RTX 5070 Ti"}, {"model": "tiny", "card": "nvidia rtx-5070-ti"}),
    ],
)
def test_two_spellings_are_one_claim(spelling: dict[str, object], same: dict[str, object]) -> None:
    assert read(spelling) == read(same)


@pytest.mark.parametrize(
    ("trainer", "optimizer"),
    [
        ("adamw_torch", "adamw"),
        ("adamw_hf", "adamw"),
        ("adamw_torch_fused", "adamw_fused"),
        ("adamw_8bit", "adamw_8bit"),
        ("adamw_bnb_8bit", "adamw_8bit"),
        ("paged_adamw", "paged_adamw"),
        ("paged_adamw_32bit", "paged_adamw"),
        ("paged_adamw_8bit", "paged_adamw_8bit"),
        ("adafactor", "adafactor"),
        ("sgd", "sgd"),
    ],
)
def test_trainer_s_optimizer_names(trainer: str, optimizer: str) -> None:
    assert spec(optimizer=trainer).optimizer == optimizer


ADAPTER = {"rank", "alpha", "dropout", "targets", "adapter_dtype"}
QUANTISATION = {"quant", "double_quant", "kbit_upcast"}
NOT_ASKED = {"modules_to_save", "alloc_conf", "checkpoint", "revision"}


@pytest.mark.parametrize(
    ("method", "unused"),
    [("full", ADAPTER | QUANTISATION), ("lora", QUANTISATION), ("qlora", set())],
)
def test_fields_that_a_method_does_not_use_are_none(method: str, unused: set[str]) -> None:
    read_spec = spec(method=method, max_grad_norm=1.0)
    none = {field.name for field in fields(read_spec) if getattr(read_spec, field.name) is None}
    assert none == unused | NOT_ASKED


@pytest.mark.parametrize(("quant", "double_quant"), [("nf4", True), ("fp4", True), ("int8", None)])
def test_int8_has_no_constants_to_quantise_once_more(quant: str, double_quant: object) -> None:
    assert spec(quant=quant).double_quant is double_quant


@pytest.mark.parametrize(
    ("keywords", "checkpoint"),
    [
        ({"model": "Qwen2.5-7B"}, "Qwen/Qwen2.5-7B"),
        ({"model": "qwen/qwen2.5-7b-instruct"}, "Qwen/Qwen2.5-7B-Instruct"),
        ({"model": "nobody/unknown"}, "nobody/unknown"),
    ],
)
def test_pretrained_weights_are_those_of_a_hub_id(
    keywords: dict[str, object], checkpoint: str
) -> None:
    read_spec = read({**keywords, "weights": "pretrained"}).spec
    assert (read_spec.checkpoint, read_spec.weights) == (checkpoint, "pretrained")


def test_random_weights_of_a_known_shape_need_no_checkpoint() -> None:
    assert spec().checkpoint is None


def test_shape_of_an_unknown_hub_id_is_the_worker_s_to_read() -> None:
    read_spec = read({"model": "nobody/unknown", "revision": "v1"}).spec
    assert (read_spec.model, read_spec.config) == ("nobody/unknown", {})
    assert (read_spec.checkpoint, read_spec.revision) == ("nobody/unknown", "v1")
    assert read_spec.weights == "random"


def test_pretrained_weights_of_a_folder_are_read_from_the_rootdir(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    layers = [{"model": "mine", "weights": "pretrained"}]
    read_spec = read_claim(layers, rootdir=tmp_path).spec
    assert read_spec.checkpoint == str(tmp_path / "mine")
    assert read_spec.config == {"model_type": "llama"}


def test_later_layer_wins_key_by_key() -> None:
    claim = read(
        {"model": "Qwen2.5-7B", "seq": 512, "batch": 1, "card": "8GiB"},
        {"seq": 1024, "steps": 9},
        {"batch": 2},
    )
    assert (claim.spec.seq, claim.spec.batch, claim.schedule.steps) == (1024, 2, 9)
    assert claim.limits.card_bytes == 8 * 2**30


def test_later_model_displaces_an_earlier_one() -> None:
    claim = read({"model": "Qwen2.5-7B", "seq": 64}, {"model": "tiny"})
    assert (claim.spec.model, claim.spec.seq) == ("tiny", 64)


@pytest.mark.parametrize("source", ["config", "step"])
def test_none_for_another_source_displaces_nothing(source: str) -> None:
    assert read({"model": "tiny"}, {source: None}).spec.model == "tiny"


def test_default_asked_for_in_an_inner_layer_undoes_an_outer_one() -> None:
    claim = read(
        {"model": "tiny", "card": "8GiB", "max_step": "1s"}, {"card": None, "max_step": None}
    )
    assert claim.limits == Limits()


def test_ratio_of_none_switches_a_check_off_and_is_no_default() -> None:
    claim = read(
        {"model": "tiny", "step_ratio": 2, "gpu_ratio": 1.5, "require": ["steady"]},
        {"gpu_ratio": None, "peak_ratio": 1, "require": ["gpu_time", "resident"]},
    )
    assert claim.limits == Limits(
        step_ratio=2.0,
        gpu_ratio=None,
        peak_ratio=1.0,
        require=frozenset({"gpu_time", "resident"}),
    )
    assert read({"model": "tiny"}, {"require": ["steady"]}, {"require": None}).limits == Limits()


def test_what_a_full_card_does_is_a_limit() -> None:
    claim = read({"model": "tiny", "overflow": "spill"}, {"card": "8GiB"})
    assert claim.limits == Limits(card_bytes=8 * 2**30, overflow="spill")
    assert read({"model": "tiny"}).limits.overflow == "oom"
    assert read({"model": "tiny", "overflow": "spill"}, {"overflow": "oom"}).limits == Limits()


@pytest.mark.parametrize("layers", [({"overflow": "spill"},), ({"card": "8GiB"}, {"card": None})])
def test_a_card_that_is_to_overflow_is_needed(layers: tuple[dict[str, object], ...]) -> None:
    assert refusal({"model": "tiny", "overflow": "spill"}, *layers) == (
        "fits_vram: overflow='spill' needs the card that is to overflow: card='RTX 5070 Ti' in "
        "the marker, or --vramfit-card"
    )


def test_segments_that_cannot_be_served_from_host_memory_are_a_mistake_beside_spill() -> None:
    spilling: dict[str, object] = {"model": "tiny", "card": "8GiB", "overflow": "spill"}
    assert refusal({**spilling, "alloc_conf": "a:1, expandable_segments:True"}) == (
        "fits_vram: overflow='spill' does not go with alloc_conf="
        "'a:1,expandable_segments:True': such segments cannot be served from host memory"
    )
    assert read({**spilling, "alloc_conf": "a:1"}).spec.alloc_conf == "a:1"


def test_alpha_follows_the_rank_of_an_inner_layer() -> None:
    assert read({"model": "tiny", "rank": 8}, {"rank": 32}).spec.alpha == 64.0


def test_layers_stay_as_they_were_written() -> None:
    outer, inner = {"model": "tiny", "targets": ["b", "a"]}, {"seq": 8}
    read(outer, inner)
    assert outer == {"model": "tiny", "targets": ["b", "a"]}
    assert inner == {"seq": 8}


@pytest.mark.parametrize("layers", [(), ({},), ({"seq": 64}, {"rank": 8})])
def test_model_is_needed(layers: tuple[dict[str, object], ...]) -> None:
    assert refusal(*layers) == "fits_vram needs a model, such as fits_vram(model='Qwen2.5-7B')"


def test_wrong_keyword_of_an_outer_layer_is_told_though_an_inner_one_overrides_it() -> None:
    says = refusal({"model": "tiny", "seq": 0}, {"seq": 64})
    assert says == "fits_vram: seq=0 must be an integer from 2 to 16,777,216"


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        (
            {"method": "full", "rank": 8},
            "fits_vram: rank=8 has no meaning with method='full', only with 'lora' or 'qlora'",
        ),
        (
            {"method": "full", "targets": "qv"},
            (
                "fits_vram: targets='qv' has no meaning with method='full', only with 'lora' or "
                "'qlora'"
            ),
        ),
        (
            {"method": "full", "quant": "nf4"},
            "fits_vram: quant='nf4' has no meaning with method='full', only with 'qlora'",
        ),
        (
            {"method": "lora", "double_quant": True},
            "fits_vram: double_quant=True has no meaning with method='lora', only with 'qlora'",
        ),
        (
            {"method": "full", "targets": [f"layers.{index}.q_proj" for index in range(9)]},
            (
                "fits_vram: targets=['layers.0.q_proj', 'layers.1.q_proj', 'layers.2.q_proj', "
                "'layers.3.q_proj', ... has no meaning with method='full', only with 'lora' or "
                "'qlora'"
            ),
        ),
        (
            {"method": "full", "precision": "fp16", "dtype": "fp16"},
            (
                "fits_vram: dtype='fp16' cannot be trained in full with precision='fp16' and "
                "autocast, because the gradient scaler refuses fp16 weights; use dtype='fp32'"
            ),
        ),
        (
            {"precision": "fp32", "dtype": "bf16"},
            (
                "fits_vram: dtype='bf16' must be 'fp32' where precision='fp32' and nothing is cast "
                "automatically, or the arithmetic would be in bf16"
            ),
        ),
        (
            {"method": "lora", "autocast": False, "dtype": "fp32"},
            (
                "fits_vram: dtype='fp32' must be 'bf16' where precision='bf16' and nothing is cast "
                "automatically, or the arithmetic would be in fp32"
            ),
        ),
        (
            {"quant": "int8", "double_quant": False},
            (
                "fits_vram: double_quant=False has no meaning with quant='int8', only with 'nf4' "
                "or 'fp4'"
            ),
        ),
        (
            {"method": "lora", "quant": "int8"},
            "fits_vram: quant='int8' has no meaning with method='lora', only with 'qlora'",
        ),
        (
            {"method": "full", "dora": True},
            "fits_vram: dora=True has no meaning with method='full', only with 'lora' or 'qlora'",
        ),
        (
            {"method": "full", "modules_to_save": ["lm_head"]},
            (
                "fits_vram: modules_to_save=['lm_head'] has no meaning with method='full', only "
                "with 'lora' or 'qlora'"
            ),
        ),
        (
            {"method": "lora", "precision": "fp16", "modules_to_save": ["lm_head"]},
            (
                "fits_vram: modules_to_save cannot be trained in dtype='fp16' with "
                "precision='fp16' and autocast, because the gradient scaler refuses fp16 weights; "
                "use dtype='fp32'"
            ),
        ),
        (
            {"precision": "fp16", "modules_to_save": ["lm_head"], "kbit_upcast": False},
            (
                "fits_vram: modules_to_save cannot be trained in dtype='fp16' with "
                "precision='fp16' and autocast, because the gradient scaler refuses fp16 weights; "
                "use dtype='fp32'"
            ),
        ),
        (
            {"method": "full", "phases": ["save", "merge"]},
            (
                "fits_vram: phases=['save', 'merge'] has no meaning with method='full': there are "
                "no adapters to merge"
            ),
        ),
        (
            {"eval_batch": 4},
            "fits_vram: eval_batch=4 has no meaning without phases=['eval']",
        ),
        (
            {"eval_batch": 4, "phases": ["save"]},
            "fits_vram: eval_batch=4 has no meaning without phases=['eval']",
        ),
        (
            {"model": "tiny", "weights": "pretrained"},
            (
                "fits_vram: model='tiny' has no checkpoint that the catalogue knows; name a folder "
                "or a hub id"
            ),
        ),
        (
            {"model": {"model_type": "llama"}, "weights": "pretrained"},
            (
                "fits_vram: model={'model_type': 'llama'} has no checkpoint; name a folder or a "
                "model of the hub"
            ),
        ),
        (
            {"revision": "main"},
            (
                "fits_vram: revision='main' has no meaning here: nothing of Qwen2.5-7B is read "
                "from the hub"
            ),
        ),
        (
            {"model": "gpt2", "seq": 1025},
            "fits_vram: seq=1025 must be at most 1,024, the learned positions of gpt2",
        ),
        (
            {"model": {"model_type": "opt", "max_position_embeddings": 64}, "seq": 65},
            "fits_vram: seq=65 must be at most 64, the learned positions of custom opt",
        ),
        (
            {"model": {"model_type": "gpt2", "n_positions": "64"}},
            (
                "fits_vram: model={'model_type': 'gpt2', 'n_positions': '64'}: the number of "
                "positions must be a positive integer, got '64'"
            ),
        ),
    ],
)
def test_keywords_that_contradict_each_other(keywords: dict[str, object], says: str) -> None:
    assert refusal({"model": "Qwen2.5-7B", **keywords}) == says


def test_revision_of_a_folder_has_no_meaning(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(MarkerError, match=r"revision='main' has no meaning here: nothing of"):
        read_claim(
            [{"model": str(tmp_path), "weights": "pretrained", "revision": "main"}], rootdir=ROOT
        )


@pytest.mark.parametrize("key", sorted(ADAPTER | QUANTISATION | {"dora", "rslora"}))
def test_every_field_that_full_does_not_use_is_refused_beside_it(key: str) -> None:
    """On one marker: there it is a mistake."""
    says = refusal({"model": "tiny", "method": "full", key: getattr(spec(), key)})
    assert f": {key}=" in says
    assert "has no meaning with method='full'" in says


def test_rank_of_an_inner_layer_is_a_mistake_under_an_outer_full() -> None:
    """Whoever wrote it meant it to train something."""
    assert refusal({"model": "tiny", "method": "full"}, {"rank": 8}) == (
        "fits_vram: rank=8 has no meaning with method='full', only with 'lora' or 'qlora'"
    )


def test_rank_of_an_outer_layer_is_no_mistake_under_another_method() -> None:
    """A module's marker says rank for all its tests, one of them trains in full."""
    assert read({"model": "tiny", "rank": 8}, {"method": "full"}).spec.rank is None


@pytest.mark.parametrize(
    ("outer", "inner", "same"),
    [
        ({"double_quant": False}, {"quant": "int8"}, {"quant": "int8"}),
        (
            {"phases": ["save", "merge"]},
            {"method": "full"},
            {"method": "full", "phases": ["save"]},
        ),
        ({"phases": ["eval"], "eval_batch": 2}, {"phases": ["save"]}, {"phases": ["save"]}),
        ({"dora": True, "rslora": True}, {"method": "full"}, {"method": "full"}),
        (
            {"model": "nobody/one", "revision": "v1"},
            {"model": "nobody/two"},
            {"model": "nobody/two"},
        ),
        (
            {"model": "Qwen2.5-7B", "weights": "pretrained", "revision": "v1"},
            {"weights": "random"},
            {"model": "Qwen2.5-7B"},
        ),
    ],
)
def test_what_an_inner_layer_has_no_use_for_is_displaced(
    outer: dict[str, object], inner: dict[str, object], same: dict[str, object]
) -> None:
    """It is the module's, for its other tests."""
    assert read({"model": "tiny", **outer}, inner) == read({"model": "tiny"}, same)


def test_revision_stays_where_the_config_is_of_it_too() -> None:
    """Of a model that only the hub knows, whatever its weights."""
    outer = {"model": "nobody/unknown", "weights": "pretrained", "revision": "v1"}
    inner = read(outer, {"weights": "random"}).spec
    assert (inner.weights, inner.checkpoint, inner.revision) == ("random", "nobody/unknown", "v1")


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ({"weights": "random"}, {"revision": "v1"}),
        ({"revision": "v1"}, {"seq": 1024}),
        ({}, {"weights": "random", "revision": "v1"}),
        ({"quant": "int8"}, {"double_quant": True}),
        ({"method": "full"}, {"phases": ["merge"]}),
        ({"phases": ["save"]}, {"eval_batch": 2}),
    ],
)
def test_what_an_inner_layer_writes_in_vain_is_a_mistake(
    outer: dict[str, object], inner: dict[str, object]
) -> None:
    assert "has no meaning" in refusal({"model": "tiny", **outer}, inner)


@pytest.mark.parametrize(
    "keywords",
    [
        {"model": "gpt2", "seq": 1024},
        {"model": "Qwen2.5-7B", "seq": 2**20},  # rotary positions know no end
        {
            "model": "tiny",
            "method": "full",
            "precision": "fp16",
            "dtype": "fp16",
            "autocast": False,
        },
        {"model": "tiny", "method": "full", "precision": "fp16", "dtype": "bf16"},
        {"model": "tiny", "method": "lora", "precision": "fp16", "dtype": "fp16"},
        {"model": "tiny", "precision": "fp16", "modules_to_save": ["lm_head"]},  # upcast to fp32
        {
            "model": "tiny",
            "method": "lora",
            "precision": "fp16",
            "dtype": "fp32",
            "modules_to_save": ["lm_head"],
        },
        {"model": "nobody/unknown", "weights": "pretrained", "revision": "main"},
        {"model": "Qwen2.5-7B", "weights": "pretrained", "revision": "main"},
        {"model": "tiny", "method": "full", "phases": ["train", "eval", "save"]},
    ],
)
def test_keywords_that_go_together(keywords: dict[str, object]) -> None:
    assert read(keywords).spec.digest


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_that_cannot_be_shown_is_refused_all_the_same() -> None:
    class Eight(Silent):
        def __index__(self) -> int:
            return 8

    assert refusal({"model": "tiny", "method": "full", "rank": Eight()}) == (
        "fits_vram: rank=<Eight, whose repr raises RuntimeError> has no meaning with "
        "method='full', only with 'lora' or 'qlora'"
    )
