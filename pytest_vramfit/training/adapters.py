"""What a trainer does to the base model before the first step: k-bit preparation, checkpointing,
LoRA adapters.
"""

from __future__ import annotations

from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.model import DTYPES, UnbuildableError

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_PRESETS = {"attention": _ATTENTION, "qv": ("q_proj", "v_proj")}
"""Module names by role in llama-shaped models (all projections of attention; query and value)."""


def targets(model: PreTrainedModel, spec: TrainSpec) -> frozenset[str]:
    """The full names of the modules that get an adapter.

    ``"all-linear"`` is every linear but the output embedding, as in PEFT. Raises
    UnbuildableError where a name or a preset matches nothing, with the names that exist.
    """
    linears = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    }
    if spec.method == "full":
        return frozenset()
    if not linears:
        raise UnbuildableError("targets: this model has no linear modules")
    if spec.targets == "all-linear":
        return frozenset(linears)
    wanted = _asked(spec)
    chosen = {one: {name for name in linears if _names(one, name)} for one in wanted}
    unknown = [one for one in wanted if not chosen[one]]
    if unknown:
        exist = ", ".join(sorted({name.rpartition(".")[2] for name in linears}))
        what = repr(spec.targets) if isinstance(spec.targets, str) else repr(unknown[0])
        raise UnbuildableError(
            f"targets: {what} is not in this model, whose linear modules are called {exist}"
        )
    return frozenset().union(*chosen.values())


def prepare(model: PreTrainedModel, spec: TrainSpec) -> nn.Module:
    """The model as it is trained: frozen base with adapters, or all of it for ``full``."""
    checkpointing = {"use_reentrant": False}
    if spec.kbit_upcast:
        prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=bool(spec.checkpointing),
            gradient_checkpointing_kwargs=checkpointing,
        )
    elif spec.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpointing)
    if spec.method == "full":
        model.train()
        return model
    adapted: nn.Module = get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=spec.rank,
            lora_alpha=spec.alpha,
            lora_dropout=spec.dropout,
            target_modules=_asked(spec),
        ),
        autocast_adapter_dtype=False,
    )
    assert spec.adapter_dtype is not None
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[spec.adapter_dtype])
    adapted.train()
    return adapted


def _asked(spec: TrainSpec) -> str | list[str]:
    """The targets in PEFT's words."""
    assert spec.targets is not None
    if spec.targets == "all-linear":
        return "all-linear"
    return list(_PRESETS[spec.targets] if isinstance(spec.targets, str) else spec.targets)


def _names(target: str, module: str) -> bool:
    return module == target or module.endswith(f".{target}")
