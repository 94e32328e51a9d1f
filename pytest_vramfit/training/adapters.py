"""What a trainer does to the base model before the first step: k-bit preparation, checkpointing,
LoRA adapters.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from bitsandbytes.nn import Int8Params, Params4bit
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel
from transformers.pytorch_utils import Conv1D

from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.config import UnbuildableError, one_line
from pytest_vramfit.training.model import DTYPES

_ATTENTION_MODULES = {"self_attn", "attn", "attention", "self_attention"}
"""What the attention of a layer is called."""
_QUERY_AND_VALUE = (
    ("q_proj", "v_proj"),
    ("q_proj", "kv_b_proj"),
    ("q_b_proj", "kv_b_proj"),
    ("qkv_proj",),
    ("c_attn",),
    ("query_key_value",),
)
"""The projections that make queries and values: apart, from a latent (deepseek), fused."""


def targets(model: PreTrainedModel, spec: TrainSpec) -> frozenset[str]:
    """The full names of the modules that get an adapter.

    ``"all-linear"`` is every linear but the output embedding, as in PEFT; ``"attention"`` every
    linear of an attention, ``"qv"`` those that make queries and values, fused ones whole. None that
    is trained as a whole. Raises UnbuildableError where a name or a preset matches nothing, with
    the names that exist.
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
    for one in spec.modules_to_save or ():
        _check_can_be_saved(model, one)
    unknown: str | None
    if spec.targets == "all-linear":
        chosen, unknown = linears, None
    elif isinstance(spec.targets, str):
        chosen = _preset(spec.targets, linears)
        unknown = spec.targets if not chosen else None
    else:
        wanted = {
            one: {name for name in linears if is_called(one, name)} for one in spec.targets or ()
        }
        chosen = set().union(*wanted.values())
        unknown = next((one for one, found in wanted.items() if not found), None)
    if unknown is not None:
        raise UnbuildableError(
            f"targets: {unknown!r} is not in this model, whose linear modules are called "
            f"{_last_names(linears)}"
        )
    # as PEFT leaves them out
    left = {
        name
        for name in chosen
        if not any(f".{one}." in f".{name}." for one in spec.modules_to_save or ())
    }
    if not left:
        raise UnbuildableError("modules_to_save: no module is left for adapters")
    odd = {name for name in left if not _is_plain(model.get_submodule(name))}
    if odd:
        raise UnbuildableError(
            f"targets: {_last_names(odd)} of this model does more than a linear module, so an "
            f"adapter around it breaks; write a list of others: {_last_names(left - odd)}"
        )
    return frozenset(left)


def _is_plain(linear: nn.Module) -> bool:
    """Whether a linear of an outline returns one value for each of its rows: of a model's own kinds
    some return a router's choice, or multiply group by group.
    """
    if not type(linear).__module__.startswith("transformers.models."):
        return True
    weight = linear.get_parameter("weight")
    rows, columns = weight.shape
    try:
        result = linear(torch.empty(1, columns, dtype=weight.dtype, device=weight.device))
    except RuntimeError:  # it wants another shape
        return False
    return isinstance(result, torch.Tensor) and result.shape == (1, rows)


def _preset(preset: str, linears: set[str]) -> set[str]:
    attention = {name for name in linears if _ATTENTION_MODULES & {*name.split(".")[:-1]}}
    if preset == "attention":
        return attention
    last = {name.rpartition(".")[2] for name in attention}
    roles = next((one for one in _QUERY_AND_VALUE if last >= {*one}), ())
    return {name for name in attention if name.rpartition(".")[2] in roles}


def _check_can_be_saved(model: PreTrainedModel, wanted: str) -> None:
    modules = {name: one for name, one in model.named_modules() if name and [*one.parameters()]}
    found = [module for name, module in modules.items() if is_called(wanted, name)]
    if not found:
        raise UnbuildableError(
            f"modules_to_save: {wanted!r} is not in this model, whose modules are called "
            f"{_last_names(modules)}"
        )
    if any(isinstance(one, Params4bit | Int8Params) for m in found for one in m.parameters()):
        raise UnbuildableError(
            f"modules_to_save: {wanted!r} is quantised, which cannot be trained as a whole"
        )


def _last_names(names: Iterable[str]) -> str:
    last = {name.rpartition(".")[2] for name in names}
    return ", ".join(sorted(one for one in last if not one.isdigit()))


def prepare(model: PreTrainedModel, spec: TrainSpec, adapted: frozenset[str]) -> nn.Module:
    """The model as it is trained: frozen base with adapters, or all of it for ``full``.

    ``adapted`` are the modules that get an adapter, from :func:`targets`. Raises UnbuildableError.
    """
    reentrant = spec.checkpointing == "reentrant"
    checkpointing = {"use_reentrant": reentrant}
    if spec.kbit_upcast:
        prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=bool(spec.checkpointing),
            gradient_checkpointing_kwargs=checkpointing,
        )
    elif spec.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpointing)
    if spec.liger:
        apply_liger_kernel(model, None)
    if spec.method == "full":
        model.train()
        return model
    if reentrant:
        # a checkpointed layer has a gradient only where its input wants one
        model.enable_input_require_grads()
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=sorted(adapted),
        modules_to_save=list(spec.modules_to_save) if spec.modules_to_save else None,
        use_dora=spec.dora,
        use_rslora=spec.rslora,
    )
    try:
        adapted_model: nn.Module = get_peft_model(model, lora, autocast_adapter_dtype=False)
    except (
        ValueError
    ) as error:  # of architectures that PEFT knows it cannot adapt, or not like this
        raise UnbuildableError(
            f"targets: PEFT cannot adapt {_last_names(adapted)} of this model: {one_line(error)}"
        ) from error
    assert spec.adapter_dtype is not None
    for name, parameter in adapted_model.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.to(DTYPES[spec.adapter_dtype])
    adapted_model.train()
    return adapted_model


def is_called(target: str, module: str) -> bool:
    """Whether a module is the one of this name, or ends in it."""
    return module == target or module.endswith(f".{target}")


def parts(model: nn.Module) -> dict[str, list[torch.Tensor]]:
    """The tensors of a prepared model, by part of the ledger: the base's, and what is beside it."""
    named = dict(model.named_parameters())
    beside = {name: one for name, one in named.items() if is_adapter(name) or is_saved(name)}
    base = [one for name, one in named.items() if name not in beside]
    return {"adapters": [*beside.values()], "weights": [*base, *model.buffers()]}


def is_adapter(name: str) -> bool:
    """Whether a parameter or module of this name belongs to an adapter."""
    return any(part.startswith("lora_") for part in name.split("."))


def is_saved(name: str) -> bool:
    """Whether a parameter of this name is the trained copy of one of ``modules_to_save``."""
    return "modules_to_save" in name.split(".")
