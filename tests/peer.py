"""What fitcheck-llm predicts for a case, to put beside our own figures.

Wants ``pip install fitcheck-llm==0.3.1``, which needs nothing of a GPU.
"""

from __future__ import annotations

from fitcheck import ModelConfig, TrainingConfig, estimate, get_gpu  # type: ignore[import-not-found]

from pytest_vramfit.estimating.transformer import NoClosedFormError, transformer
from pytest_vramfit.spec import TrainSpec

TARGETS = {
    "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qv": ["q_proj", "v_proj"],
    "all-linear": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


class OutOfScopeError(Exception):
    """It does not model this case."""


def peak_mib(spec: TrainSpec) -> float:
    """The bytes of its tensors together, without the overhead that it adds for a card."""
    config = dict(spec.config)
    missing = {"num_attention_heads", "hidden_size", "intermediate_size"} - config.keys()
    if missing:
        raise OutOfScopeError(f"it reads {', '.join(sorted(missing))}, which the config lacks")
    try:
        known = transformer(config)
    except NoClosedFormError as error:  # such as a mixture of experts
        raise OutOfScopeError(str(error)) from error
    heads = config["num_attention_heads"]
    model = ModelConfig(
        name=spec.model,
        num_params=known.parameters,
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_kv_heads=config.get("num_key_value_heads", heads),
        intermediate_size=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        tie_word_embeddings=known.tied,
    )
    optimizers = {"adamw_fused": "adamw", "adamw_8bit": "adam8bit"}
    training = TrainingConfig(
        precision=spec.precision,
        quantization={None: "none"}.get(spec.quant, spec.quant),
        double_quant=bool(spec.double_quant),
        optimizer=optimizers.get(spec.optimizer, spec.optimizer),
        batch_size=spec.batch,
        seq_len=spec.seq,
        lora_rank=spec.rank,
        lora_targets=TARGETS[spec.targets] if isinstance(spec.targets, str) else [],
        grad_checkpoint=bool(spec.checkpointing),
        flash_attn=spec.attention == "sdpa",
        grad_accum_steps=spec.accumulation,
    )
    try:
        report = estimate(model, training, get_gpu("h200"))
    except ValueError as error:
        raise OutOfScopeError(str(error)) from error
    return float(report.total_mib - report.overhead_mib)
