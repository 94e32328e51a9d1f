"""The evidence that a step trained what was asked.

A gate that only looks at memory passes a step that trains nothing: it is smaller and faster. So
the gradients of every trainable tensor are looked at, every tensor is fingerprinted before the
first and after the last step, and the shapes that reach the embedding are recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from bitsandbytes.nn import Int8Params, Params4bit
from torch import nn
from transformers.pytorch_utils import Conv1D

from pytest_vramfit.measurement import Evidence, Peaks
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.adapters import is_adapter, is_called, is_saved
from pytest_vramfit.training.step import Meter, Step

_WORD_BYTES = 8


class Proof:
    """Made before the first step; watches one step; asked for :meth:`evidence` after the last."""

    def __init__(self, step: Step, spec: TrainSpec, adapted: frozenset[str]) -> None:
        """``adapted`` are the modules that must have an adapter, named as in the bare model."""
        self._step = step
        self._spec = spec
        self._adapted = adapted
        self._before = fingerprints(step.model.named_parameters())
        self._trained_before = self._before
        self._gradients: dict[str, float | None] = {}
        self._batches: list[tuple[int, ...]] = []
        self._layer_runs = 0

    def watched_step(self, meter: Meter) -> Peaks:
        """Take a step, look at its batches, layers and gradients, and fingerprint what it trained.

        Not the first one: LoRA's A has a gradient only once B has moved.
        """
        self._batches.clear()
        self._layer_runs = 0

        def see_batch(_: nn.Module, args: tuple[Any, ...]) -> None:
            self._batches.append(tuple(args[0].shape))

        def see_layer(*_: object) -> None:
            self._layer_runs += 1

        def inspect() -> None:
            self._gradients = _gradient_norms(self._step.trainable)

        model: Any = self._step.model
        hooks = (
            model.get_input_embeddings().register_forward_pre_hook(see_batch),
            _linear_of_a_layer(model).register_forward_pre_hook(see_layer),
        )
        # hooks do not run in compiled code, so that step is not compiled
        eager = torch.compiler.set_stance("force_eager") if self._spec.compile else nullcontext()
        try:
            with eager:
                peaks = self._step.run(meter, inspect)
        finally:
            for hook in hooks:
                hook.remove()
        self._trained_before = fingerprints(self._step.trainable.items())
        return peaks

    def evidence(self) -> Evidence:
        """What was seen in the watched step, and which tensors have moved by now."""
        step, spec, gradients = self._step, self._spec, self._gradients
        after = fingerprints(step.model.named_parameters())
        before = {**self._before, **self._trained_before}
        changed = {name for name, value in after.items() if value != before[name]}
        adapted = _adapted(step.model)
        parameters = dict(step.model.named_parameters())
        frozen = {name: one for name, one in parameters.items() if name not in step.trainable}
        matrices = _matrices(step.model)
        return Evidence(
            loss=step.loss if math.isfinite(step.loss) else None,
            applied_steps=step.applied,
            skipped_steps=step.skipped,
            batches=tuple(self._batches),
            layer_runs=self._layer_runs,
            not_training=tuple(n for n, one in step.model.named_modules() if not one.training),
            adapters=sum(_is_asked(adapted[one], spec) for one in self._adapted & adapted.keys()),
            adapters_expected=len(self._adapted),
            unexpected_adapters=tuple(sorted(adapted.keys() - self._adapted)),
            trainable_parameters=sum(one.numel() for one in step.trainable.values()),
            total_parameters=sum(
                _elements(one)
                for name, one in parameters.items()
                if not is_adapter(name) and not is_saved(name)
            ),
            trainable_tensors=len(step.trainable),
            without_gradient=tuple(n for n, norm in gradients.items() if norm is None),
            zero_gradient=tuple(n for n, norm in gradients.items() if norm == 0),
            nonfinite_gradient=tuple(
                n for n, norm in gradients.items() if norm is not None and not math.isfinite(norm)
            ),
            unmoved=tuple(
                name
                for name, one in step.trainable.items()
                if name not in changed and _can_move(one)
            ),
            wrongly_trainable=tuple(
                name
                for name in parameters
                if (name in step.trainable)
                != (spec.method == "full" or is_adapter(name) or is_saved(name))
            ),
            base_changed=tuple(name for name in frozen if name in changed),
            trainable_dtypes=_dtypes(
                one for name, one in step.trainable.items() if not is_saved(name)
            ),
            saved_dtypes=_dtypes(one for name, one in step.trainable.items() if is_saved(name)),
            saved=tuple(
                one
                for one in spec.modules_to_save or ()
                if any(is_called(one, module) for module in _saved(step.trainable))
            ),
            base_dtypes=_dtypes(
                one for one in frozen.values() if not isinstance(one, Params4bit | Int8Params)
            ),
            devices=dict(
                Counter(one.device.type for one in (*parameters.values(), *step.model.buffers()))
            ),
            quantised_elements=sum(
                _elements(one) for one in matrices.values() if _is_quantised(one, spec)
            ),
            matrix_elements=sum(_elements(one) for one in matrices.values()),
            unquantised=_bytes_by_place(
                {name: one for name, one in matrices.items() if not _is_quantised(one, spec)}
                if spec.method == "qlora"
                else {}
            ),
        )


def fingerprints(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """A number for each tensor that changes when any of its bits does.

    The 64-bit sum of its bytes read as 8-byte integers: exact, in place, no copy of the tensor.
    """
    named = [(name, _bit_sum(tensor)) for name, tensor in tensors]
    sums: list[int] = torch.stack([value for _, value in named]).tolist()
    return {name: value for (name, _), value in zip(named, sums, strict=True)}


def _bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = raw.numel() // _WORD_BYTES * _WORD_BYTES
    total = raw[:whole].view(torch.int64).sum()
    return total if whole == raw.numel() else total + raw[whole:].sum(dtype=torch.int64)


def _gradient_norms(trainable: Mapping[str, nn.Parameter]) -> dict[str, float | None]:
    """The norm of each gradient; None where there is none."""
    present = {name: one.grad for name, one in trainable.items() if one.grad is not None}
    norms: dict[str, float | None] = dict.fromkeys(trainable)
    if present:
        values = torch._foreach_norm(list(present.values()), ord=torch.inf)
        listed = torch.stack([value.float() for value in values]).tolist()
        norms.update(zip(present, listed, strict=True))
    return norms


def _adapted(model: nn.Module) -> dict[str, Any]:
    """The modules with an adapter, by their name in the bare model."""
    return {
        name.removeprefix("base_model.model."): module
        for name, module in model.named_modules()
        if hasattr(module, "lora_A")
    }


def _saved(trainable: Iterable[str]) -> set[str]:
    """The modules with a trained copy, from the names of what is trained."""
    return {name.partition(".modules_to_save.")[0] for name in trainable if is_saved(name)}


def _is_asked(module: Any, spec: TrainSpec) -> bool:
    """Whether the module has one adapter, of the asked rank, scaling and kind, and the shapes that
    go with it.
    """
    assert spec.rank is not None
    assert spec.alpha is not None
    (a,), (b,), (scaling,) = (
        one.values() for one in (module.lora_A, module.lora_B, module.scaling)
    )
    rows, columns = module.out_features, module.in_features
    asked = spec.alpha / (math.sqrt(spec.rank) if spec.rslora else spec.rank)
    return bool(
        a.weight.shape == (spec.rank, columns)
        and b.weight.shape == (rows, spec.rank)
        and math.isclose(scaling, asked)
        and bool(module.lora_magnitude_vector) == spec.dora
    )


def _linear_of_a_layer(model: nn.Module) -> nn.Module:
    """A linear inside one of the numbered layers, where recomputation takes place, that is used: of
    a module that is trained as a whole the copy.
    """
    return next(
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and any(part.isdigit() for part in name.split("."))
        and "original_module" not in name.split(".")
    )


def _matrices(model: nn.Module) -> dict[str, torch.Tensor]:
    """The base's weights of two and more dimensions, without embeddings and head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    beside = set(head.parameters()) if head is not None else set()
    return {
        f"{place}.{name}": parameter
        for place, module in model.named_modules()
        if not isinstance(module, nn.Embedding) and not is_adapter(place)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.dim() > 1 and parameter not in beside and not is_saved(place)
    }


def _is_quantised(parameter: torch.Tensor, spec: TrainSpec) -> bool:
    if spec.quant == "int8":
        return isinstance(parameter, Int8Params) and parameter.dtype == torch.int8
    state = parameter.quant_state if isinstance(parameter, Params4bit) else None
    return (
        state is not None and state.quant_type == spec.quant and state.nested == spec.double_quant
    )


def _bytes_by_place(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The bytes of tensors, those of all layers together: ``model.layers.*.mlp.experts``."""
    places: Counter[str] = Counter()
    for name, one in tensors.items():
        bare = name.removeprefix("base_model.model.").rpartition(".")[0]
        places[".".join("*" if part.isdigit() else part for part in bare.split("."))] += one.nbytes
    return dict(places.most_common())


def _can_move(parameter: torch.Tensor) -> bool:
    """Whether a step of the learning rate shows in the parameter's dtype: around 1, where norm
    weights are, 16 bits are too coarse for it.
    """
    return parameter.dtype == torch.float32 or parameter.dim() > 1


def _elements(parameter: torch.Tensor) -> int:
    """The elements that the parameter stands for."""
    if isinstance(parameter, Params4bit) and parameter.quant_state is not None:
        return math.prod(parameter.quant_state.shape)
    return parameter.numel()


def _dtypes(parameters: Iterable[torch.Tensor]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for one in parameters:
        counts[str(one.dtype).removeprefix("torch.")] += one.numel()
    return dict(counts)
