"""The evidence that a step trained what was asked.

A gate that only looks at memory passes a step that trains nothing: it is smaller and faster. So
the gradients of every trainable tensor are looked at, every tensor is fingerprinted before the
first and after the last step, and the shapes that reach the embedding are recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from bitsandbytes.nn import Params4bit
from torch import nn
from transformers.pytorch_utils import Conv1D

from pytest_vramfit.measurement import Evidence
from pytest_vramfit.spec import TrainSpec
from pytest_vramfit.training.step import Meter, Peaks, Step

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
        try:
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
            adapters=sum(_has_rank(adapted[one], spec) for one in self._adapted & adapted.keys()),
            adapters_expected=len(self._adapted),
            unexpected_adapters=tuple(sorted(adapted.keys() - self._adapted)),
            trainable_parameters=sum(one.numel() for one in step.trainable.values()),
            total_parameters=sum(
                _elements(one) for name, one in parameters.items() if not _is_adapter(name)
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
                if (name in step.trainable) != (spec.method == "full" or _is_adapter(name))
            ),
            base_changed=tuple(name for name in frozen if name in changed),
            trainable_dtypes=_dtypes(step.trainable.values()),
            base_dtypes=_dtypes(one for one in frozen.values() if not isinstance(one, Params4bit)),
            devices=dict(
                Counter(one.device.type for one in (*parameters.values(), *step.model.buffers()))
            ),
            quantised_elements=sum(_elements(one) for one in matrices if _is_quantised(one, spec)),
            matrix_elements=sum(_elements(one) for one in matrices),
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


def _has_rank(module: Any, spec: TrainSpec) -> bool:
    """Whether the module has one adapter, of the asked rank and the shapes that go with it."""
    (a,), (b,) = module.lora_A.values(), module.lora_B.values()
    rows, columns = module.out_features, module.in_features
    return bool(a.weight.shape == (spec.rank, columns) and b.weight.shape == (rows, spec.rank))


def _linear_of_a_layer(model: nn.Module) -> nn.Module:
    """A linear inside one of the numbered layers, where recomputation takes place."""
    return next(
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and any(part.isdigit() for part in name.split("."))
    )


def _matrices(model: nn.Module) -> list[torch.Tensor]:
    """The base's weights of two and more dimensions, without embeddings and head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return [
        parameter
        for name, module in model.named_modules()
        if module is not head and not isinstance(module, nn.Embedding) and not _is_adapter(name)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() > 1
    ]


def _is_quantised(parameter: torch.Tensor, spec: TrainSpec) -> bool:
    state = parameter.quant_state if isinstance(parameter, Params4bit) else None
    return (
        state is not None and state.quant_type == spec.quant and state.nested == spec.double_quant
    )


def _can_move(parameter: torch.Tensor) -> bool:
    """Whether a step of the learning rate shows in the parameter's dtype: around 1, where norm
    weights are, 16 bits are too coarse for it.
    """
    return parameter.dtype == torch.float32 or parameter.dim() > 1


def _is_adapter(name: str) -> bool:
    return any(part.startswith("lora_") for part in name.split("."))


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
